// All heads of a model at a glance: a thumbnail of each head's weights, a row for each layer.

import { h } from "../dom.js";
import { redrawn, sequence } from "./colours.js";

/**
 * Draw the thumbnails as buttons.
 * @param found {shape: [layers, heads, rows, columns], shades: base64 of numbers from 0 to 255,
 *   first: index of the first layer, 0 if unset; most: the weight of the darkest shade, 1 if unset}
 * @param open called with the layer and head that were clicked
 * @param nameOf gives the name of a head, where it has one
 */
export function headGrid(host, found, open, nameOf) {
  const shades = Uint8Array.from(atob(found.shades), (letter) => letter.charCodeAt(0));
  host.numbers = () => ({ title: "Attention weights of each head, in steps of 1/255; long texts are averaged to fit a thumbnail", columns: ["layer", "head", "row", "column", "weight"], rows: weightsOf(found.shape, shades, found.most ?? 1) });
  redrawn(host, () => {
    draw(host, found.shape, shades, open, found.first ?? 0);
    nameHeads(host, nameOf);
  });
}

/** [layer, head, row, column, weight] of every cell, all counted from 1. */
const weightsOf = ([, heads, rows, columns], shades, most) => Array.from(shades, (shade, i) => {
  const [column, row, head] = [i % columns, Math.floor(i / columns) % rows, Math.floor(i / (columns * rows)) % heads];
  return [Math.floor(i / (columns * rows * heads)) + 1, head + 1, row + 1, column + 1, (most * shade) / 255];
});

/** Say the names of heads, which may be measured after they are drawn. */
export function nameHeads(host, nameOf) {
  for (const each of host.querySelectorAll("[data-head]")) {
    const [layer, head] = [Number(each.dataset.layer), Number(each.dataset.head)];
    const name = nameOf(layer, head);
    const words = `Layer ${layer + 1}, head ${head + 1}${name ? `: ${name}` : ""}`;
    each.title = words;
    each.setAttribute("aria-label", words);
    each.classList.toggle("named", name !== undefined);
  }
}

/** Mark the heads of a layer that are open. */
export function markHead(host, layer, heads) {
  for (const each of host.querySelectorAll("[data-head]")) {
    each.setAttribute("aria-pressed", String(Number(each.dataset.layer) === layer && heads.includes(Number(each.dataset.head))));
  }
}

function draw(host, [layers, heads, rows, columns], shades, open, first) {
  const pressed = new Set([...host.querySelectorAll("[aria-pressed=true]")].map((each) => `${each.dataset.layer},${each.dataset.head}`));
  const focused = host.contains(document.activeElement) ? `${document.activeElement.dataset.layer},${document.activeElement.dataset.head}` : null;
  const colours = Array.from({ length: 256 }, (_, shade) => sequence(shade / 255));
  const cells = [];
  for (let layer = first; layer < first + layers; layer += 1) {
    cells.push(h("span", { class: "layer-name" }, String(layer + 1)));
    for (let head = 0; head < heads; head += 1) {
      const canvas = h("canvas", { width: columns, height: rows, "aria-hidden": "true" });
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(columns, rows);
      const from = ((layer - first) * heads + head) * rows * columns;
      for (let i = 0; i < rows * columns; i += 1) {
        image.data.set(colours[shades[from + i]], 4 * i);
        image.data[4 * i + 3] = 255;
      }
      pen.putImageData(image, 0, 0);
      const key = `${layer},${head}`;
      cells.push(h("button", {
        type: "button", class: "quiet thumb",
        "aria-pressed": String(pressed.has(key)), "data-layer": layer, "data-head": head, tabindex: cells.length === 1 ? "0" : "-1", onclick: () => open(layer, head),
      }, canvas));
    }
  }
  const grid = h("div", { class: "head-grid", role: "group", "aria-label": "Heads by layer" }, cells);
  grid.style.gridTemplateColumns = `1.2rem repeat(${heads}, minmax(0, 1fr))`;
  grid.addEventListener("keydown", (event) => {
    const at = event.target.closest("[data-head]");
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!at || !step) return;
    event.preventDefault();
    const next = grid.querySelector(`[data-layer="${Number(at.dataset.layer) + step[0]}"][data-head="${Number(at.dataset.head) + step[1]}"]`);
    if (!next) return;
    at.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  host.replaceChildren(grid);
  if (focused) grid.querySelector(`[data-layer="${focused.split(",")[0]}"][data-head="${focused.split(",")[1]}"]`)?.focus({ preventScroll: true });
}
