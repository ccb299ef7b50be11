// Which runs came from which, with what changed at each edge.
import { get } from "./api.js";
import { boot, byId, empty, fill, h, settled, skeleton, svg, wrong } from "./dom.js";
import {
  change,
  count,
  hash,
  highlightEqual,
  number,
  plain,
  runHref,
  time,
  whole
} from "./format.js";

const within = byId("tree");
const find = byId("find");
const WIDTH = 22,
  MIDDLE = 19;
const MOST = 400;
let branches = [];
let limit = MOST;

/** Depths, and for each ancestor whether more of its children follow. */
function laidOut(found) {
  const known = new Map(found.map((each) => [each.run, each]));
  const children = new Map();
  for (const each of found) {
    const from =
      each.parent && each.parent.run !== each.run && known.has(each.parent.run)
        ? each.parent.run
        : null;
    children.set(from, [...(children.get(from) ?? []), each]);
  }
  const order = [];
  const stack = (children.get(null) ?? []).map((each) => ({ each, rails: [] })).reverse();
  while (stack.length) {
    const { each, rails } = stack.pop();
    const below = children.get(each.run) ?? [];
    order.push({
      ...each,
      rails,
      hasChildren: below.length > 0,
      above: rails.length ? known.get(each.parent.run) : null
    });
    stack.push(
      ...below
        .map((child, at) => ({ each: child, rails: [...rails, at + 1 < below.length] }))
        .reverse()
    );
  }
  return order;
}

function graph({ rails, hasChildren }) {
  const at = (depth) => depth * WIDTH + 12;
  const depth = rails.length,
    bottom = 400;
  const line = (d) => svg("path", { d, fill: "none", stroke: "currentColor", "stroke-width": 1.5 });
  const lines = rails
    .slice(0, -1)
    .map((goesOn, level) => goesOn && line(`M${at(level)} 0V${bottom}`));
  if (depth) {
    lines.push(line(`M${at(depth - 1)} 0V${MIDDLE - 8}q0 8 8 8H${at(depth)}`));
    if (rails.at(-1)) lines.push(line(`M${at(depth - 1)} 0V${bottom}`));
  }
  if (hasChildren) lines.push(line(`M${at(depth)} ${MIDDLE}V${bottom}`));
  return h(
    "div",
    { class: "rails", style: { width: `${at(depth) + 18}px` } },
    svg(
      "svg",
      {
        width: at(depth) + 18,
        height: bottom,
        "aria-hidden": "true"
      },
      lines,
      svg("circle", {
        cx: at(depth),
        cy: MIDDLE,
        r: 4.5,
        fill: depth ? "var(--panel)" : "var(--accent)",
        stroke: "var(--accent)",
        "stroke-width": 2
      })
    )
  );
}

/** What a run changed, in words and elements. */
function changed(each) {
  if (!each.parent || each.parent.run === each.run) return [];
  if (!each.above)
    return [`from ${each.parent.run.slice(0, 8)} at ${whole(each.parent.step)}, which is gone`];
  const found = each.changes ?? {};
  const parts = Object.entries(found.hyperparameters ?? {})
    .slice(0, 4)
    .map(([key, pair]) => h("span", {}, `${key} `, change(pair)));
  const layers =
    Object.keys(found.layers?.tensors ?? {}).length +
    Object.keys(found.layers?.modules ?? {}).length;
  if (found.identity?.includes("model"))
    parts.push(layers ? `model: ${count(layers, "layer")}` : "another model");
  const samples = found.samples ?? {};
  const touched =
    ["added", "removed", "discarded", "restored"].reduce(
      (sum, key) => sum + (samples[key]?.length ?? 0),
      0
    ) + Object.keys(samples.tags ?? {}).length;
  if (found.identity?.includes("data"))
    parts.push(touched ? `data: ${count(touched, "sample")}` : "other data");
  if (!parts.length) parts.push("nothing changed");
  const gone = each.parent_is_there === false ? ", which is deleted" : "";
  return [
    `from ${whole(each.parent.step)}${gone}: `,
    ...parts.flatMap((part, at) => (at ? [" · ", part] : [part]))
  ];
}

