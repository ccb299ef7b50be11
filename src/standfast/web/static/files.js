// Files of any format that is known: folders, a file's content, a package.
import { get } from "./api.js";
import { boot, byId, empty, fill, h, pager, skeleton, tiles, wrong } from "./dom.js";
import { count, exactSize, flattened, number, plain, size, time, whole } from "./format.js";
import { meshView } from "./mesh.js";
import { tensorPanel } from "./tensor.js";
import { tensorTree } from "./tensors.js";

const within = byId("body");
const asked = () => {
  const query = new URLSearchParams(location.search);
  return { path: query.get("path") ?? "", page: Number(query.get("page")) || 1 };
};
const href = (path) => (path ? `/files?${new URLSearchParams({ path })}` : "/files");
const join = (...words) => words.filter(Boolean).join("/");

function crumbs(path) {
  const words = path.split("/").filter(Boolean);
  fill(
    byId("crumbs"),
    h("a", { href: "/files" }, boot().store?.files?.split("/").filter(Boolean).at(-1) ?? "files"),
    words.map((word, at) => [
      " / ",
      at + 1 < words.length
        ? h("a", { href: href(words.slice(0, at + 1).join("/")) }, word)
        : h("span", { style: { color: "var(--text)" } }, word)
    ])
  );
}

async function load() {
  const { path, page } = asked();
  crumbs(path);
  try {
    const found = await get("files", { path, page });
    if (found.folders) showFolder(found, path);
    else if (found.error) showError(found);
    else if (found.kind === "package") showPackage(found, path);
    else showFile(found, path);
  } catch (error) {
    fill(
      within,
      error.status === 403
        ? empty("No files are shown", error.message, "standfast ui STORE --files FOLDER")
        : wrong(error, load)
    );
  }
}

const ICONS = { folder: "▸", package: "◆", store: "◉" };

function showFolder(found, path) {
  const rows = [
    ...(found.folders ?? []).map((each) => ({ ...each, isFolder: true })),
    ...(found.files ?? [])
  ];
  if (!rows.length) {
    fill(within, empty("An empty folder", "There is nothing to show in it."));
    return;
  }
  const row = (each) => {
    const address = href(join(path, each.name));
    const isKnown = each.isFolder || each.format;
    return h(
      "tr",
      isKnown ? { tabindex: -1, "data-href": address } : {},
      h(
        "td",
        { class: "name wrap" },
        h(
          "span",
          {
            class: "dim",
            style: { display: "inline-block", width: "20px" },
            "aria-hidden": "true"
          },
          each.isFolder ? (ICONS[each.kind] ?? "▸") : isKnown ? "▤" : ""
        ),
        isKnown
          ? h("a", { href: address, tabindex: -1 }, each.name)
          : h("span", { class: "dim", style: { "font-weight": 400 } }, each.name)
      ),
      h(
        "td",
        { "data-label": "what" },
        each.isFolder
          ? each.kind === "folder"
            ? h("span", { class: "dim" }, "folder")
            : h("span", { class: "mark accent" }, each.kind)
          : each.format
            ? h("span", { class: "mark" }, each.format)
            : ""
      ),
      h("td", { class: "number", "data-label": "size" }, each.isFolder ? "" : size(each.bytes)),
      h("td", { class: "number", "data-label": "changed" }, each.time ? time(each.time) : "")
    );
  };
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
            h("th", {}, "Name"),
            h("th", {}, "What"),
            h("th", { class: "number" }, "Size"),
            h("th", { class: "number" }, "Changed")
          )
        ),
        h("tbody", {}, rows.map(row))
      )
    ),
    pager(found, (page) => {
      location.search = new URLSearchParams({ path, page }).toString();
    })
  );
}

