// One checkpoint: what it is, whether it is intact, and what is in it.
import { get, send } from "./api.js";
import { boot, byId, fill, h, skeleton, tiles, wrong } from "./dom.js";
import {
  checkpointHref,
  compareHref,
  count,
  exactSize,
  flattened,
  hash,
  mark,
  number,
  pairs,
  plain,
  runHref,
  size,
  time,
  whole
} from "./format.js";
import { meshView } from "./mesh.js";
import { tensorPanel } from "./tensor.js";
import { tensorTree } from "./tensors.js";

const [, , run, step] = location.pathname.split("/").map(decodeURIComponent);
const path = `checkpoints/${run}/${step}`;
const ref = `${run}@${step}`;

async function load() {
  try {
    const found = await get(path);
    showHead(found);
    showBody(found);
  } catch (error) {
    fill(
      byId("head"),
      h(
        "div",
        { class: "line" },
        h("h1", {}, `Step ${step}`),
        hash(run),
        h("a", { class: "button", href: runHref(run) }, "Its run")
      ),
      error.status === 422
        ? h(
            "p",
            {},
            h("span", { class: "mark bad" }, "damaged"),
            " What can be saved of it, ",
            h("code", {}, "standfast doctor"),
            " tells."
          )
        : null
    );
    fill(byId("body"), wrong(error, load));
  }
}

function showHead(found) {
  document.title = `${found.name ?? found.run.slice(0, 8)}@${found.step} · Standfast`;
  const verdict = found.retention?.checkpoint;
  const { parent } = found;
  fill(
    byId("head"),
    h(
      "div",
      { class: "line" },
      h(
        "h1",
        {},
        h("a", { href: runHref(found.run) }, found.name ?? "—"),
        h("span", { class: "dim" }, " @ "),
        whole(found.step)
      ),
      hash(found.run),
      badge(found),
      (found.marks ?? (found.best ? ["best"] : []))
        .filter((each) => !found.tags?.includes(each))
        .map(mark),
      h("span", { class: "grow" }),
      parent
        ? h(
            "a",
            { class: "button", href: compareHref(`${parent.run}@${parent.step}`, ref) },
            "Compare with its parent"
          )
        : null
    ),
    tiles([
      ...Object.entries(found.metrics ?? {})
        .slice(0, 4)
        .map(([name, value]) => [name, number(value), null, String(value)]),
      ["Size", size(found.nbytes), null, exactSize(found.nbytes)],
      ["Written for it", size(found.written), null, "what was there already was not written again"],
      found.epoch === null || found.epoch === undefined ? null : ["Epoch", whole(found.epoch)],
      ["Saved", time(found.time)],
      parent
        ? [
            "Parent",
            h(
              "a",
              { href: checkpointHref(parent.run, parent.step) },
              parent.run === found.run ? "" : `${parent.run.slice(0, 8)} `,
              `@ ${whole(parent.step)}`
            )
          ]
        : null
    ]),
    verdict
      ? h(
          "p",
          { class: "dim", style: { margin: "10px 0 0" } },
          verdict.keep ? "It stays: " : h("span", { class: "mark warn" }, "goes with the next gc"),
          verdict.why.join("; ")
        )
      : null
  );
}

const STATES = {
  verified: ["✓ verified", "good"],
  unverified: ["not verified yet", ""],
  damaged: ["damaged", "bad"]
};

function badge(found) {
  const { state = "unverified", problem = null } = found.integrity ?? {};
  const [text, kind] = STATES[state] ?? [state, ""];
  const shown = h(
    "span",
    {
      class: `mark ${kind}`,
      id: "integrity",
      title: problem ?? "every byte has a digest",
      "aria-live": "polite"
    },
    text
  );
  const button = h(
    "button",
    {
      type: "button",
      class: "small",
      onclick: async () => {
        button.disabled = true;
        fill(shown, "reading every byte …");
        shown.className = "mark";
        try {
          const answer = await send("POST", `${path}/verify`);
          shown.className = "mark good";
          fill(shown, `✓ intact, ${size(answer.bytes)} read`);
        } catch (error) {
          shown.className = "mark bad";
          shown.title = error.message;
          fill(shown, error.status === 422 ? "damaged" : "not verified");
          byId("head").append(wrong(error));
        }
        button.disabled = false;
      }
    },
    "Verify now"
  );
  return [shown, button];
}

