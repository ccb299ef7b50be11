// What differs between two checkpoints and their runs, the worst first.
import { latest } from "./api.js";
import { tensorChanges } from "./compare_tensors.js";
import { byId, empty, fill, h, skeleton, tiles, wrong } from "./dom.js";
import { change, checkpointHref, count, hash, number, plain, shape, whole } from "./format.js";
import { picker } from "./picker.js";

const MOST = 200;
const result = byId("result");
const ask = latest();
let sides = fromAddress();

function fromAddress() {
  const query = new URLSearchParams(location.search);
  return { before: query.get("before") ?? "", after: query.get("after") ?? "" };
}

function go(change_) {
  sides = { ...sides, ...change_ };
  const query = new URLSearchParams(Object.entries(sides).filter(([, value]) => value));
  history.pushState(null, "", `/compare?${query}`);
  load();
}

const before = picker("Before", sides.before, (ref) => go({ before: ref }));
const after = picker("After", sides.after, (ref) => go({ after: ref }));
fill(
  byId("pick"),
  before.element,
  h(
    "button",
    {
      type: "button",
      title: "swap them",
      "aria-label": "Swap before and after",
      onclick: () => go({ before: sides.after, after: sides.before })
    },
    "⇄"
  ),
  after.element
);

async function load() {
  before.text(sides.before);
  after.text(sides.after);
  if (!sides.before || !sides.after) {
    for (const [side, value] of [
      [before, sides.before],
      [after, sides.after]
    ]) {
      const [run, step] = value.split("@");
      if (run) side.show({ run, step: step ?? null, name: null });
    }
    fill(
      result,
      empty(
        "Choose two checkpoints",
        "Type a part of a run's name in both fields, or choose two runs in the list of runs."
      )
    );
    return;
  }
  fill(result, skeleton(10));
  try {
    const found = await ask("compare", sides);
    show(found);
    const [a, b] = found.runs ?? [];
    if (a) before.show(a);
    if (b) after.show(b);
  } catch (error) {
    if (error.name !== "AbortError") fill(result, wrong(error, load));
  }
}

function show(found) {
  const [a, b] = found.runs ?? [];
  const changed = found.changed ?? [],
    added = Object.entries(found.added ?? {}),
    removed = Object.entries(found.removed ?? {});
  document.title =
    a && b
      ? `${a.name ?? a.run.slice(0, 8)} and ${b.name ?? b.run.slice(0, 8)} · Standfast`
      : "Compare · Standfast";
  const ref = (side, given) => (side ? `${side.run}@${side.step}` : given);
  const refs = { before: ref(a, sides.before), after: ref(b, sides.after) };
  const lacking = (found.runs ?? []).filter((side) => side.step === null);
  const isSame = !changed.length && !added.length && !removed.length;
  fill(
    result,
    a && b
      ? h(
          "div",
          {
            class: "panel pad",
            style: {
              "margin-bottom": "12px",
              display: "flex",
              gap: "8px 24px",
              "flex-wrap": "wrap",
              "align-items": "center"
            }
          },
          [a, b].map((side, at) =>
            h(
              "span",
              {},
              h(
                "a",
                {
                  href:
                    side.step === null ? `/runs/${side.run}` : checkpointHref(side.run, side.step)
                },
                h("b", {}, side.name ?? "—"),
                side.step === null ? "" : ` @ ${whole(side.step)}`
              ),
              " ",
              hash(side.run, { apart: at ? a.run : b.run })
            )
          ),
          h("span", { class: "dim" }, same(a, b))
        )
      : null,
    tiles([
      ["Tensors changed", whole(changed.length)],
      ["The same", whole(found.same), "bit for bit"],
      ["Equal digests", whole(found.equal_digests), "not read"],
      ["New", whole(added.length)],
      ["Gone", whole(removed.length)]
    ]),
    facts(found),
    found.tree ? section("Mesh", tree(found.tree)) : null,
    h(
      "h2",
      {},
      "Tensors",
      h(
        "span",
        { class: "dim", style: { "font-weight": 400 } },
        isSame || lacking.length ? "" : "the worst first"
      )
    ),
    lacking.length
      ? empty(
          "No tensors to compare",
          `${lacking.map((side) => side.name ?? side.run.slice(0, 8)).join(" and ")} without a checkpoint.`
        )
      : isSame
        ? empty(
            "No tensor differs",
            `${count(found.same, "tensor")} read; ${count(found.equal_digests, "tensor")} with equal digests, not read.`
          )
        : tensorChanges(changed, added, removed, refs)
  );
}

