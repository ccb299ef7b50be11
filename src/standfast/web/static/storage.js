// Where the bytes are, what would go, and why the rest stays.
import { get } from "./api.js";
import { boot, byId, empty, fill, h, skeleton, tiles, wrong } from "./dom.js";
import { checkpointHref, count, exactSize, percent, runHref, size, whole } from "./format.js";
import { runColour } from "./plot.js";

const MOST = 40;
const within = byId("body");
let limit = MOST;
let last = null;

async function load(first) {
  try {
    last = first ?? (await get("storage"));
    show();
  } catch (error) {
    fill(
      within,
      wrong(error, () => load())
    );
  }
}

function show() {
  const { usage, parts = [], gc = {}, kept = {}, trash = 0 } = last;
  if (!usage.runs.length) {
    fill(
      within,
      empty(
        "Nothing is stored yet",
        "What runs take shows here as soon as one has saved something."
      )
    );
    return;
  }
  const { total } = usage;
  const orphans = Object.values(usage.orphans ?? {}).reduce((sum, each) => sum + each, 0);
  fill(
    within,
    tiles([
      ["On disk", size(total.on_disk), null, exactSize(total.on_disk)],
      ["Logical", size(total.logical), null, exactSize(total.logical)],
      [
        "Saved by dedup",
        size(total.saved),
        total.logical ? percent(total.saved / total.logical) : null,
        "tensors that were there already, and not written again"
      ],
      ["Checkpoints", whole(total.checkpoints), `in ${count(usage.runs.length, "run")}`],
      [
        "gc would free",
        size(gc.bytes ?? 0),
        gc.lines?.length ? count(gc.lines.length, "thing") : "nothing goes"
      ],
      ["Trash", size(trash)],
      total.budget ? ["Budget", size(total.budget), percent(total.on_disk / total.budget)] : null,
      orphans ? ["Without a record", size(orphans), "see standfast doctor"] : null
    ]),
    usage.problem ? wrong({ message: usage.problem }) : null,
    h("h2", {}, "By run and part"),
    byRun(usage.runs, parts),
    h(
      "div",
      { class: "sides" },
      h("section", {}, h("h2", {}, "What gc would free"), freed(gc)),
      h("section", {}, h("h2", {}, "Why checkpoints stay"), reasons(kept))
    )
  );
}

function byRun(runs, parts) {
  const sums = new Map();
  for (const { part, bytes } of parts) sums.set(part, (sums.get(part) ?? 0) + bytes);
  const names = [...sums].sort((a, b) => b[1] - a[1]).map(([part]) => part);
  const colour = (part) =>
    names.indexOf(part) < 7 ? runColour(names.indexOf(part)) : "var(--line-strong)";
  const own = new Map();
  for (const each of parts) own.set(each.run, [...(own.get(each.run) ?? []), each]);
  const sorted = [...runs].sort((a, b) => b.on_disk - a.on_disk);
  const greatest = Math.max(1, ...runs.map((each) => each.on_disk));
  const row = (each) => {
    const segments = (own.get(each.run) ?? []).toSorted((a, b) => b.bytes - a.bytes);
    const known = segments.reduce((sum, part) => sum + part.bytes, 0);
    // Headers and records are in no part.
    const whole_ = Math.max(known, each.on_disk, 1);
    return h(
      "div",
      { class: "usage" },
      h(
        "a",
        { href: runHref(each.run), title: each.name ?? each.run },
        h("span", {}, each.name ?? "—"),
        h("span", { class: "dim mono" }, ` ${each.run.slice(0, 8)}`)
      ),
      h(
        "div",
        { class: "stack", style: { width: `${(100 * each.on_disk) / greatest}%` } },
        segments.map((part) =>
          h("i", {
            title: `${part.part}: ${size(part.bytes)}`,
            style: { width: `${(100 * part.bytes) / whole_}%`, background: colour(part.part) }
          })
        )
      ),
      h("span", { class: "number", title: exactSize(each.on_disk) }, size(each.on_disk)),
      h("span", { class: "number dim" }, size(each.logical)),
      h("span", { class: "number dim" }, size(each.saved))
    );
  };
  return h(
    "div",
    { class: "panel" },
    h(
      "div",
      { class: "pad legend" },
      names
        .slice(0, 7)
        .map((part) =>
          h(
            "span",
            {},
            h("span", { class: "swatch", style: { background: colour(part) } }),
            part,
            h("span", { class: "dim" }, ` ${size(sums.get(part))}`)
          )
        ),
      names.length > 7 ? h("span", { class: "dim" }, `and ${whole(names.length - 7)} more`) : null
    ),
    h(
      "div",
      { class: "usage title" },
      h("span", {}, "Run"),
      h("span"),
      ["On disk", "Logical", "Saved"].map((each) => h("span", { class: "number" }, each))
    ),
    sorted.slice(0, limit).map(row),
    sorted.length > limit
      ? h(
          "div",
          { class: "pager pad" },
          h(
            "button",
            {
              type: "button",
              onclick: () => {
                limit *= 4;
                show();
              }
            },
            `Show more (${whole(sorted.length - limit)} left)`
          )
        )
      : null
  );
}