function row(each) {
  const [metric, value] = Object.entries(each.best?.metrics ?? {})[0] ?? [];
  const said = changed(each);
  const settings = said.length
    ? said
    : Object.entries(each.hyperparameters ?? {})
        .slice(0, 6)
        .map(([key, set], at) => `${at ? " · " : ""}${key} ${plain(set, 24)}`);
  return h(
    "div",
    {
      class: "branch",
      tabindex: -1,
      "data-href": runHref(each.run),
      role: "treeitem",
      "aria-level": each.rails.length + 1
    },
    graph(each),
    h(
      "div",
      { class: "what" },
      h(
        "div",
        { class: "first" },
        h("b", {}, h("a", { href: runHref(each.run), tabindex: -1 }, each.name ?? "—")),
        hash(each.run, { apart: each.above?.run ?? null })
      ),
      h("div", { class: "second" }, settings)
    ),
    h(
      "div",
      { class: "facts" },
      h(
        "div",
        {},
        metric !== undefined
          ? [h("span", { class: "star" }, "★ "), `${metric} ${number(value)}`]
          : ""
      ),
      h(
        "div",
        {},
        each.checkpoints
          ? `${count(each.checkpoints, "checkpoint")}, ${whole(each.first_step)}–${whole(each.last_step)} · `
          : "no checkpoint · ",
        time(each.time)
      )
    )
  );
}

const textOf = (each) =>
  `${each.name ?? ""} ${each.run} ${JSON.stringify(each.hyperparameters ?? {})} ${Object.keys(each.changes?.hyperparameters ?? {}).join(" ")}`.toLowerCase();

function show() {
  const wanted = find.value.trim().toLowerCase();
  const all = laidOut(branches);
  const kept = wanted ? all.filter((each) => textOf(each).includes(wanted)) : all;
  const roots = all.filter((each) => !each.rails.length).length;
  byId("count").textContent = wanted
    ? `${whole(kept.length)} of ${count(all.length, "run")}`
    : `${count(all.length, "run")} in ${count(roots, "tree")}`;
  if (!kept.length) {
    fill(
      within,
      wanted
        ? empty("No run fits", "Nothing has this name, hash or hyperparameter.")
        : empty(
            "No runs yet",
            "A run that begins from a checkpoint of another is drawn under it:",
            'with standfast.Checkpointer("runs", state, name="finer", hp=hp, resume="base@300") as ckpt:\n    ...'
          )
    );
    return;
  }
  const flat = (each) => (wanted ? { ...each, rails: [], hasChildren: false } : each);
  const at = document.activeElement?.dataset?.href;
  fill(
    within,
    h(
      "div",
      { class: "panel lineage", role: "tree", "aria-label": "Runs by origin" },
      kept.slice(0, limit).map((each) => row(flat(each)))
    ),
    kept.length > limit
      ? h(
          "div",
          { class: "pager" },
          h(
            "button",
            {
              type: "button",
              onclick: () => {
                limit += MOST * 2;
                show();
              }
            },
            `Show more (${whole(kept.length - limit)} left)`
          )
        )
      : null
  );
  if (at) within.querySelector(`[data-href="${CSS.escape(at)}"]`)?.focus({ preventScroll: true });
}

async function load(first) {
  try {
    const answer = first ?? (await get("lineage"));
    branches = Array.isArray(answer) ? answer : (answer.runs ?? answer.branches ?? []);
    show();
  } catch (error) {
    fill(
      within,
      wrong(error, () => load())
    );
  }
}

find.value = new URLSearchParams(location.search).get("q") ?? "";
find.addEventListener(
  "input",
  settled(() => {
    history.replaceState(
      null,
      "",
      find.value ? `?${new URLSearchParams({ q: find.value })}` : location.pathname
    );
    show();
  }, 120)
);
document.addEventListener("changed", () => load());
highlightEqual(within);
fill(within, skeleton(8, 52));
load(boot().data);
