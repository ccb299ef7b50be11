// One run: what it is, its curves, its checkpoints.
import { get, send } from "./api.js";
import { boot, byId, empty, fill, h, pager, skeleton, tiles, wrong } from "./dom.js";
import {
  change,
  checkpointHref,
  compareHref,
  count,
  exactSize,
  hash,
  mark,
  number,
  pairs,
  percent,
  runHref,
  size,
  time,
  whole
} from "./format.js";
import { curves } from "./curves.js";

const run = decodeURIComponent(location.pathname.split("/")[2] ?? "");
const others = () =>
  (new URLSearchParams(location.search).get("with") ?? "")
    .split(",")
    .filter((each) => each && each !== run);
const pageOf = () => Number(new URLSearchParams(location.search).get("page")) || 1;

/** Whether there is such a run. A form in which a name is being typed may be kept. */
async function loadHead({ keepForm = false } = {}) {
  const isKept = () => keepForm && byId("head").querySelector("form");
  try {
    const found = await get(`runs/${run}`);
    if (isKept()) return true; // also one that was opened since the request
    showHead(found);
    for (const each of under) each.hidden = !isDrawn;
  } catch (error) {
    if (isKept()) return true;
    if (error.status === 404) {
      const all = h(
        "p",
        { style: { margin: "12px 0 0" } },
        h("a", { class: "button", href: "/" }, "All runs")
      );
      fill(byId("head"), h("h1", {}, "No such run"), wrong(error, loadHead), all);
      return false;
    }
    fill(byId("head"), wrong(error, loadHead));
  }
  return true;
}

function showHead(found) {
  document.title = `${found.name ?? found.run.slice(0, 8)} · Standfast`;
  const usage = found.usage?.total ?? found.usage ?? {};
  fill(
    byId("head"),
    h(
      "div",
      { class: "line" },
      found.live
        ? h("span", {
            class: "live",
            title: "somebody writes into it now",
            role: "img",
            "aria-label": "live"
          })
        : null,
      title(found),
      hash(found.run, { given: found }),
      found.parent && parent(found),
      found.children?.length
        ? h(
            "a",
            { class: "dim", href: "/lineage" },
            count(found.children.length, "branch").replace("branchs", "branches")
          )
        : null,
      h("span", { class: "grow" }),
      found.last_step === null || found.first_step === found.last_step
        ? null
        : h(
            "a",
            {
              class: "button",
              href: compareHref(`${run}@${found.first_step}`, `${run}@${found.last_step}`)
            },
            "Compare first and last"
          )
    ),
    found.parent && Object.keys(found.changes?.hyperparameters ?? {}).length
      ? h(
          "div",
          { class: "line dim" },
          "changed: ",
          Object.entries(found.changes.hyperparameters).map(([key, pair]) =>
            h("span", {}, `${key} `, change(pair))
          )
        )
      : null,
    Object.keys(found.hyperparameters ?? {}).length
      ? h("div", { class: "line" }, pairs(found.hyperparameters))
      : null,
    tiles([
      [
        "Checkpoints",
        whole(found.checkpoints),
        found.damaged ? `${whole(found.damaged)} damaged` : null
      ],
      ["Last step", whole(found.last_step)],
      [
        "Best",
        best(found),
        found.best && found.best.step !== undefined ? `at ${whole(found.best.step)}` : null
      ],
      [
        "On disk",
        size(usage.on_disk),
        null,
        usage.on_disk === undefined ? null : exactSize(usage.on_disk)
      ],
      [
        "Saved by dedup",
        size(usage.saved),
        usage.logical ? percent(usage.saved / usage.logical) : null,
        usage.logical ? `of ${exactSize(usage.logical)}` : null
      ],
      ["Saved", time(found.time ?? found.created)],
      [
        "Mirror",
        found.mirror ? place(found.mirror) : "none",
        null,
        found.mirror ? JSON.stringify(found.mirror) : "give Checkpointer(mirror=…) a place"
      ]
    ])
  );
}

const place = (mirror) => (typeof mirror === "string" ? mirror : (mirror.place ?? "yes"));

function best(found) {
  const [name] = [
    found.monitor?.metric ?? found.monitor,
    ...Object.keys(found.best?.metrics ?? {})
  ].filter((each) => typeof each === "string" && each in (found.best?.metrics ?? {}));
  return name === undefined
    ? "—"
    : h(
        "span",
        { title: name },
        h("span", { class: "star" }, "★ "),
        number(found.best.metrics[name])
      );
}

function parent(found) {
  const { run: from, step } = found.parent;
  return from === found.run
    ? null
    : h(
        "span",
        { class: "dim" },
        "from ",
        h(
          "a",
          { href: step === undefined ? runHref(from) : checkpointHref(from, step) },
          hash(from, { apart: found.run })
        ),
        step === undefined ? null : ` at ${whole(step)}`
      );
}