function freed(gc) {
  const problems = Object.entries(gc.problems ?? {}).map(([run, why]) =>
    wrong({ message: `${run}: ${why}` })
  );
  const lines = gc.lines ?? [];
  if (!lines.length)
    return [problems, h("div", { class: "panel pad dim" }, "Nothing: every checkpoint stays.")];
  const groups = Map.groupBy(lines, (each) => `${each.run}\n${each.why}`);
  return [
    problems,
    h(
      "div",
      { class: "box" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", {}, "What"),
            h("th", {}, "Why"),
            h("th", { class: "number" }, "Frees")
          )
        ),
        h(
          "tbody",
          {},
          [...groups.values()]
            .slice(0, 100)
            .map((those) =>
              h(
                "tr",
                {},
                h("td", { class: "wrap" }, steps(those)),
                h("td", { class: "wrap dim" }, those[0].why),
                h(
                  "td",
                  { class: "number" },
                  size(those.reduce((sum, each) => sum + each.nbytes, 0))
                )
              )
            )
        )
      ),
      h(
        "div",
        { class: "pad dim" },
        "It is done by ",
        h("code", {}, "standfast gc --yes"),
        gc.to_trash
          ? [
              `; ${size(gc.to_trash)} go to the trash, to be freed after 7 days or by `,
              h("code", {}, "standfast gc --empty --yes"),
              "."
            ]
          : `; the store would then take ${size(gc.total_after)}.`
      )
    )
  ];
}

function steps(those) {
  const [{ run, kind }] = those;
  const name = last.usage.runs.find((each) => each.run === run)?.name ?? run.slice(0, 8);
  const few = those.slice(0, 6);
  return [
    h("a", { href: runHref(run) }, h("b", { style: { "font-weight": 550 } }, name)),
    " ",
    kind && kind !== "checkpoint"
      ? kind
      : few.map((each, at) => [
          at ? ", " : "",
          h("a", { href: checkpointHref(run, each.step) }, whole(each.step))
        ]),
    those.length > few.length ? ` and ${whole(those.length - few.length)} more` : ""
  ];
}

function reasons(kept) {
  const sums = new Map();
  for (const [why, number] of Object.entries(kept)) {
    // What it is best at differs from run to run.
    const kind = why.replace(/, [-+.\de]+$/, "");
    sums.set(kind, (sums.get(kind) ?? 0) + number);
  }
  const all = [...sums].sort((a, b) => b[1] - a[1]);
  if (!all.length) return h("div", { class: "panel pad dim" }, "No checkpoint is there.");
  const most = all[0][1];
  return h(
    "div",
    { class: "box" },
    h(
      "table",
      {},
      h(
        "tbody",
        {},
        all
          .slice(0, 60)
          .map(([why, number]) =>
            h(
              "tr",
              {},
              h("td", { class: "wrap" }, why),
              h(
                "td",
                { class: "number" },
                whole(number),
                " ",
                h(
                  "span",
                  { class: "meter" },
                  h("i", { style: { width: `${(100 * number) / most}%` } })
                )
              )
            )
          )
      )
    ),
    h(
      "div",
      { class: "pad dim" },
      "Each run's page says it for each checkpoint: ",
      h("a", { href: "/", style: { color: "var(--accent)" } }, "runs"),
      "."
    )
  );
}

document.addEventListener("changed", () => load());
document.addEventListener("theme", () => last && show());
fill(within, skeleton(10));
load(boot().data?.usage ? boot().data : undefined);