function showBody(found) {
  const beside = tensorPanel({ ref });
  const problem = found.integrity?.problem;
  fill(
    byId("body"),
    problem ? wrong({ message: problem }) : null,
    found.tree ? [h("h2", {}, "Mesh"), meshView({ ref })] : null,
    h("h2", {}, "Tensors"),
    h(
      "div",
      { class: "halves" },
      tensorTree(found.tensors ?? [], { ref }, beside.open),
      beside.panel
    ),
    h(
      "div",
      { class: "sides" },
      h("section", {}, h("h2", {}, "What a resume brings back"), resume(found)),
      h("section", {}, h("h2", {}, "Tags and notes"), notes(found))
    ),
    Object.keys(found.hyperparameters ?? {}).length
      ? [
          h("h2", {}, "Hyperparameters"),
          h("div", { class: "panel pad" }, pairs(found.hyperparameters))
        ]
      : null,
    h("h2", {}, "Files"),
    files(found),
    h("h2", {}, "More"),
    h("div", { class: "panel pad" }, values(found), software(found), record())
  );
}

const KNOWN = {
  model: "the weights of the model",
  optimizer: "the state of the optimizer",
  scheduler: "the schedule of the learning rate",
  scaler: "the scale of mixed precision",
  random: "the random numbers: Python, NumPy, the framework, each device",
  loader: "the place in the data",
  ema: "the moving average of the weights",
  sampler: "the order of the samples",
  counters: "step and epoch"
};

const NO_PART = "no part";
/** What has no part is at the top of the state. */

/** The parts, by what their tensors and values say. */
function resume(found) {
  const parts = new Map(
    (found.parts ?? []).map((part) => [part ?? NO_PART, { tensors: 0, bytes: 0, values: 0 }])
  );
  const of = (name, given = name.split(".")[0]) => given ?? NO_PART;
  const at = (key) =>
    parts.get(key) ?? parts.set(key, { tensors: 0, bytes: 0, values: 0 }).get(key);
  for (const tensor of found.tensors ?? []) {
    const part = at(of(tensor.name, tensor.part));
    part.tensors += 1;
    part.bytes += tensor.bytes ?? 0;
  }
  for (const name of Object.keys(found.values ?? {})) at(of(name)).values += 1;
  for (const key of found.dropped ?? []) at(key).isGone = true;
  return h(
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
          h("th", {}, "Part"),
          h("th", { class: "number" }, "Tensors"),
          h("th", { class: "number" }, "Values"),
          h("th", { class: "number" }, "Size")
        )
      ),
      h(
        "tbody",
        {},
        [...parts].map(([key, part]) =>
          h(
            "tr",
            {},
            h(
              "td",
              { class: "wrap", title: KNOWN[key] ?? null },
              h("b", { style: { "font-weight": 550 } }, key),
              part.isGone
                ? [" ", h("span", { class: "mark warn" }, "deleted")]
                : KNOWN[key]
                  ? h("div", { class: "dim", style: { "font-size": "12px" } }, KNOWN[key])
                  : null
            ),
            h("td", { class: "number" }, part.tensors ? whole(part.tensors) : ""),
            h("td", { class: "number" }, part.values ? whole(part.values) : ""),
            h("td", { class: "number" }, part.bytes ? size(part.bytes) : "")
          )
        )
      )
    )
  );
}

