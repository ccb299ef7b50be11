// A picture of a tree of blocks: each with the mean of its field, and the outlines of levels.
import { get, latest } from "./api.js";
import { fill, h, wrong } from "./dom.js";
import { count, number, whole } from "./format.js";
import { draw, ramp, scale } from "./plot.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A colour between those of the ramp, as three numbers. */
function mixed(colours, share) {
  const at = Math.max(0, Math.min(1, share)) * (colours.length - 1);
  const [low, high] = [colours[Math.floor(at)], colours[Math.ceil(at)]];
  const part = at - Math.floor(at);
  const channel = (text, from) => Number.parseInt(text.slice(from, from + 2), 16);
  return `rgb(${[1, 3, 5].map((from) => Math.round(channel(low, from) * (1 - part) + channel(high, from) * part)).join(" ")})`;
}

/** The mesh of a checkpoint ({ref}) or a file ({path}). */
export function meshView(where) {
  const view = h(
    "div",
    { class: "panel", style: { "min-height": "420px" } },
    h("div", { class: "pad" }, h("div", { class: "skeleton" }))
  );
  const load = async () => {
    try {
      fill(view, ...picture(await get("mesh", where), where));
    } catch (error) {
      fill(view, h("div", { class: "pad" }, wrong(error, load)));
    }
  };
  load();
  return view;
}

