// One tensor: its numbers, a histogram, a heat map.
import { latest } from "./api.js";
import { fill, h, wrong } from "./dom.js";
import { exactSize, number, percent, shape, size, whole } from "./format.js";
import { draw, histogram, scale } from "./plot.js";

/** A place beside the tree, empty until a tensor is chosen. */
export function tensorPanel(where) {
  const panel = h(
    "aside",
    {
      class: "panel aside waiting",
      "aria-label": "The chosen tensor",
      "aria-live": "polite"
    },
    h(
      "div",
      { class: "empty" },
      h("h3", {}, "No tensor chosen"),
      "Choose one to see its distribution and a picture of it."
    )
  );
  const askSummary = latest(),
    askPicture = latest();

  async function open(tensor) {
    panel.className = "panel aside open";
    const stats = h(
      "div",
      { style: { "min-height": "118px" } },
      h("div", { class: "pad" }, h("div", { class: "skeleton", style: { width: "70%" } }))
    );
    const bars = h("div", { class: "plot" });
    const picture = h("div", { class: "plot square" });
    const controls = h("h4");
    fill(
      panel,
      title(
        tensor.name,
        `${tensor.dtype} ${shape(tensor.shape)}, ${size(tensor.bytes)}`,
        tensor.bytes,
        close
      ),
      stats,
      h("h4", {}, "Distribution"),
      bars,
      controls,
      picture
    );
    try {
      const found = await askSummary("tensor", { ...where, name: tensor.name });
      fill(stats, statistics(found));
      if (found.histogram?.counts?.length) draw(bars, () => histogram(found.histogram));
      else fill(bars, h("p", { class: "dim pad" }, "Nothing to count."));
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(
        stats,
        h(
          "div",
          { class: "pad" },
          wrong(error, () => open(tensor))
        )
      );
      return;
    }
    heat(
      tensor,
      controls,
      picture,
      tensor.shape.slice(0, -2).map(() => 0)
    );
  }

  async function heat(tensor, controls, picture, index) {
    const leading = tensor.shape.slice(0, -2);
    fill(
      controls,
      "Values",
      leading.length
        ? [
            " at ",
            leading.map((length, at) =>
              h("input", {
                type: "number",
                min: 0,
                max: length - 1,
                value: index[at],
                "aria-label": `index ${at}, below ${length}`,
                title: `0 … ${length - 1}`,
                onchange: (event) => {
                  const chosen = Math.max(0, Math.min(length - 1, Number(event.target.value) || 0));
                  heat(tensor, controls, picture, index.with(at, chosen));
                }
              })
            )
          ]
        : null
    );
    try {
      const found = await askPicture("tensor/heatmap", {
        ...where,
        name: tensor.name,
        rows: 128,
        columns: 128,
        index: index.length ? index.join(",") : null
      });
      if (found.reduced)
        controls.append(
          h(
            "span",
            { class: "dim" },
            `${found.reduced} of ${whole(found.rows)} × ${whole(found.columns)}`
          )
        );
      draw(picture, () => image(found));
    } catch (error) {
      if (error.name === "AbortError") return;
      const again = picture.cloneNode(); // what plotly has drawn in would not be drawn in again
      fill(
        again,
        h(
          "div",
          { class: "pad" },
          wrong(error, () => {
            fill(again);
            heat(tensor, controls, again, index);
          })
        )
      );
      picture.replaceWith(again);
    }
  }

  function close() {
    panel.className = "panel aside waiting";
    fill(
      panel,
      h(
        "div",
        { class: "empty" },
        h("h3", {}, "No tensor chosen"),
        "Choose one to see its distribution and a picture of it."
      )
    );
  }
  document.addEventListener("leave", () => panel.classList.contains("open") && close());
  return { panel, open };
}

export function title(name, beside, bytes, close) {
  return h(
    "div",
    { class: "title" },
    h(
      "h3",
      {},
      name,
      h(
        "div",
        {
          class: "dim",
          style: { font: "400 12px var(--sans)" },
          title: bytes === undefined ? null : exactSize(bytes)
        },
        beside
      )
    ),
    close &&
      h(
        "button",
        { type: "button", class: "quiet icon", "aria-label": "Close", onclick: close },
        "×"
      )
  );
}

/** What a summary says, in numbers. */
export function statistics(found) {
  const facts = [
    ["min", number(found.min)],
    ["max", number(found.max)],
    ["mean", number(found.mean)],
    ["std", number(found.std)],
    ["norm", number(found.norm)],
    ["zeros", share(found.zeros, found)],
    ["NaN", share(found.nan, found), found.nan > 0],
    ["infinite", share(found.inf, found), found.inf > 0]
  ];
  return [
    h(
      "dl",
      { class: "stats" },
      facts.map(([label, value, isBad]) =>
        h("div", {}, h("dt", {}, label), h("dd", { class: isBad ? "mark bad" : null }, value))
      )
    ),
    h(
      "p",
      { class: "dim", style: { margin: "0 16px 4px", "font-size": "12px" } },
      found.exact === false
        ? `from ${whole(found.seen)} of ${whole(found.elements)} elements, evenly spread`
        : `all ${whole(found.elements)} elements`
    )
  ];
}

function share(value, { seen, elements }) {
  if (!value) return "0";
  const all = seen || elements;
  return all ? `${whole(value)} (${percent(value / all)})` : whole(value);
}

function image({ values }) {
  const isLine = values.length === 1;
  return {
    data: [
      {
        type: "heatmap",
        z: values,
        colorscale: scale(),
        hoverongaps: false,
        xgap: 0,
        ygap: 0,
        hovertemplate: "row %{y}, column %{x}<br>%{z:.5g}<extra></extra>",
        colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10 }, nticks: 5, x: 1.01 }
      }
    ],
    layout: {
      margin: { l: 36, r: 46, t: 6, b: 26 },
      xaxis: { showgrid: false, zeroline: false, nticks: 5 },
      yaxis: {
        showgrid: false,
        zeroline: false,
        autorange: "reversed",
        nticks: 5,
        visible: !isLine
      }
    }
  };
}