function title(found) {
  const name = h("h1", {}, found.name ?? "—");
  if (!boot().store?.allow_edit) return name;
  const rename = () => {
    const input = h("input", {
      type: "text",
      value: found.name ?? "",
      "aria-label": "The name of the run",
      maxlength: 200
    });
    const form = h(
      "form",
      {
        class: "inline",
        style: { margin: 0 },
        onsubmit: async (event) => {
          event.preventDefault();
          try {
            await send("POST", `runs/${run}/name`, { name: input.value });
            loadHead();
          } catch (error) {
            form.after(wrong(error));
          }
        }
      },
      input,
      h("button", { class: "small" }, "Rename"),
      h("button", { class: "small quiet", type: "button", onclick: () => loadHead() }, "Cancel")
    );
    both.replaceWith(form);
    input.select();
  };
  const both = h(
    "span",
    { class: "line", style: { margin: 0 } },
    name,
    h("button", { type: "button", class: "small quiet", onclick: rename }, "Rename")
  );
  return both;
}

async function loadCheckpoints() {
  const within = byId("checkpoints");
  try {
    showCheckpoints(within, await get(`runs/${run}/checkpoints`, { page: pageOf() }));
  } catch (error) {
    fill(within, wrong(error, loadCheckpoints));
  }
}

function showCheckpoints(within, answer) {
  const entries = answer.checkpoints ?? answer.entries ?? [];
  if (!entries.length) {
    fill(within, empty("No checkpoints yet", "The first appears here as soon as it is saved."));
    return;
  }
  const metrics = [...new Set(entries.flatMap((each) => Object.keys(each.metrics ?? {})))].slice(
    0,
    4
  );
  const at = document.activeElement?.dataset?.href;
  fill(
    within,
    h(
      "div",
      { class: "box" },
      h(
        "table",
        { class: "cards" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { class: "number" }, "Step"),
            h("th", {}, "Marks"),
            metrics.map((each) => h("th", { class: "number" }, each)),
            h("th", { class: "number" }, "Size"),
            h("th", { class: "number" }, "Written"),
            h("th", {}, "Why it stays"),
            h("th", { class: "number" }, "Saved")
          )
        ),
        h(
          "tbody",
          {},
          entries.map((each) => checkpointRow(each, metrics))
        )
      )
    ),
    pager(answer, (page) => {
      const query = new URLSearchParams(location.search);
      query.set("page", page);
      history.pushState(null, "", `?${query}`);
      loadCheckpoints();
    })
  );
  if (at) within.querySelector(`[data-href="${CSS.escape(at)}"]`)?.focus({ preventScroll: true });
}

function checkpointRow(each, metrics) {
  const href = checkpointHref(each.run, each.step);
  const kept = each.kept ?? {};
  const why = (kept.why ?? []).join("; ");
  const cell = (label, content) => h("td", { class: "number", "data-label": label }, content);
  return h(
    "tr",
    { tabindex: -1, "data-href": href },
    h(
      "td",
      { class: "number name", "data-label": "step" },
      h("a", { href, tabindex: -1 }, whole(each.step))
    ),
    h(
      "td",
      { "data-label": "marks" },
      each.damaged ? h("span", { class: "mark bad", title: each.damaged }, "damaged") : null,
      each.too_new ? h("span", { class: "mark warn", title: each.too_new }, "too new") : null,
      (each.marks ?? []).map(mark)
    ),
    metrics.map((name) =>
      cell(name, each.metrics?.[name] === undefined ? null : number(each.metrics[name]))
    ),
    cell("size", size(each.nbytes)),
    cell("written", size(each.written)),
    h(
      "td",
      { class: "dim wrap", "data-label": "why it stays" },
      each.damaged || each.too_new
        ? each.damaged || each.too_new
        : kept.keep === false
          ? [h("span", { class: "mark warn" }, "goes"), why]
          : why
    ),
    cell("saved", time(each.time))
  );
}

const plots = curves(byId("tools"), byId("curves"), () => [run, ...others()]);
document.addEventListener("changed", () => {
  loadHead({ keepForm: true });
  loadCheckpoints();
  plots.load();
});
addEventListener("popstate", () => loadCheckpoints());

fill(byId("head"), skeleton(3));
fill(byId("checkpoints"), skeleton(6));
// What is under something whose height is not known yet waits for it, so that nothing jumps.
let isDrawn = false;
const under = [byId("tools"), byId("curves"), byId("checkpoints").parentElement];
for (const each of under) each.hidden = true;
const [isThere] = await Promise.all([loadHead(), plots.load(), loadCheckpoints()]);
isDrawn = true;
if (isThere) for (const each of under) each.hidden = false;
