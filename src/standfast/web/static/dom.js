// Elements out of data. Text becomes text nodes only: no name of a run can become markup.

/** An element: h("td", {class: "name", onclick}, "text", otherElement, null). */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style")
      for (const [name, text] of Object.entries(value)) made.style.setProperty(name, text);
    else if (key === "value" || key === "checked") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...flat(children));
  return made;
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...flat(children));
  return made;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Puts children in the place of those that an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** JSON as it is; whole numbers that JavaScript would round stay texts. */
export function parsed(text) {
  if (!/[[:,\s]-?\d{16,}\s*[,\]}]/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" &&
    Number.isInteger(value) &&
    !Number.isSafeInteger(value) &&
    context?.source
      ? context.source
      : value
  );
}

/** What the server put into the page. */
export function boot() {
  try {
    return parsed(byId("boot").textContent) ?? {};
  } catch {
    return {};
  }
}

/** Grey lines in the place of what is on its way. */
export function skeleton(lines = 6, height = 36) {
  const widths = [62, 48, 71, 55, 66, 40];
  return h(
    "div",
    { class: "panel pad", "aria-busy": "true", "aria-label": "loading" },
    Array.from({ length: lines }, (_, at) =>
      h(
        "div",
        { style: { height: `${height}px`, "padding-top": `${height / 2 - 7}px` } },
        h("div", { class: "skeleton", style: { width: `${widths[at % 6]}%` } })
      )
    )
  );
}

/** What went wrong, in its place, with a way to try again. */
export function wrong(error, again) {
  return h(
    "div",
    { class: "wrong", role: "alert" },
    h("span", {}, error.message || String(error)),
    again && h("button", { type: "button", class: "small", onclick: again }, "Try again")
  );
}

/** Nothing there: what it means, and what to do. */
export function empty(title, text, code) {
  return h(
    "div",
    { class: "panel empty" },
    h("h3", {}, title),
    text && h("p", {}, text),
    code && h("pre", {}, code)
  );
}

/** Labelled facts in a row of tiles: [label, value, small text beside it, title]. */
export function tiles(facts) {
  return h(
    "dl",
    { class: "tiles", style: { margin: 0 } },
    facts
      .filter(Boolean)
      .map(([label, value, beside, title]) =>
        h(
          "div",
          { class: "tile" },
          h("dt", {}, label),
          h("dd", { title: title ?? null }, value, beside && [" ", h("small", {}, beside)])
        )
      )
  );
}

/** Back and forth between pages of a list; `go` gets the number. */
export function pager(answer, go) {
  const { page = 1, pages = 1, total = 0, per_page: size = 50 } = answer;
  if (pages <= 1) return h("div", { class: "pager" });
  const first = (page - 1) * size + 1;
  const button = (text, to, label) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-label": label,
        disabled: to < 1 || to > pages,
        onclick: () => go(to)
      },
      text
    );
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of the list" },
    h(
      "span",
      {},
      `${first.toLocaleString("en")}–${Math.min(total, first + size - 1).toLocaleString("en")} of ${total.toLocaleString("en")}`
    ),
    button("«", page > 1 ? 1 : 0, "First page"),
    button("‹ Newer", page - 1, "Previous page"),
    button("Older ›", page + 1, "Next page"),
    button("»", page < pages ? pages : pages + 1, "Last page")
  );
}

/** A function that waits until it was left alone for a moment. */
export function settled(action, milliseconds = 180) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}
