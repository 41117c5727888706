// Curves over positions of which training has seen only the first: the rest is shaded.

import { folded, number, s, table } from "../dom.js";
import { axis, extent } from "./axes.js";
import { redrawn, series as colour } from "./colours.js";

const HEIGHT = 230;
const MARGIN = { left: 56, right: 14, top: 20, bottom: 38 };
const ROOM = 1.12; // so that no curve lies on the frame
const ROWS = 40; // of the table

/**
 * Draw curves.
 * @param chart {series: [{name, colour, points: [[x, y]]}], trained: the first x that training has not seen, last: the
 *   last x, reach: the last x that scaling brings back, or null, x and y: labels, describe}
 */
export function beyondChart(host, chart) {
  redrawn(host, () => draw(host, chart));
}

function draw(host, { series, trained, last, reach: end, x: across, y: up, describe }) {
  const width = Math.max(240, host.clientWidth);
  const [bottom, right] = [HEIGHT - MARGIN.bottom, width - MARGIN.right];
  const reach = extent(series.flatMap((each) => each.points.map((point) => point[1])));
  const x = axis([0, last], [MARGIN.left, right]);
  const y = axis([Math.min(0, ROOM * reach[0]), Math.max(0, ROOM * reach[1])], [bottom, MARGIN.top], { room: 40 });
  const svg = s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${describe} Past ${trained}, training has seen nothing.` });
  const edge = Math.min(right, x.scale(trained));
  svg.append(s("rect", { class: "unseen-part", x: edge, y: MARGIN.top, width: Math.max(0, right - edge), height: bottom - MARGIN.top }),
    s("text", { class: "tick", x: Math.min(edge + 6, right - 150), y: 13 }, "never seen in training →"));
  if (end && end < last) {
    const at = x.scale(end);
    svg.append(s("line", { class: "axis reach", x1: at, x2: at, y1: MARGIN.top, y2: bottom }),
      s("text", { class: "tick", x: at - 6, y: MARGIN.top + 16, "text-anchor": "end" }, `scaling reaches ${number(end)} →|`));
  }
  for (const mark of y.marks) {
    svg.append(s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y.scale(mark), y2: y.scale(mark) }),
      s("text", { class: "tick", x: MARGIN.left - 6, y: y.scale(mark) + 4, "text-anchor": "end" }, y.text(mark)));
  }
  for (const mark of x.marks) svg.append(s("text", { class: "tick", x: x.scale(mark), y: bottom + 16, "text-anchor": "middle" }, x.text(mark)));
  for (const each of series) {
    svg.append(s("path", { class: "line", stroke: colour(each.colour ?? 0), d: each.points.map(([px, py], i) => `${i ? "L" : "M"}${x.scale(px).toFixed(1)} ${y.scale(py).toFixed(1)}`).join("") }));
  }
  svg.append(s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
    s("text", { class: "label", x: (MARGIN.left + right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, across),
    s("text", { class: "label", transform: `translate(13 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, up));
  const points = series[0].points;
  const every = Math.ceil(points.length / ROWS);
  host.replaceChildren(svg, folded("Numbers", () => table(describe, [across, ...series.map((each) => each.name)],
    points.map((point, i) => [number(point[0]), ...series.map((each) => number(each.points[i]?.[1] ?? null))]).filter((_, i) => i % every === 0))));
}
