// A penalty that grows with distance, a ramp for each head: from the query on the right back to far words.

import { number, s } from "../dom.js";
import { redrawn } from "./colours.js";
import { headColour } from "./links.js";

const [SMALLEST, GAP, TALL, WORDS] = [150, 22, 74, 40]; // pixels: the narrowest ramp, between two, its height, and the words below it

/**
 * Draw the ramps.
 * @param picture {heads: of each head the number added at distance 0, 1, … back, describe}
 */
export function ramps(host, picture) {
  host.numbers = () => ({
    title: picture.describe, columns: ["head", "distance back", "added to the score"],
    rows: picture.heads.flatMap((row, head) => row.map((value, distance) => [head + 1, distance, value])),
  });
  redrawn(host, () => draw(host, picture));
}

function draw(host, { heads, describe }) {
  const width = Math.max(240, host.clientWidth);
  const most = Math.max(1, Math.floor((width + GAP) / (SMALLEST + GAP)));
  const columns = Math.ceil(heads.length / Math.ceil(heads.length / most)); // rows of one length
  const wide = (width - GAP * (columns - 1)) / columns;
  const row = TALL + WORDS + 12;
  const lowest = Math.min(...heads.flat(), -1e-9);
  const height = Math.ceil(heads.length / columns) * row;
  host.replaceChildren(s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe }, heads.map((values, head) => {
    const colour = headColour(head, heads.length);
    const end = (values.at(-1) / lowest) * TALL;
    const [slope, back] = [-values[1], values.length - 1];
    const label = (y, words, looks = "tick", more = {}) => s("text", { class: looks, x: 0, y, ...more }, words);
    return s("g", { class: "penalty", transform: `translate(${(head % columns) * (wide + GAP)} ${Math.floor(head / columns) * row + 6})` },
      s("path", { d: `M${wide} 0H0V${end}Z`, style: { fill: colour, fillOpacity: 0.25, stroke: colour, strokeWidth: 2, strokeLinejoin: "round" } }),
      s("circle", { cx: wide - 4, cy: 0, r: 4, style: { fill: colour } }),
      // Under the high end of a ramp is room.
      label(TALL - 4, `${number(values.at(-1), 3)} at ${back} back`, "tick", { x: wide, "text-anchor": "end" }),
      label(TALL + 18, `Head ${head + 1}: −${number(slope, 2)} a word`, "tick strong", { style: { fill: colour } }),
      label(TALL + 34, `halves every ${number(Math.LN2 / slope, 2)} words`));
  })));
}
