// Matrices as tables: numbers to read, shaded by their size.

import { h, number } from "../dom.js";
import { css, diverging, ink, redrawn, sequence, series } from "./colours.js";

const SHADE = 0.55; // of the ramp, so that numbers stay easy to read

/**
 * A matrix with a caption.
 * @param matrix {values, caption, rowNames, columnNames, kind, hidden, highlight, digits, keys,
 *   colours}
 *   Names of rows have the colour of queries, those of columns that of keys; keys: rows are keys
 *   too; colours: numbers have the colour of their row, and no shade
 */
export function matrix(options) {
  const host = h("div", { class: "matrix" });
  redrawn(host, () => host.replaceChildren(draw(options)));
  return host;
}

function draw({ values, caption, rowNames, columnNames, kind = "diverging", hidden, highlight, digits = 3, keys = false, colours = false }) {
  const most = kind === "share" ? 1 : Math.max(...values.flat().map(Math.abs), 1e-12);
  const cell = (value, i, j) => {
    if (hidden?.[i]?.[j]) return h("td", { class: "hidden" }, h("span", { "aria-label": "hidden" }, "·"));
    if (colours) return h("td", { class: value === 0 ? "zero" : "tint-row", style: { color: series(i + (keys ? 1 : 0)) } }, number(value, digits));
    const shade = kind === "diverging" ? diverging((SHADE * value) / most) : sequence((SHADE * value) / most);
    const made = h("td", {}, number(value, digits));
    made.style.background = css(shade);
    made.style.color = ink(shade);
    return made;
  };
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: "cells" },
      h("caption", {}, caption, h("span", { class: "shape" }, ` ${values.length} × ${values[0].length}`)),
      columnNames ? h("thead", {}, h("tr", {}, h("td", {}), columnNames.map((name, j) => h("th", { scope: "col", style: { color: series(j + 1) } }, name)))) : "",
      h("tbody", {}, values.map((row, i) => h("tr", { class: i === highlight ? "chosen" : null },
        rowNames ? h("th", { scope: "row", style: { color: series(i + (keys ? 1 : 0)) } }, rowNames[i]) : "", row.map((value, j) => cell(value, i, j)))))));
}