function values(title, all, isOpen = false) {
  const lines = [...flattened(all ?? {})];
  if (!lines.length) return null;
  return [
    h("h2", {}, title),
    h(
      "details",
      {
        class: "panel pad",
        open: isOpen || lines.length <= 24
      },
      h("summary", {}, count(lines.length, "value")),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          lines
            .slice(0, 1000)
            .map(([key, value]) =>
              h(
                "tr",
                {},
                h("td", { class: "mono wrap", style: { width: "40%" } }, key),
                h("td", { class: "mono wrap" }, plain(value, 600))
              )
            )
        )
      )
    )
  ];
}

function showFile(found, path) {
  const beside = tensorPanel({ path });
  const elements = found.tensors.reduce(
    (sum, each) => sum + each.shape.reduce((a, b) => a * b, 1),
    0
  );
  fill(
    within,
    tiles([
      ["Format", found.format],
      ["Size", size(found.bytes), null, exactSize(found.bytes)],
      ["Tensors", whole(found.tensors.length)],
      ["Elements", number(elements), null, whole(elements)],
      [
        "Digests",
        found.digests ? "yes" : "none",
        null,
        found.digests ? "every byte can be verified" : "the format has none"
      ]
    ]),
    Object.keys(found.left_out ?? {}).length
      ? h(
          "p",
          { class: "dim", style: { margin: "10px 0 0" } },
          `Left out: ${Object.entries(found.left_out)
            .map(([key, what]) => `${key} (${what})`)
            .join(", ")}`
        )
      : null,
    found.tree
      ? [
          h("h2", {}, "Mesh"),
          found.tree.problems?.length
            ? wrong({ message: found.tree.problems.join("; ") })
            : meshView({ path })
        ]
      : null,
    h("h2", {}, "Tensors"),
    h("div", { class: "halves" }, tensorTree(found.tensors, { path }, beside.open), beside.panel),
    values("Metadata", found.metadata)
  );
}

/** A file that is damaged, or of no format that is known. */
function showError(found) {
  fill(
    within,
    tiles([
      found.format ? ["Format", found.format] : null,
      found.bytes === undefined ? null : ["Size", size(found.bytes)],
      ["Changed", time(found.time)]
    ]),
    h("p"),
    wrong(found.error, load)
  );
}

function showPackage(found, path) {
  fill(
    within,
    found.problem ? wrong({ message: found.problem }) : null,
    tiles([
      ["Package", found.name ?? path],
      ["Model", found.model_type ?? "—"],
      [
        "Parameters",
        typeof found.parameters === "number" ? millions(found.parameters) : "—",
        found.quantization ?? found.dtype ?? null
      ],
      ["Size", size(found.nbytes ?? found.bytes)],
      ["Made", time(found.creation_date ?? found.created)],
      [
        "Integrity",
        h(
          "span",
          {
            class: `mark ${found.integrity === "broken" ? "bad" : found.integrity === "whole" ? "good" : ""}`
          },
          found.integrity ?? "—"
        )
      ]
    ]),
    h("h2", {}, "Files"),
    h(
      "div",
      { class: "box" },
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          (found.files ?? []).map((name) =>
            h(
              "tr",
              { tabindex: -1, "data-href": href(join(path, name)) },
              h(
                "td",
                { class: "mono" },
                h("a", { href: href(join(path, name)), tabindex: -1 }, name)
              ),
              h("td", { class: "number" }, fileSize(found.sizes?.[name]))
            )
          )
        )
      )
    ),
    values("Configuration", found.config, true),
    values("Generation", found.generation_info),
    values("Where it came from", found.provenance)
  );
}

const fileSize = (bytes) =>
  bytes === null ? h("span", { class: "mark bad" }, "missing") : size(bytes);

const millions = (value) =>
  value >= 1e9
    ? `${number(value / 1e9, 3)} B`
    : value >= 1e6
      ? `${number(value / 1e6, 3)} M`
      : whole(value);

addEventListener("popstate", load);
fill(within, skeleton(10));
if (boot().store && boot().store.files === null)
  fill(
    within,
    empty(
      "No files are shown",
      "Start the dashboard with a folder, and its files show here: safetensors, PyTorch, NumPy, GGUF, meshes, packages and more.",
      "standfast ui STORE --files FOLDER"
    )
  );
else load();
