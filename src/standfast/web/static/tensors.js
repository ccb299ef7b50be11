// Tensors as a tree by the dots in their names; groups are made when they are opened.
import { get } from "./api.js";
import { empty, fill, h, settled } from "./dom.js";
import { count, exactSize, number, shape, size, whole } from "./format.js";

const MOST = 300;
/** So many rows of one group are made at once. */
const OPEN = 40;
/** So many rows are opened to begin with. */

function grown(tensors) {
  const root = { children: new Map(), bytes: 0, tensors: 0 };
  for (const tensor of tensors) {
    let node = root;
    const path = tensor.name.split(".");
    path.forEach((word, at) => {
      node.bytes += tensor.bytes ?? 0;
      node.tensors += 1;
      const isLeaf = at + 1 === path.length;
      const key = isLeaf ? `=${word}` : word;
      if (!node.children.has(key))
        node.children.set(
          key,
          isLeaf
            ? { label: word, tensor }
            : { label: word, children: new Map(), bytes: 0, tensors: 0 }
        );
      node = node.children.get(key);
    });
  }
  return root;
}

/** A group with one member is shown as one with it: `layers.0`. */
function folded(node) {
  let label = node.label,
    inner = node;
  while (inner.children?.size === 1) {
    [inner] = inner.children.values();
    label = `${label}.${inner.label}`;
  }
  return { ...inner, label };
}

/**
 * The tree; `choose` is called with a tensor that was clicked, `where` says whose tensors they are
 * ({ref} or {path}), for the norms.
 */
