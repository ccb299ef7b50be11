// A run by typing a part of its name, and one of its steps.
import { get, latest } from "./api.js";
import { fill, h, settled } from "./dom.js";
import { age, hash, whole } from "./format.js";

/** Two fields; `chosen` is called with a reference whenever it is another. */
export function picker(label, reference, chosen) {
  const ask = latest();
  let runs = [],
    at = -1,
    run = "",
    listed = null;
  const id = `pick-${label.toLowerCase()}`;
  const options = h("ul", { class: "options", role: "listbox", id: `${id}-list`, hidden: true });
  const input = h("input", {
    type: "text",
    id,
    role: "combobox",
    "aria-expanded": "false",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
    placeholder: "Type a name or a hash",
    autocomplete: "off",
    spellcheck: "false"
  });
  const steps = h("select", {
    id: `${id}-step`,
    "aria-label": `${label}: step`,
    disabled: true,
    onchange: () => chosen(steps.value)
  });

  let isTyped = false;
  const typed = () => input.value.trim();

  function toggle(isOpen) {
    options.hidden = !isOpen;
    input.setAttribute("aria-expanded", String(isOpen));
  }

  const search = async (text) => {
    listed = text;
    try {
      runs = (await ask("runs", { q: text, per_page: 12 })).runs;
    } catch (error) {
      if (error.name === "AbortError") return;
      runs = [];
    }
    at = runs.length ? 0 : -1;
    show();
    toggle(document.activeElement === input);
  };

  function show() {
    fill(
      options,
      runs.length
        ? runs.map((each, number) =>
            h(
              "li",
              {
                role: "option",
                "aria-selected": String(number === at),
                onpointerdown: (event) => {
                  event.preventDefault();
                  choose(each);
                }
              },
              h("b", {}, each.name ?? "—"),
              hash(each.run),
              h("span", { class: "dim" }, age(each.time ?? each.created))
            )
          )
        : h("li", { class: "dim" }, "no run fits")
    );
  }

  async function choose(each) {
    toggle(false);
    await fillSteps(each.run, null, each.name);
    if (steps.value) chosen(steps.value);
  }

  /** Who types fast means what fits now, not what was listed before. */
  async function enter() {
    if (isTyped && listed !== typed()) await search(typed());
    if (runs[at]) choose(runs[at]);
  }

  async function fillSteps(wanted, step, name) {
    run = wanted;
    input.value = name ?? wanted;
    input.title = wanted;
    steps.disabled = true;
    try {
      const { checkpoints = [] } = await get(`runs/${wanted}/checkpoints`, { per_page: 200 });
      if (run !== wanted) return;
      const known = checkpoints.map((each) =>
        h(
          "option",
          { value: `${wanted}@${each.step}` },
          `${whole(each.step)}${each.marks?.length ? `  (${each.marks.join(", ")})` : ""}`
        )
      );
      if (step !== null && !checkpoints.some((each) => String(each.step) === String(step)))
        known.unshift(h("option", { value: `${wanted}@${step}` }, String(step)));
      fill(steps, known.length ? known : h("option", { value: wanted }, "no checkpoint"));
      if (step !== null) steps.value = `${wanted}@${step}`;
      steps.disabled = false;
    } catch {
      fill(steps, h("option", { value: reference }, step === null ? "—" : String(step)));
    }
  }

  const later = settled(() => listed !== typed() && search(typed()), 120);
  input.addEventListener("input", () => {
    isTyped = true;
    later();
  });
  input.addEventListener("focus", () => {
    isTyped = false;
    input.select();
    search("");
  });
  input.addEventListener("blur", () => toggle(false));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(runs.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      show();
      options.children[at]?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") enter();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    element: h(
      "div",
      { class: "side" },
      h("div", { style: { position: "relative" } }, h("label", { for: id }, label), input, options),
      h("div", {}, h("label", { for: `${id}-step` }, "Step"), steps)
    ),
    /** Shows what was compared: a run, its name and its step. */
    show: (found) => fillSteps(found.run, found.step ?? null, found.name),
    text: (value) => {
      input.value = value;
    }
  };
}
