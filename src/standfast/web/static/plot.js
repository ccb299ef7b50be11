// Plots: plotly comes when the first is drawn, and each is drawn when it comes into view.

let loading = null;

function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = () => done(window.Plotly);
    script.onerror = () => {
      loading = null;
      script.remove();
      failed(new Error("plotly.js did not load"));
    };
    document.head.append(script);
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Colours for several runs on one plot; the first is the accent. */
export function runColour(at) {
  const dark = document.documentElement.dataset.theme === "dark";
  const light = [
    "#0f766e",
    "#c2410c",
    "#4f46e5",
    "#a16207",
    "#be185d",
    "#0369a1",
    "#4d7c0f",
    "#7e22ce"
  ];
  const bright = [
    "#4fc4b4",
    "#fb923c",
    "#a5b4fc",
    "#fcd34d",
    "#f9a8d4",
    "#7dd3fc",
    "#bef264",
    "#d8b4fe"
  ];
  return (dark ? bright : light)[at % 8];
}

/** The colours of the theme for what is measured from low to high. */
export function ramp() {
  const dark = document.documentElement.dataset.theme === "dark";
  return dark
    ? ["#12302d", "#1d5a54", "#2b8a80", "#5cc0a8", "#b7e6b5", "#fdf6c3"]
    : ["#fbf8dc", "#bfe3c0", "#6fc3ae", "#2f9489", "#1a6167", "#123a4a"];
}

export const scale = () => ramp().map((each, at, all) => [at / (all.length - 1), each]);

function axis(extra = {}) {
  return {
    gridcolor: colour("--line"),
    linecolor: colour("--line-strong"),
    zerolinecolor: colour("--line-strong"),
    tickfont: { size: 11, color: colour("--dim") },
    automargin: true,
    fixedrange: false,
    ...extra
  };
}

function layout(extra) {
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    uirevision: "kept", // what people have zoomed to stays when more is drawn
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
    margin: { l: 52, r: 12, t: 8, b: 30 },
    hovermode: "closest",
    dragmode: "zoom",
    hoverlabel: {
      bgcolor: colour("--raised"),
      bordercolor: colour("--line-strong"),
      font: { color: colour("--text"), size: 12 },
      align: "left"
    },
    xaxis: axis(xaxis),
    yaxis: axis(yaxis),
    ...rest
  };
}

const CONFIG = {
  displaylogo: false,
  responsive: true,
  displayModeBar: false,
  doubleClick: "reset",
  showTips: false
};

const drawn = new Map(); // element → how it is drawn
const inView = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) show(target);
  },
  { rootMargin: "200px" }
);

async function show(element) {
  inView.unobserve(element);
  const build = drawn.get(element);
  if (!build) return;
  try {
    const library = await plotly();
    forgetGone(library);
    if (!element.isConnected) return;
    const { data, layout: own = {}, click } = build();
    await library.react(element, data, layout(own), CONFIG);
    element.removeAttribute("aria-busy");
    element.removeAllListeners?.("plotly_click");
    if (click) element.on("plotly_click", (event) => click(event.points[0]));
  } catch (error) {
    element.textContent = error.message;
  }
}

/** Draws with what `build` gives, now or as soon as the element is seen, and again in another theme. */
export function draw(element, build) {
  const isThere = drawn.has(element) && element.data;
  drawn.set(element, build);
  element.setAttribute("aria-busy", "true");
  if (isThere) show(element);
  else inView.observe(element);
}

/** Lets go of plots that are on the page no more, and of all that plotly keeps for them. */
function forgetGone(library) {
  for (const element of drawn.keys())
    if (!element.isConnected) {
      library.purge(element);
      drawn.delete(element);
    }
}

document.addEventListener("theme", () => {
  for (const element of drawn.keys()) if (element.data) show(element);
});

/** Plotly reads some HTML in texts: names are shown as they are. */
export const asText = (text) =>
  String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Bars for a histogram. */
export function histogram({ edges: given, counts }, tint = "--accent") {
  const edges = given.map(Number); // large integers come as texts
  const middles = counts.map((_, at) => (edges[at] + edges[at + 1]) / 2);
  return {
    data: [
      {
        type: "bar",
        x: middles,
        y: counts,
        width: counts.map((_, at) => edges[at + 1] - edges[at]),
        marker: { color: colour(tint), line: { width: 0 } },
        customdata: counts.map((_, at) => [edges[at], edges[at + 1]]),
        hovertemplate:
          "%{customdata[0]:.4g} … %{customdata[1]:.4g}<br>%{y:,} elements<extra></extra>"
      }
    ],
    layout: {
      bargap: 0,
      margin: { l: 48, r: 8, t: 6, b: 26 },
      yaxis: { rangemode: "tozero", nticks: 4 },
      xaxis: { nticks: 6 }
    }
  };
}
