// The curves of one run or several: one small plot for each metric, checkpoints on the same axis.
import { get } from "./api.js";
import { empty, fill, h, settled, wrong } from "./dom.js";
import { checkpointHref, number, runHref, whole } from "./format.js";
import { asText, draw, runColour } from "./plot.js";

const SYMBOLS = [
  ["best", "star", 11, "★ best"],
  ["latest", "triangle-up", 10, "▲ latest"]
];

/** Follows values as a moving mean does that forgets; `weight` 0 changes nothing. */
export function smoothed(values, weight) {
  let mean = 0,
    sum = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = mean * weight + value * (1 - weight);
    sum = sum * weight + (1 - weight);
    return mean / sum;
  });
}

/** Draws into `within`, with its switches in `tools`; `runs` gives the hashes. */
export function curves(tools, within, runs) {
  let found = [];
  let isLog = false,
    weight = 0;
  const plots = new Map();

  const press = (log) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(log === isLog),
        onclick: () => {
          isLog = log;
          showTools();
          show();
        }
      },
      log ? "Log" : "Linear"
    );
  const legend = h("span", { class: "legend" });
  const amount = h(
    "output",
    { class: "dim", style: { width: "34px", display: "inline-block" } },
    "0"
  );
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: 0,
    "aria-label": "Smoothing",
    oninput: () => {
      weight = Number(slider.value);
      amount.textContent = weight ? weight.toFixed(2) : "0";
      later();
    }
  });
  const later = settled(() => show(), 60);
  const switches = h("span", { class: "switch", role: "group", "aria-label": "Scale" });
  fill(
    tools,
    h("h2", { style: { margin: 0 } }, "Metrics"),
    switches,
    h(
      "label",
      { class: "dim", style: { display: "inline-flex", "align-items": "center", gap: "8px" } },
      "Smoothing",
      slider,
      amount
    ),
    legend
  );
  const showTools = () => fill(switches, press(false), press(true));
  showTools();
  fill(
    within,
    [0, 1].map(() =>
      h(
        "div",
        { class: "curve" },
        h("div", { class: "skeleton", style: { width: "30%", margin: "3px 8px" } }),
        h("div", { class: "plot" })
      )
    )
  );

  async function load() {
    try {
      const answers = await Promise.all(
        runs().map(async (run, at) => {
          const [curve, about] = await Promise.all([
            get(`runs/${run}/metrics`),
            runs().length > 1 ? get(`runs/${run}`) : null
          ]);
          return { run, at, name: about?.name ?? run.slice(0, 8), ...curve };
        })
      );
      found = answers;
      showLegend();
      show();
    } catch (error) {
      plots.clear();
      fill(within, h("div", { style: { "grid-column": "1 / -1" } }, wrong(error, load)));
    }
  }

  function showLegend() {
    fill(
      legend,
      found.length > 1 &&
        found.map((each) =>
          h(
            "a",
            { href: runHref(each.run) },
            h("span", {
              class: "swatch",
              "data-colour": each.at,
              style: { background: runColour(each.at) }
            }),
            each.name
          )
        )
    );
  }
  document.addEventListener("theme", showLegend);

  function show() {
    const names = [...new Set(found.flatMap((each) => Object.keys(each.metrics)))];
    if (!names.length) {
      plots.clear();
      fill(
        within,
        h(
          "div",
          { style: { "grid-column": "1 / -1" } },
          empty(
            "No metrics yet",
            "Give them with the step, and they are drawn here while training goes on:",
            "ckpt.step(step, loss=loss, accuracy=accuracy)"
          )
        )
      );
      return;
    }
    if (names.join("\n") !== [...plots.keys()].join("\n")) {
      plots.clear();
      fill(
        within,
        names.map((name) => {
          const plot = h("div", { class: "plot", role: "img", "aria-label": `${name} over steps` });
          const last = h("span", { class: "dim" });
          plots.set(name, { plot, last });
          return h(
            "div",
            { class: names.length === 1 ? "curve single" : "curve" },
            h("h3", {}, h("span", {}, name), last),
            plot
          );
        })
      );
    }
    for (const [name, { plot, last }] of plots) {
      const values = found[0]?.metrics[name]?.values ?? [];
      last.textContent = values.length ? number(values.at(-1)) : "";
      draw(plot, () => build(name));
    }
  }

  function build(name) {
    const data = [];
    for (const each of found) {
      const curve = each.metrics[name];
      if (!curve) continue;
      const colour = runColour(each.at);
      const label = found.length > 1 ? `${asText(each.name)}<br>` : "";
      const line = (values, extra) => ({
        type: "scatter",
        mode: curve.steps.length < 3 ? "lines+markers" : "lines",
        x: curve.steps,
        y: values,
        line: { color: colour, width: curve.steps.length > 600 ? 1.1 : 1.6 },
        marker: { size: 4, color: colour },
        text: label,
        hovertemplate: "%{text}step %{x:,}<br>%{y:.5g}<extra></extra>",
        ...extra
      });
      if (weight)
        data.push(line(curve.values, { opacity: 0.25, hoverinfo: "skip", hovertemplate: null }));
      data.push(line(weight ? smoothed(curve.means ?? curve.values, weight) : curve.values));
      data.push(marks(each, colour, label));
    }
    return {
      data,
      layout: {
        xaxis: { title: null, tickformat: "~s", anchor: "y2", showgrid: false, zeroline: false },
        yaxis: {
          type: isLog ? "log" : "linear",
          uirevision: String(isLog),
          domain: [0.13, 1],
          nticks: 5,
          zeroline: false,
          exponentformat: "power"
        },
        yaxis2: {
          domain: [0, 0.07],
          range: [-0.5, Math.max(0.5, found.length - 0.5)],
          visible: false,
          fixedrange: true
        },
        margin: { l: 48, r: 14, t: 8, b: 28 }
      },
      click: (point) => {
        if (point.data.meta === "checkpoints")
          location.href = checkpointHref(point.customdata[0], point.x);
      }
    };
  }

  /** The checkpoints of a run, in a line of their own under the curve. */
  function marks(each, colour, label) {
    const points = each.checkpoints.map(({ step, marks: names = [], why = [] }) => {
      const isBoth = names.includes("best") && names.includes("latest");
      const known = isBoth
        ? ["", "star-triangle-up", 11]
        : SYMBOLS.find(([name]) => names.includes(name));
      const tags = names.filter((name) => name !== "best" && name !== "latest");
      const title = [
        `checkpoint ${whole(step)}`,
        ...SYMBOLS.filter(([name]) => names.includes(name)).map(([, , , text]) => text),
        ...tags
      ].join(" · ");
      const reasons = (Array.isArray(why) ? why : [why]).filter(Boolean).join("; ");
      return {
        step,
        symbol: known?.[1] ?? (tags.length ? "diamond" : "line-ns-open"),
        size: known?.[2] ?? (tags.length ? 9 : 7),
        text: `${label}${asText(title)}${reasons ? `<br>${asText(reasons)}` : ""}<br>click to open`
      };
    });
    return {
      type: "scatter",
      mode: "markers",
      meta: "checkpoints",
      yaxis: "y2",
      cliponaxis: false,
      x: points.map((point) => point.step),
      y: points.map(() => found.length - 1 - each.at),
      text: points.map((point) => point.text),
      customdata: points.map(() => [each.run]),
      hovertemplate: "%{text}<extra></extra>",
      marker: {
        opacity: 1,
        symbol: points.map((point) => point.symbol),
        size: points.map((point) => point.size),
        color: colour,
        line: { width: 1.4, color: colour }
      }
    };
  }

  return { load };
}
