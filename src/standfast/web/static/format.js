// How numbers, sizes, times and hashes are written.
import { h } from "./dom.js";

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Bytes with a unit: 1.23 MB. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "—";
  let value = bytes,
    at = 0;
  while (Math.abs(value) >= 999.5 && at < UNITS.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at === 0 ? value : value.toPrecision(3)} ${UNITS[at]}`;
}

export const exactSize = (bytes) => `${whole(bytes)} bytes`;

/** 12,345 */
export const whole = (value) =>
  value === null || value === undefined ? "—" : value.toLocaleString("en");

export const count = (value, what) => `${whole(value)} ${what}${value === 1 ? "" : "s"}`;

/** A measured number, to four digits. */
export function number(value, digits = 4) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "—";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const magnitude = Math.abs(value);
  if (magnitude >= 0.1 && magnitude < 1e6)
    return value.toPrecision(Math.max(digits, Math.floor(Math.log10(magnitude)) + 1));
  if (magnitude >= 1e-3 && magnitude < 0.1) return value.toPrecision(digits - 1);
  return value.toExponential(digits - 2).replace(/\.?0*e\+?/, "e");
}

export const percent = (share) =>
  share > 0 && share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(1)}%`;

export const shape = (sizes) => (sizes.length ? sizes.join(" × ") : "scalar");

/** Any plain value on one line. */
export function plain(value, longest = 120) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "—");
  return text.length > longest ? `${text.slice(0, longest - 1)}…` : text;
}

const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [86400 * 60, 86400, "d"],
  [86400 * 730, 86400 * 30.4, "mo"],
  [Infinity, 86400 * 365, "y"]
];

export function age(text) {
  const seconds = (Date.now() - new Date(text).getTime()) / 1000;
  if (!Number.isFinite(seconds)) return "—";
  if (seconds < 5) return "now";
  const [, unit, name] = STEPS.find(([limit]) => seconds < limit);
  return `${Math.floor(seconds / unit)} ${name} ago`;
}

/** A time, relative; the exact one on hover. It is kept up to date by the shell. */
export function time(text) {
  if (!text) return "—";
  const exact = new Date(text);
  const title = Number.isNaN(exact.getTime())
    ? text
    : `${exact.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" })} (${text})`;
  return h("time", { datetime: text, title }, age(text));
}

/** A colour for each value of a part of a hash; the same part is always the same. */
export function hue(part) {
  let sum = 2166136261;
  for (const letter of part) sum = Math.imul(sum ^ letter.charCodeAt(0), 16777619);
  return HUES[((sum ^ (sum >>> 15)) >>> 0) % HUES.length];
}

const HUES = [4, 26, 46, 84, 140, 176, 200, 222, 258, 288, 322];
const PARTS = [
  ["hp", "hyperparameters"],
  ["model", "model"],
  ["data", "data"]
];

/** A run's hash in three coloured groups; with `choose` a click on one calls it. */
export function hash(run, { choose = null, apart = null, given = null } = {}) {
  return h(
    "span",
    { class: "hash", title: choose ? null : run },
    PARTS.map(([part, words], at) => {
      const text = run.slice(at * 8, at * 8 + 8);
      const isNone = text === "00000000" || (given !== null && given[part] === null);
      const properties = {
        class: isNone ? "none" : apart && apart.slice(at * 8, at * 8 + 8) !== text ? "other" : "",
        style: { "--hue": hue(text) },
        "data-part": `${part}:${text}`,
        title: isNone ? `no ${words} given` : `${words} ${text}`
      };
      if (!choose || isNone) return h("span", properties, text);
      return h(
        "button",
        {
          ...properties,
          type: "button",
          tabindex: -1,
          "aria-label": `only runs with ${words} ${text}`,
          onclick: (event) => {
            event.stopPropagation();
            choose(part, text);
          }
        },
        text
      );
    })
  );
}

/** Within an element, groups that equal the one under the pointer are outlined. */
export function highlightEqual(within) {
  const mark = (part) => {
    for (const each of within.querySelectorAll(".hash > .same")) each.classList.remove("same");
    if (part)
      for (const each of within.querySelectorAll(`.hash > [data-part="${CSS.escape(part)}"]`))
        each.classList.add("same");
  };
  within.addEventListener("pointerover", (event) =>
    mark(event.target.closest?.("[data-part]")?.dataset.part)
  );
  within.addEventListener("pointerleave", () => mark(null));
}

/** before → after */
export function change(pair) {
  const side = (key) => (key in pair ? plain(pair[key], 60) : "—");
  return h(
    "span",
    { class: "change" },
    h("s", {}, side("before")),
    " → ",
    h("b", {}, side("after"))
  );
}

const MARKS = {
  latest: ["▲ latest", "accent"],
  best: ["★ best", "accent"],
  damaged: ["damaged", "bad"]
};

export const mark = (name) => {
  const [text, kind] = MARKS[name] ?? [name, ""];
  return h("span", { class: `mark ${kind}` }, text);
};

/** Names and values in a compact list; what is nested by dots. */
export function pairs(values) {
  const found = [...flattened(values ?? {})];
  return h(
    "div",
    { class: "pairs" },
    found.map(([key, value]) =>
      h(
        "span",
        { class: "pair", title: `${key} = ${plain(value, 2000)}` },
        h("b", {}, key),
        h("span", {}, plain(value, 60))
      )
    )
  );
}

export function* flattened(values, prefix = "") {
  for (const [key, value] of Object.entries(values)) {
    const isFull =
      value !== null &&
      typeof value === "object" &&
      !Array.isArray(value) &&
      Object.keys(value).length;
    if (isFull) yield* flattened(value, `${prefix}${key}.`);
    else yield [`${prefix}${key}`, value];
  }
}

export const runHref = (run) => `/runs/${encodeURIComponent(run)}`;
export const checkpointHref = (run, step) => `/checkpoints/${encodeURIComponent(run)}/${step}`;
export const compareHref = (before, after) => `/compare?${new URLSearchParams({ before, after })}`;