export function tensorTree(tensors, where, choose) {
  const rows = h("div", { role: "tree", "aria-label": "Tensors" });
  const columns = h(
    "div",
    { class: "row columns" },
    h("span", { class: "twist" }),
    h("span", { class: "label" }, count(tensors.length, "tensor")),
    h("span", { class: "dtype" }, "dtype"),
    h("span", { class: "shape" }, "shape"),
    h("span", { class: "size" }, "size"),
    h("span", { class: "norm" }, "norm")
  );
  const box = h("div", { class: "panel tensors" }, columns, rows);
  const find = h("input", {
    type: "search",
    "data-filter": true,
    placeholder: "Filter tensors",
    "aria-label": "Filter tensors",
    autocomplete: "off",
    spellcheck: "false"
  });
  const norms = normsOf(where, box);
  let withNorms = false;

  function leaf(node, depth, label) {
    const { tensor } = node;
    const norm = h("span", { class: "norm" }, norms.known(tensor.name));
    const row = h(
      "div",
      {
        class: "row",
        tabindex: -1,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-selected": "false",
        title: tensor.name,
        style: { "--depth": depth }
      },
      h("span", { class: "twist" }),
      h("span", { class: "label" }, label),
      h("span", { class: "dtype" }, tensor.dtype),
      h("span", { class: "shape", title: shape(tensor.shape) }, shape(tensor.shape)),
      h("span", { class: "size", title: exactSize(tensor.bytes ?? 0) }, size(tensor.bytes)),
      norm
    );
    const open = () => {
      for (const each of rows.querySelectorAll('[aria-selected="true"]'))
        each.setAttribute("aria-selected", "false");
      row.setAttribute("aria-selected", "true");
      choose(tensor);
    };
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => event.key === "Enter" && open());
    row.tensor = tensor;
    if (withNorms) norms.watch(row);
    return row;
  }

  function group(node, depth, isOpen) {
    const twist = h("span", { class: "twist", "aria-hidden": "true" }, "▸");
    const inside = h("div", { role: "group", hidden: true });
    const row = h(
      "div",
      {
        class: "row group",
        tabindex: -1,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-expanded": "false",
        style: { "--depth": depth }
      },
      twist,
      h("span", { class: "label" }, node.label),
      h("span", { class: "dtype" }),
      h("span", { class: "shape" }, count(node.tensors, "tensor")),
      h("span", { class: "size" }, size(node.bytes)),
      h("span", { class: "norm" })
    );
    const turn = (open) => {
      if (open && !inside.childElementCount) grow(inside, [...node.children.values()], depth + 1);
      inside.hidden = !open;
      twist.textContent = open ? "▾" : "▸";
      row.setAttribute("aria-expanded", String(open));
    };
    row.addEventListener("click", () => turn(inside.hidden));
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter") turn(inside.hidden);
      else if (event.key === "ArrowRight" || event.key === "ArrowLeft")
        turn(event.key === "ArrowRight");
    });
    if (isOpen) turn(true);
    return [row, inside];
  }

  let opened = 0;
  function grow(into, nodes, depth, from = 0) {
    for (const each of nodes.slice(from, from + MOST)) {
      const node = folded(each);
      if (node.tensor) into.append(leaf(node, depth, node.label));
      else {
        const fits = opened + node.children.size <= OPEN;
        if (fits) opened += node.children.size;
        into.append(...group(node, depth, fits));
      }
    }
    if (nodes.length > from + MOST) {
      const more = h(
        "div",
        {
          class: "row",
          tabindex: -1,
          style: { "--depth": depth + 1 },
          onclick: () => {
            more.remove();
            grow(into, nodes, depth, from + MOST);
          }
        },
        h("span", { class: "label dim" }, `… ${whole(nodes.length - from - MOST)} more`)
      );
      more.addEventListener("keydown", (event) => event.key === "Enter" && more.click());
      into.append(more);
    }
  }

  function show() {
    const wanted = find.value.trim().toLowerCase();
    opened = 0;
    fill(rows);
    if (!wanted) return grow(rows, [...grown(tensors).children.values()], 0);
    const fitting = tensors.filter((tensor) => tensor.name.toLowerCase().includes(wanted));
    rows.append(...fitting.slice(0, MOST).map((tensor) => leaf({ tensor }, 0, tensor.name)));
    rows.append(
      h(
        "div",
        { class: "row", style: { cursor: "default" } },
        h("span", { class: "twist" }),
        h(
          "span",
          { class: "dim" },
          fitting.length > MOST
            ? `the first ${MOST} of ${whole(fitting.length)}`
            : fitting.length
              ? ""
              : "no tensor has this in its name"
        )
      )
    );
  }

  find.addEventListener("input", settled(show, 120));
  const button = h(
    "button",
    {
      type: "button",
      class: "small",
      title: "read the tensors that are in view, and work out their norms",
      onclick: () => {
        withNorms = true;
        button.disabled = true;
        for (const row of rows.querySelectorAll(".row")) if (row.tensor) norms.watch(row);
      }
    },
    "Norms"
  );
  if (!tensors.length) return h("div", {}, empty("No tensors", "There are plain values alone."));
  show();
  return h(
    "div",
    {},
    h(
      "div",
      { class: "bar", style: { margin: "0 0 8px" } },
      h("div", { class: "filter small" }, find, h("kbd", {}, "/")),
      h("span", { class: "grow" }),
      button
    ),
    box
  );
}

/** Norms of rows that are seen, a few at a time. */
function normsOf(where, box) {
  const found = new Map();
  const waiting = [];
  let busy = 0;
  const next = async () => {
    const row = waiting.pop();
    if (!row) return;
    const cell = row.querySelector(".norm");
    busy += 1;
    try {
      const answer = await get("tensor", { ...where, name: row.tensor.name, bins: 8 });
      found.set(row.tensor.name, `${answer.exact === false ? "≈ " : ""}${number(answer.norm)}`);
      cell.textContent = found.get(row.tensor.name);
    } catch (error) {
      cell.textContent = "!";
      cell.title = error.message;
    }
    busy -= 1;
    next();
  };
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        target.querySelector(".norm").textContent = "…";
        waiting.push(target);
        if (busy < 3) next();
      }
    },
    { root: box }
  );
  return {
    known: (name) => found.get(name) ?? "",
    watch: (row) => found.has(row.tensor.name) || seen.observe(row)
  };
}
