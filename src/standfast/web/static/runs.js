// All runs, the newest first.
import { latest } from "./api.js";
import { boot, byId, empty, fill, h, pager, settled, skeleton, wrong } from "./dom.js";
import { compareHref, hash, highlightEqual, number, runHref, time, whole } from "./format.js";

const PARTS = ["hp", "model", "data"];
const ORDERS = ["time", "name", "checkpoints"];
const CHIPS = [...PARTS, "metric"];
const METRIC = /^([^\s<>=:]+)(<=|>=|<|>)(-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)$/i;
const PART = /^(hp|model|data):([0-9a-f]{8})$/i;

const PLACEHOLDER = "Filter: text, hp:1a2b3c4d, loss<0.3";

const list = byId("list");
const ask = latest();
const chosen = new Map();
let state = fromAddress();
let shown = null;
let metrics = [];

function fromAddress() {
  const given = new URLSearchParams(location.search);
  const found = { page: Number(given.get("page")) || 1 };
  for (const key of ["q", "sort", ...CHIPS]) found[key] = given.get(key) ?? "";
  return found;
}

function toAddress(replace) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state))
    if (value && !(key === "page" && value === 1)) query.set(key, value);
  const text = query.toString();
  const address = text ? `/?${text}` : "/";
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
}

/** Goes to another state of the list; `replace` while somebody types. */
function go(change, { replace = false } = {}) {
  state = { ...state, page: 1, ...change };
  toAddress(replace);
  showFilter();
  load();
}

async function load() {
  list.setAttribute("aria-busy", "true");
  try {
    show(await ask("runs", state));
  } catch (error) {
    if (error.name === "AbortError") return;
    fill(list, wrong(error, load));
    shown = null;
  }
  list.removeAttribute("aria-busy");
}

// The filter: text, and chips for parts of a hash and for a metric.
const input = h("input", {
  type: "text",
  "data-filter": true,
  "aria-label": "Filter runs",
  autocomplete: "off",
  spellcheck: "false",
  placeholder: PLACEHOLDER,
  maxlength: 200
});
const chips = h("span", { style: { display: "contents" } });
byId("filter").append(chips, input, h("kbd", {}, "/"));

function showFilter() {
  fill(
    chips,
    CHIPS.filter((key) => state[key]).map((key) =>
      h(
        "span",
        { class: "chip" },
        key === "metric" ? state[key] : `${key}:${state[key]}`,
        h(
          "button",
          {
            type: "button",
            "aria-label": `without ${key} ${state[key]}`,
            onclick: () => {
              go({ [key]: "" });
              input.focus();
            }
          },
          "×"
        )
      )
    )
  );
  input.placeholder = chips.childElementCount ? "" : PLACEHOLDER;
  if (document.activeElement !== input) input.value = state.q;
}

/** Takes words that are chips out of the text. */
function taken(text) {
  const found = {};
  const rest = text.split(/\s+/).filter((word) => {
    const part = PART.exec(word);
    if (part) found[part[1].toLowerCase()] = part[2].toLowerCase();
    else if (METRIC.test(word)) found.metric = word;
    else return true;
    return false;
  });
  return [rest.join(" "), found];
}

function commit(text) {
  const [rest, found] = taken(text);
  if (!Object.keys(found).length) return go({ q: text.trim() });
  input.value = rest;
  go({ ...found, q: rest });
}

const typed = settled(() => go({ q: taken(input.value)[0].trim() }, { replace: true }));
input.addEventListener("input", () => {
  if (/\s$/.test(input.value) && Object.keys(taken(input.value)[1]).length) commit(input.value);
  else typed();
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter") commit(input.value);
  else if (event.key === "Backspace" && input.value === "") {
    const last = CHIPS.findLast((key) => state[key]);
    if (last) go({ [last]: "" });
  }
});

// The table: rows stay while their content changes, so that focus and scroll stay too.
function show(answer) {
  byId("count").textContent = answer.total === 1 ? "1 run" : `${whole(answer.total)} runs`;
  byId("legend").hidden = !answer.metrics.length;
  if (!answer.runs.length) {
    shown = null;
    fill(list, nothing());
    return;
  }
  const columns = answer.metrics.slice(0, 4);
  if (!shown || columns.join("\n") !== metrics.join("\n")) {
    metrics = columns;
    shown = { body: h("tbody"), rows: new Map(), heads: h("tr"), pager: h("div") };
    fill(
      list,
      h(
        "div",
        { class: "box" },
        h("table", { class: "cards runs" }, h("thead", {}, shown.heads), shown.body)
      ),
      shown.pager
    );
  }
  refill(shown.heads, heads());
  const rows = answer.runs.map((run) => {
    const text = JSON.stringify(run);
    const known = shown.rows.get(run.run) ?? {
      row: h("tr", { tabindex: -1, "data-href": runHref(run.run), "data-run": run.run })
    };
    if (known.text !== text) update(known.row, run);
    return [run.run, { ...known, text }];
  });
  shown.rows = new Map(rows);
  const wanted = rows.map(([, { row }]) => row);
  if (
    wanted.some((row, at) => shown.body.children[at] !== row) ||
    shown.body.children.length !== wanted.length
  ) {
    const focused = document.activeElement;
    shown.body.replaceChildren(...wanted);
    if (focused !== document.body && focused.isConnected) focused.focus({ preventScroll: true });
  }
  refill(
    shown.pager,
    pager(answer, (page) => {
      go({ page });
      scrollTo(0, 0);
    })
  );
}

/** As `fill`, and whoever was on a button is on the one in its place. */
function refill(within, content) {
  const buttons = () => [...within.querySelectorAll("button")];
  const at = buttons().indexOf(document.activeElement);
  fill(within, content);
  if (at >= 0) buttons()[at]?.focus({ preventScroll: true });
}