function picture(found, where) {
  const { blocks, bounds, dims } = found;
  const lower = bounds.map(([low]) => low),
    upper = bounds.map(([, high]) => high);
  const levels = [...new Set(blocks.map((each) => each.level))].sort((a, b) => a - b);
  const canvas = h("canvas", {
    role: "img",
    "aria-label": `${count(blocks.length, "block")} in ${count(levels.length, "level")}`
  });
  const said = h(
    "div",
    { class: "dim", style: { "min-height": "96px", "font-size": "12.5px" } },
    "Move over a block; click to see its sites."
  );
  const sites = h("div", { class: "plot", style: { height: "300px" } });
  const ask = latest();
  // Beyond two dimensions, a plane through the others.
  const plane = Array.from({ length: dims }, (_, axis) => (lower[axis] + upper[axis]) / 2);
  let chosen = null,
    under = null;

  const cut = () =>
    blocks.filter((each) =>
      plane.every(
        (value, axis) =>
          axis < 2 || (each.origin[axis] <= value && value < each.origin[axis] + each.size[axis])
      )
    );
  const means = blocks
    .map((each) => each.mean)
    .filter((mean) => mean !== null && mean !== undefined);
  const least = means.reduce((a, b) => Math.min(a, b), Infinity),
    most = means.reduce((a, b) => Math.max(a, b), -Infinity);
  const valueOf = (each) => each.mean ?? null;
  const wide = upper[0] - lower[0] || 1,
    high = dims > 1 ? upper[1] - lower[1] || 1 : wide / 8;
  canvas.style.aspectRatio = Math.max(0.6, Math.min(4, wide / high));
  const place = () => {
    const factor = Math.min(canvas.width / wide, canvas.height / high);
    return {
      factor,
      left: (canvas.width - wide * factor) / 2,
      top: (canvas.height - high * factor) / 2
    };
  };
  const rectangle = (each, { factor, left, top }) => [
    left + (each.origin[0] - lower[0]) * factor,
    dims > 1 ? top + (upper[1] - each.origin[1] - each.size[1]) * factor : top,
    each.size[0] * factor,
    dims > 1 ? each.size[1] * factor : high * factor
  ];

  function paint() {
    const ratio = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * ratio),
      height = Math.round(canvas.clientHeight * ratio);
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height)
      Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    const frame = place(),
      colours = ramp();
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const each of cut().toSorted((a, b) => a.level - b.level)) {
      const [x, y, w, tall] = rectangle(each, frame);
      const value = valueOf(each);
      context.fillStyle =
        value === null
          ? colour("--line")
          : mixed(colours, most > least ? (value - least) / (most - least) : 0.5);
      context.fillRect(x, y, w, tall);
      if (w > 3) {
        context.strokeStyle =
          each === chosen || each === under
            ? colour("--text")
            : document.documentElement.dataset.theme === "dark"
              ? "rgb(255 255 255 / 22%)"
              : "rgb(20 30 30 / 40%)";
        context.lineWidth = each === chosen || each === under ? 2.5 * ratio : 0.6 * ratio;
        context.strokeRect(x + 0.5, y + 0.5, w - 1, tall - 1);
      }
    }
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) * canvas.width) / box.width,
      y = ((event.clientY - box.top) * canvas.height) / box.height;
    const frame = place();
    return (
      cut()
        .toSorted((a, b) => b.level - a.level)
        .find((each) => {
          const [left, top, w, tall] = rectangle(each, frame);
          return x >= left && x < left + w && y >= top && y < top + tall;
        }) ?? null
    );
  }

  const tell = (each) =>
    fill(
      said,
      each
        ? [
            h("b", {}, `Level ${each.level}`),
            h("div", {}, `origin ${each.origin.map((value) => number(value)).join(", ")}`),
            h(
              "div",
              {},
              `size ${number(each.size[0])}${found.ranks > 1 ? `, rank ${each.rank}` : ""}`
            ),
            h("div", {}, valueOf(each) === null ? "no mean" : `mean ${number(valueOf(each), 5)}`),
            typeof each.unitarity === "number"
              ? h("div", {}, `links off by ${number(each.unitarity, 2)}`)
              : null
          ]
        : "Move over a block; click to see its sites."
    );
  canvas.addEventListener("pointermove", (event) => {
    const found_ = at(event);
    if (found_ === under) return;
    under = found_;
    tell(under ?? chosen);
    paint();
  });
  canvas.addEventListener("pointerleave", () => {
    under = null;
    tell(chosen);
    paint();
  });
  async function choose(each) {
    chosen = each;
    tell(chosen);
    paint();
    if (!chosen) return;
    try {
      const answer = await ask("mesh/field", { ...where, block: chosen.block });
      const { values } = answer;
      draw(sites, () => ({
        data: [
          {
            type: "heatmap",
            z: values,
            colorscale: scale(),
            hovertemplate: "site %{x}, %{y}<br>%{z:.5g}<extra></extra>",
            colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10 }, nticks: 4 }
          }
        ],
        layout: {
          margin: { l: 24, r: 40, t: 8, b: 24 },
          xaxis: { showgrid: false, nticks: 4 },
          yaxis: { showgrid: false, nticks: 4 }
        }
      }));
    } catch (error) {
      if (error.name !== "AbortError") fill(said, wrong(error));
    }
  }
  canvas.addEventListener("click", (event) => choose(at(event)));
  // To begin with, where the most is.
  const first = cut()
    .filter((each) => valueOf(each) !== null)
    .reduce((a, b) => (a === null || valueOf(b) > valueOf(a) ? b : a), null);
  if (first) queueMicrotask(() => choose(first));

  const sliders = plane.slice(2).map((value, more) => {
    const axis = more + 2;
    const shown = h("output", { class: "dim" }, number(value, 3));
    return h(
      "label",
      {
        class: "dim",
        style: { display: "flex", gap: "8px", "align-items": "center", "font-size": "12px" }
      },
      `${"xyzt"[axis] ?? `axis ${axis}`} =`,
      h("input", {
        type: "range",
        min: lower[axis],
        max: upper[axis],
        step: (upper[axis] - lower[axis]) / 256,
        value,
        style: { flex: 1 },
        oninput: (event) => {
          plane[axis] = Math.min(
            Number(event.target.value),
            upper[axis] - (upper[axis] - lower[axis]) / 512
          );
          shown.textContent = number(plane[axis], 3);
          paint();
        }
      }),
      shown
    );
  });
  const strip = h("div", { class: "ramp" });
  const tint = () => {
    strip.style.background = `linear-gradient(90deg, ${ramp().join(", ")})`;
  };
  tint();
  document.addEventListener("theme", () => canvas.isConnected && (tint(), paint()));
  new ResizeObserver(paint).observe(canvas);
  const sum = (level) => blocks.filter((each) => each.level === level).length;
  const left = (found.blocks_total ?? blocks.length) - blocks.length;
  return [
    h(
      "div",
      { class: "mesh" },
      h("div", {}, canvas),
      h(
        "div",
        {},
        h(
          "h3",
          { style: { "margin-bottom": "6px" } },
          `Mean ${found.field?.of ?? "value"} of each block`
        ),
        strip,
        h(
          "div",
          { class: "ends" },
          h("span", {}, means.length ? number(least) : "—"),
          h("span", {}, means.length ? number(most) : "—")
        ),
        sliders,
        h(
          "table",
          { style: { "margin-bottom": "12px" } },
          h(
            "tbody",
            {},
            levels.map((level) =>
              h(
                "tr",
                {},
                h("td", { style: { padding: 0, height: "26px" } }, `Level ${level}`),
                h(
                  "td",
                  { class: "number", style: { padding: 0, height: "26px" } },
                  count(sum(level), "block")
                )
              )
            )
          )
        ),
        left > 0 ? h("p", { class: "dim" }, `${whole(left)} more blocks are not drawn.`) : null,
        said,
        sites
      )
    )
  ];
}