function notes(found) {
  const canEdit = boot().store?.allow_edit;
  const act = (form, action) => async (event) => {
    event?.preventDefault();
    try {
      await action();
      const again = await get(path);
      section.replaceWith(notes(again));
    } catch (error) {
      section.append(wrong(error));
    }
  };
  const add = (label, action) => {
    const input = h("input", {
      type: "text",
      placeholder: label,
      "aria-label": label,
      maxlength: 2000
    });
    return h(
      "form",
      { class: "inline", onsubmit: act(null, () => action(input.value)) },
      input,
      h("button", {}, "Add")
    );
  };
  const tags = (found.tags ?? []).map((tag) =>
    h(
      "span",
      { class: "mark accent" },
      tag,
      canEdit
        ? h(
            "button",
            {
              type: "button",
              class: "quiet",
              style: { height: "16px", width: "16px", padding: 0 },
              "aria-label": `remove the tag ${tag}`,
              onclick: act(null, () => send("DELETE", `${path}/tags/${encodeURIComponent(tag)}`))
            },
            "×"
          )
        : null
    )
  );
  const section = h(
    "div",
    { class: "panel pad" },
    h(
      "div",
      {},
      tags.length
        ? tags
        : h("span", { class: "dim" }, "No tags. One with a tag is never deleted by a policy.")
    ),
    (found.notes ?? []).length
      ? h(
          "ul",
          { class: "notes" },
          found.notes.map((note) =>
            h(
              "li",
              {},
              h("span", { class: "text" }, note.text),
              " ",
              h("span", { class: "dim" }, time(note.time))
            )
          )
        )
      : h("p", { class: "dim", style: { margin: "8px 0 0" } }, "No notes."),
    canEdit
      ? [
          add("A tag", (tag) => send("POST", `${path}/tags`, { tag })),
          add("A note", (text) => send("POST", `${path}/notes`, { text }))
        ]
      : h(
          "p",
          { class: "dim", style: { margin: "8px 0 0", "font-size": "12px" } },
          "From here with ",
          h("code", {}, "standfast ui --allow-edit"),
          ", or by ",
          h("code", {}, "standfast tag"),
          " and ",
          h("code", {}, "note"),
          "."
        )
  );
  return section;
}

function files(found) {
  return h(
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
          h("th", {}, "File"),
          ["Size", "Held", "Used"].map((each) => h("th", { class: "number" }, each))
        )
      ),
      h(
        "tbody",
        {},
        (found.files ?? []).map((file) =>
          h(
            "tr",
            {},
            h("td", { class: "mono", title: file.digest ?? null }, file.name),
            [file.size, file.held, file.used].map((bytes) =>
              h("td", { class: "number" }, size(bytes))
            )
          )
        )
      )
    )
  );
}

function values(found) {
  const all = [...flattened(found.values ?? {})];
  if (!all.length) return null;
  const body = h("tbody");
  return h(
    "details",
    {
      ontoggle: () =>
        body.childElementCount ||
        fill(
          body,
          all
            .slice(0, 2000)
            .map(([key, value]) =>
              h(
                "tr",
                {},
                h("td", { class: "mono wrap" }, key),
                h("td", { class: "mono wrap" }, plain(value, 400))
              )
            )
        )
    },
    h("summary", {}, count(all.length, "plain value")),
    h(
      "div",
      { class: "box", style: { "max-height": "420px", overflow: "auto" } },
      h("table", {}, body)
    )
  );
}

const software = (found) =>
  Object.keys(found.software ?? {}).length
    ? h("details", {}, h("summary", {}, "Software that wrote it"), pairs(found.software))
    : null;

function record() {
  const text = h("pre", {}, "…");
  return h(
    "details",
    {
      ontoggle: async (event) => {
        if (!event.target.open || text.dataset.done) return;
        try {
          fill(text, JSON.stringify(await get(`${path}/record`), null, 2));
          text.dataset.done = "yes";
        } catch (error) {
          fill(text, error.message);
        }
      }
    },
    h("summary", {}, "The record"),
    text
  );
}

fill(byId("head"), skeleton(14, 32));
load();