function heads() {
  const head = (text, key, isNumber, isMetric = false) => {
    const up = state.sort === key,
      down = state.sort === `-${key}`;
    return h(
      "th",
      {
        class: isNumber ? "number" : key === "name" ? "names" : null,
        scope: "col",
        "aria-sort": up ? "ascending" : down ? "descending" : null
      },
      key
        ? h(
            "button",
            {
              type: "button",
              title: isMetric
                ? `${text}: at the best checkpoint, and at the latest; click sorts`
                : `sort by ${text.toLowerCase()}`,
              onclick: () => go({ sort: up ? `-${key}` : down ? "" : key })
            },
            text,
            up ? " ↑" : down ? " ↓" : ""
          )
        : text
    );
  };
  return [
    h("th", { class: "check" }),
    head("Name", "name"),
    head("Hash"),
    metrics.map((name) => head(name, ORDERS.includes(name) ? `metric:${name}` : name, true, true)),
    head("Checkpoints", "checkpoints", true),
    head("Last step", null, true),
    head("Saved", "time", true)
  ];
}

function update(row, run) {
  const box = h("input", {
    type: "checkbox",
    "aria-label": `choose ${run.name ?? run.run}`,
    checked: chosen.has(run.run),
    tabindex: -1,
    onchange: (event) => choose(run, event.target.checked)
  });
  const cell = (label, content, kind = "number") =>
    h("td", { class: kind, "data-label": label }, content);
  fill(
    row,
    h("td", { class: "check" }, box),
    h(
      "td",
      { class: "name", title: run.name ?? "no name" },
      h("span", {
        class: run.live ? "live" : "still",
        title: run.live ? "somebody writes into it now" : null,
        role: run.live ? "img" : null,
        "aria-label": run.live ? "live" : null
      }),
      h("a", { href: runHref(run.run), tabindex: -1 }, run.name ?? "—"),
      run.damaged ? [" ", h("span", { class: "mark bad" }, `${whole(run.damaged)} damaged`)] : null
    ),
    cell("", hash(run.run, { given: run, choose: (part, text) => go({ [part]: text }) }), "hashes"),
    metrics.map((name) => cell(name, metric(run, name))),
    cell("checkpoints", whole(run.checkpoints)),
    cell("last step", whole(run.last_step)),
    cell("saved", time(run.time ?? run.created))
  );
}

/** The best value, and the latest beside it where that is another; without a best, the latest. */
function metric(run, name) {
  const best = run.best?.metrics?.[name],
    last = run.latest?.metrics?.[name];
  if (best === undefined && last === undefined) return null;
  const latestTitle =
    last === undefined ? null : `at the latest checkpoint, step ${run.latest.step}`;
  if (best === undefined)
    return h("span", { class: "two" }, h("small"), h("span", { title: latestTitle }, number(last)));
  const isOther = last !== undefined && run.best.step !== run.latest.step;
  return h(
    "span",
    { class: "two" },
    h("small", { title: latestTitle }, isOther ? number(last) : ""),
    h("span", { title: `at the best checkpoint, step ${run.best.step}` }, number(best))
  );
}

function nothing() {
  if (CHIPS.some((key) => state[key]) || state.q || state.page > 1) {
    const box = empty("No run fits", "Nothing has this name, hash, hyperparameter or metric.");
    box.append(
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            input.value = "";
            go({ q: "", hp: "", model: "", data: "", metric: "" });
          }
        },
        "Show all runs"
      )
    );
    return box;
  }
  const place = (boot().store?.url ?? "runs").replace(/\/checkpoints$/, "");
  return empty(
    "No runs yet",
    "Save something into this store, and it appears here by itself:",
    `import standfast\n\nstate = standfast.TrainingState(model=model, optimizer=optimizer)\nwith standfast.Checkpointer(${JSON.stringify(place)}, state, name="first", every=100) as ckpt:\n    for step in ckpt.steps(1000):\n        loss = train_step(model, optimizer)\n        ckpt.step(step, loss=loss)`
  );
}

// Runs that were chosen.
function choose(run, isChosen) {
  if (isChosen) chosen.set(run.run, run);
  else chosen.delete(run.run);
  const runs = [...chosen.values()];
  const ref = (each) => (each.last_step === null ? each.run : `${each.run}@${each.last_step}`);
  const bar = byId("chosen");
  bar.hidden = !runs.length;
  // The older one is what is compared with.
  const ordered = [...runs].sort((a, b) => ((a.time ?? "") < (b.time ?? "") ? -1 : 1));
  fill(
    bar,
    h("span", {}, `${runs.length} chosen`),
    runs.length === 2 &&
      h(
        "a",
        { class: "button main", href: compareHref(ref(ordered[0]), ref(ordered[1])) },
        "Compare"
      ),
    runs.length > 1 &&
      h(
        "a",
        {
          class: "button",
          href: `${runHref(runs[0].run)}?with=${runs
            .slice(1)
            .map((each) => each.run)
            .join(",")}`
        },
        "Plot together"
      ),
    runs.length === 1 && h("span", { class: "dim" }, "choose another to compare"),
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": "choose none", onclick: clear },
      "×"
    )
  );
}

function clear() {
  chosen.clear();
  byId("chosen").hidden = true;
  for (const box of list.querySelectorAll("input:checked")) box.checked = false;
}

document.addEventListener("leave", clear);
document.addEventListener("changed", load);
addEventListener("popstate", () => {
  state = fromAddress();
  input.value = state.q;
  showFilter();
  load();
});

highlightEqual(list);
showFilter();
const first = boot().data;
if (first?.runs) show(first);
else {
  fill(list, skeleton(12));
  load();
}
