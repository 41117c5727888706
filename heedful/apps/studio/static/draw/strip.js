// A vector as a strip of coloured cells, small enough for a cell of a table.

import { h, number, s } from "../dom.js";
import { css, diverging, redrawn } from "./colours.js";

const [WIDTH, HEIGHT] = [104, 16];

/** The largest size among the numbers of some vectors, for strips that are compared. */
export const largest = (...vectors) => vectors.flat().reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);

const NEARLY_ALL = 0.97; // a few channels are far larger than all others, which a scale up to them would leave pale

/** A size below which nearly all numbers of some vectors lie. */
export function usual(...vectors) {
  const sizes = vectors.flat().map(Math.abs).sort((a, b) => a - b);
  return Math.max(1e-9, sizes[Math.floor(NEARLY_ALL * (sizes.length - 1))] ?? 0);
}

/** The strip: blue above zero, ochre below. */
export function strip(values, most = largest(values)) {
  const host = h("span", { class: "strip" });
  redrawn(host, () => host.replaceChildren(s("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${values.length} channels, from ${number(Math.min(...values), 3)} to ${number(Math.max(...values), 3)}` },
    values.map((value, i) => s("rect", { x: (i * WIDTH) / values.length, y: 0, width: WIDTH / values.length + 0.3, height: HEIGHT, fill: css(diverging(value / most)) })))));
  return host;
}
