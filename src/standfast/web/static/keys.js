// The keyboard: places, rows, the filter, and the list of keys.
import { h } from "./dom.js";

const PLACES = { r: "/", l: "/lineage", c: "/compare", s: "/storage", f: "/files" };
const KEYS = [
  ["/", "to the filter"],
  ["g r", "runs"],
  ["g l", "lineage"],
  ["g c", "compare"],
  ["g s", "storage"],
  ["g f", "files"],
  ["j k or ↓ ↑", "the next and the previous row"],
  ["Enter", "open it"],
  ["x", "choose a run, to compare or to plot"],
  ["→ ←", "open and close a group of tensors"],
  ["[ ]", "the previous and the next page of a list"],
  ["t", "light or dark"],
  ["Esc", "close, or leave the filter"],
  ["?", "this list"]
];
const ROWS = "tr[data-href], .branch[data-href], .row[tabindex]";

let waiting = 0;

const isTyping = (target) =>
  target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");

export function openRow(row, event) {
  if (!row?.dataset.href) return;
  if (event?.metaKey || event?.ctrlKey || event?.button === 1)
    window.open(row.dataset.href, "_blank", "noopener");
  else location.href = row.dataset.href;
}

function move(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.offsetParent !== null);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement.closest?.(ROWS));
  const next =
    rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function showKeys() {
  const dialog = h(
    "dialog",
    { "aria-label": "Keys" },
    h("h2", { style: { margin: 0 } }, "Keys"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([key, what]) => [
        h(
          "dt",
          {},
          key.split(" ").map((each) => (each === "or" ? " or " : [h("kbd", {}, each), " "]))
        ),
        h("dd", {}, what)
      ])
    ),
    h(
      "form",
      { method: "dialog", style: { "margin-top": "16px", "text-align": "right" } },
      h("button", {}, "Close")
    )
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

function pressed(event, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const { key, target } = event;
  if (isTyping(target)) {
    if (key === "Escape") target.blur();
    else if (key === "ArrowDown" && target.matches("[data-filter]")) move(1);
    else return;
    event.preventDefault();
    return;
  }
  const row = target.closest?.(ROWS);
  const isPlace = performance.now() - waiting < 1200 && key in PLACES;
  waiting = 0;
  if (isPlace) location.href = PLACES[key];
  else if (key === "g") waiting = performance.now();
  else if (key === "/") document.querySelector("[data-filter]")?.focus();
  else if (key === "?") showKeys();
  else if (key === "t") actions.theme();
  else if (key === "j" || key === "ArrowDown") move(1);
  else if (key === "k" || key === "ArrowUp") move(-1);
  else if (key === "[") document.querySelector('.pager [aria-label="Previous page"]')?.click();
  else if (key === "]") document.querySelector('.pager [aria-label="Next page"]')?.click();
  else if (key === "Enter" && target === row && row.dataset.href) openRow(row, event);
  else if (key === "x" && row) row.querySelector("input[type=checkbox]")?.click();
  else if (key === "Escape") document.dispatchEvent(new CustomEvent("leave"));
  else return;
  if (key !== "g") event.preventDefault();
}

/** Listens to keys, and to clicks on rows. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => pressed(event, actions));
  document.getElementById("help").addEventListener("click", showKeys);
  const clicked = (event) => {
    if (event.target.closest("a, button, input, label, select, summary")) return;
    if (getSelection()?.toString()) return;
    openRow(event.target.closest("[data-href]"), event);
  };
  document.addEventListener("click", clicked);
  document.addEventListener("auxclick", (event) => event.button === 1 && clicked(event));
}