function same(a, b) {
  const parts = [
    ["hp", "hyperparameters"],
    ["model", "model"],
    ["data", "data"]
  ].filter(([part]) => a[part] === b[part] && a[part]);
  return a.run === b.run
    ? "the same run"
    : parts.length
      ? `the same ${parts.map(([, words]) => words).join(" and ")}`
      : "nothing in common";
}

/** What differs beside tensors; what does not, in one line. */
function facts(found) {
  const all = [
    ["Hyperparameters", settings(found)],
    ["Metrics", metrics(found)],
    ["Layers", layers(found)],
    ["Samples", samples(found)]
  ];
  const equal = all.filter(([, content]) => content === null).map(([name]) => name.toLowerCase());
  return [
    h(
      "div",
      { class: "sides", style: { "row-gap": 0 } },
      all.map(([name, content]) => section(name, content))
    ),
    equal.length
      ? h("p", { class: "dim", style: { margin: "12px 0 0" } }, `The same: ${equal.join(", ")}.`)
      : null
  ];
}

const section = (name, content) => content && h("section", {}, h("h2", {}, name), content);
const table = (rows) => h("div", { class: "box" }, h("table", {}, h("tbody", {}, rows)));
const line = (name, ...cells) =>
  h(
    "tr",
    {},
    h("td", { class: "mono wrap" }, name),
    cells.map((cell) => h("td", { class: "wrap number" }, cell))
  );
const none = (text) => h("div", { class: "panel pad dim" }, text);

function settings(found) {
  const rows = Object.entries(found.hyperparameters ?? {}).map(([key, pair]) =>
    line(
      [
        key,
        pair.counts === false
          ? h("span", { class: "mark", style: { "margin-left": "6px" } }, "not in the hash")
          : null
      ],
      change(pair)
    )
  );
  if (found.trial) rows.push(line("trial", change(found.trial)));
  return rows.length ? table(rows) : null;
}

function metrics(found) {
  const pair = found.metadata?.metrics;
  if (!pair) return null;
  const names = [...new Set([...Object.keys(pair.before ?? {}), ...Object.keys(pair.after ?? {})])];
  return table(
    names.map((name) => {
      const old = pair.before?.[name],
        now = pair.after?.[name];
      const isMeasured = typeof old === "number" && typeof now === "number";
      const by =
        now === old ? "the same" : `${now > old ? "+" : "−"}${number(Math.abs(now - old), 3)}`;
      return line(
        name,
        h(
          "span",
          { class: "change" },
          h("s", {}, number(old, 5)),
          " → ",
          h("b", {}, number(now, 5))
        ),
        isMeasured ? h("span", { class: "dim" }, by) : ""
      );
    })
  );
}

function layers(found) {
  if (found.layers === null) return none("Not the same, and not described.");
  const spec = (value) =>
    value === undefined
      ? "—"
      : typeof value === "object" && value.shape
        ? `${value.dtype} ${shape(value.shape)}`
        : plain(value);
  const rows = [
    ...Object.entries(found.layers?.modules ?? {}),
    ...Object.entries(found.layers?.tensors ?? {})
  ].map(([name, pair]) =>
    line(
      name || "the model",
      h(
        "span",
        { class: "change" },
        h("s", {}, spec(pair.before)),
        " → ",
        h("b", {}, spec(pair.after))
      )
    )
  );
  return rows.length ? table(rows.slice(0, MOST)) : null;
}

function samples(found) {
  if (found.samples === null) return none("Not the same, and not described.");
  const all = found.samples ?? {};
  const few = (uids) =>
    uids.slice(0, 8).join(", ") + (uids.length > 8 ? ` and ${whole(uids.length - 8)} more` : "");
  const rows = ["added", "removed", "discarded", "restored"]
    .filter((kind) => all[kind]?.length)
    .map((kind) => line(`${whole(all[kind].length)} ${kind}`, few(all[kind].map(String))));
  for (const [uid, pair] of Object.entries(all.tags ?? {}).slice(0, 50))
    rows.push(
      line(
        uid,
        change({
          before: (pair.before ?? []).join(", ") || "no tag",
          after: (pair.after ?? []).join(", ") || "no tag"
        })
      )
    );
  for (const [key, pair] of Object.entries(all.other ?? {})) rows.push(line(key, change(pair)));
  return rows.length ? table(rows) : null;
}

function tree(found) {
  if (found.problems?.length) return wrong({ message: found.problems.join("; ") });
  const facts = Object.entries(found).filter(([, value]) => typeof value === "number");
  return tiles(facts.map(([key, value]) => [key.replaceAll("_", " "), number(value)]));
}

addEventListener("popstate", () => {
  sides = fromAddress();
  load();
});
load();
