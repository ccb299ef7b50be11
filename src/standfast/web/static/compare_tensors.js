// The tensors of two checkpoints that differ, and one of them in three histograms.
import { get } from "./api.js";
import { fill, h, wrong } from "./dom.js";
import { number, percent, shape, whole } from "./format.js";
import { draw, histogram } from "./plot.js";
import { statistics, title } from "./tensor.js";

const MOST = 200;
/** So many rows are made at once. */

/** Those that differ, with a bar for how much each does; `refs` are the two checkpoints. */
export function tensorChanges(found, added, removed, refs) {
  const [measured, others] = [isFloat, (each) => !isFloat(each)].map((kind) => found.filter(kind));
  let changed = [...measured, ...others];
  const scale = magnitudes(changed);
  const panel = h(
    "aside",
    { class: "panel aside waiting" },
    h(
      "div",
      { class: "empty" },
      h("h3", {}, "No tensor chosen"),
      "Choose one to see it before, after, and the difference."
    )
  );
  const body = h("tbody");
  const spec = (value) => `${value.dtype} ${shape(value.shape)}`;
  const row = (each) => {
    const isMeasured = typeof each.max === "number";
    const isOtherShape = shape(each.before.shape) !== shape(each.after.shape);
    const what =
      spec(each.before) === spec(each.after)
        ? spec(each.after)
        : `${spec(each.before)} → ${spec(each.after)}`;
    const made = h(
      "tr",
      { class: "row-like", tabindex: -1, "data-href": "#", "data-name": each.name },
      h("td", { class: "mono name", title: each.name, style: { "font-weight": 400 } }, each.name),
      h("td", { class: "dim", "data-label": "dtype and shape" }, what),
      h(
        "td",
        { class: "number", "data-label": "greatest change" },
        isMeasured ? number(each.max, 3) : isOtherShape ? "" : "not finite",
        " ",
        h(
          "span",
          {
            class: "meter",
            role: "img",
            "aria-label": isMeasured
              ? `greatest change ${number(each.max, 3)}`
              : isOtherShape
                ? "another shape"
                : "not finite"
          },
          h("i", {
            style: {
              width: `${isMeasured ? scale(each) : 100}%`,
              background: isMeasured ? "" : "var(--warn)"
            }
          })
        )
      ),
      h(
        "td",
        { class: "number", "data-label": "elements" },
        each.share === null ? "" : percent(each.share)
      )
    );
    made.dataset.href = "";
    const open = () => choose(each, panel, refs);
    made.addEventListener("click", open);
    made.addEventListener("keydown", (event) => event.key === "Enter" && open());
    return made;
  };
  const other = (kind, [name, value]) =>
    h(
      "tr",
      {},
      h("td", { class: "mono name", style: { "font-weight": 400 } }, name),
      h("td", { class: "dim" }, spec(value)),
      h(
        "td",
        { class: "number" },
        h("span", { class: `mark ${kind === "new" ? "good" : "warn"}` }, kind)
      ),
      h("td")
    );
  const more = h("div", { class: "pager" });
  const all = { changed, added, removed };
  let shown = 0;
  const grow = () => {
    body.append(...changed.slice(shown, shown + MOST).map(row));
    shown += MOST;
    if (shown >= changed.length)
      body.append(
        ...added.slice(0, MOST).map((each) => other("new", each)),
        ...removed.slice(0, MOST).map((each) => other("gone", each))
      );
    fill(
      more,
      shown < changed.length
        ? h(
            "button",
            { type: "button", onclick: grow },
            `Show more (${whole(changed.length - shown)} left)`
          )
        : null
    );
  };
  const only = (part) => {
    const fits = (name) => part === null || name.split(".")[0] === part;
    changed = all.changed.filter((each) => fits(each.name));
    [added, removed] = [all.added, all.removed].map((those) =>
      those.filter(([name]) => fits(name))
    );
    shown = 0;
    fill(body);
    grow();
  };
  only(null);
  return h(
    "div",
    { class: "halves" },
    h(
      "div",
      {},
      partSwitch(all, only),
      h(
        "div",
        { class: "box tensors" },
        h(
          "table",
          { class: "cards" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", {}, "Tensor"),
              h("th", {}, "dtype and shape"),
              h("th", { class: "number" }, "Greatest change"),
              h("th", { class: "number" }, "Elements")
            )
          ),
          body
        )
      ),
      more
    ),
    panel
  );
}

/** The parts that tensors are of; a click shows those of one. */
function partSwitch({ changed, added, removed }, only) {
  const counts = new Map();
  for (const name of [
    ...changed.map((each) => each.name),
    ...added.map(([name]) => name),
    ...removed.map(([name]) => name)
  ]) {
    const part = name.split(".")[0];
    counts.set(part, (counts.get(part) ?? 0) + 1);
  }
  if (counts.size < 2 || counts.size > 8) return null;
  const group = h("div", {
    class: "switch",
    role: "group",
    "aria-label": "Part",
    style: { "margin-bottom": "8px" }
  });
  const press = (part) => {
    fill(
      group,
      [null, ...counts.keys()].map((each) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(each === part),
            onclick: () => {
              press(each);
              only(each);
            }
          },
          each ?? "All",
          h("span", { class: "dim" }, each === null ? "" : whole(counts.get(each)))
        )
      )
    );
  };
  press(null);
  return group;
}

/** Others are counters, masks and the states of generators, which are always far apart. */
const isFloat = (each) => /float|complex/.test(each.after.dtype);

/** The lengths of bars, on a logarithmic scale. */
function magnitudes(changed) {
  const logs = changed
    .filter((each) => isFloat(each) && each.max > 0)
    .map((each) => Math.log10(each.max));
  const high = logs.reduce((a, b) => Math.max(a, b), -Infinity);
  const low =
    Math.max(
      high - 12,
      logs.reduce((a, b) => Math.min(a, b), Infinity)
    ) - 0.5;
  return (each) =>
    each.max > 0
      ? Math.max(3, Math.min(100, (100 * (Math.log10(each.max) - low)) / (high - low)))
      : 0;
}

async function choose(each, panel, refs) {
  panel.className = "panel aside open";
  const close = () => {
    panel.className = "panel aside waiting";
    fill(panel, h("div", { class: "empty" }, "Choose a tensor."));
  };
  const inside = h("div", {}, h("div", { class: "pad" }, h("div", { class: "skeleton" })));
  fill(
    panel,
    title(each.name, `${each.after.dtype} ${shape(each.after.shape)}`, undefined, close),
    inside
  );
  try {
    const found = await get("compare/tensor", { ...refs, name: each.name });
    fill(
      inside,
      ["before", "after", "difference"].map((side) => {
        const summary = found[side];
        if (!summary) return h("h4", {}, `No ${side}: they have other shapes.`);
        const plot = h("div", { class: "plot", style: { height: "130px" } });
        if (summary.histogram?.counts?.length)
          draw(plot, () =>
            histogram(summary.histogram, side === "difference" ? "--warn" : "--accent")
          );
        return [
          h(
            "h4",
            {},
            side[0].toUpperCase() + side.slice(1),
            h(
              "span",
              {},
              `mean ${number(summary.mean)}, std ${number(summary.std)}, norm ${number(summary.norm)}`
            )
          ),
          plot,
          side === "difference" ? statistics(summary) : null
        ];
      })
    );
  } catch (error) {
    fill(
      inside,
      h(
        "div",
        { class: "pad" },
        wrong(error, () => choose(each, panel, refs))
      )
    );
  }
}
