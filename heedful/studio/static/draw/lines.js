// Lines over an axis, with the numbers under a pointer, a finger or the arrow keys.

import { folded, h, number, s, table } from "../dom.js";
import { extent, scale } from "./axes.js";
import { redrawn, series as colour } from "./colours.js";

const MARGIN = { right: 26, top: 12, bottom: 40 };
const DIGIT = 7; // pixels of a character of a tick

/**
 * Draw lines.
 * @param host where
 * @param chart {series: [{name, points: [[x, y]], colour, dashed, faint, dots}],
 *   x: {label, log, base}, y: {label, log, zero}, describe, height}
 */
export function lineChart(host, chart) {
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const all = chart.series.filter((each) => each.points.length > 0);
  if (all.length === 0) {
    host.replaceChildren(h("p", { class: "note" }, chart.empty ?? "There is nothing to draw yet."));
    return;
  }
  const width = Math.max(240, host.clientWidth);
  const height = chart.height ?? Math.min(340, Math.max(220, width * 0.45));
  const points = all.flatMap((each) => each.points)
    .filter(([x, y]) => (!chart.y.log || y > 0) && (!chart.x.log || x > 0));
  if (points.length === 0) {
    host.replaceChildren(h("p", { class: "note" }, "Nothing above 0 can be drawn on this axis."));
    return;
  }
  const reach = extent(points.map((point) => point[1]));
  if (chart.y.zero && !chart.y.log) reach[0] = Math.min(0, reach[0]);
  if (!chart.y.log) reach[1] += (reach[1] - reach[0]) * 0.04;
  const y = scale(reach, [height - MARGIN.bottom, MARGIN.top], { log: chart.y.log, most: 5 });
  // The title of the axis stands left of the longest tick, whatever its length.
  const left = Math.max(46, 32 + DIGIT * Math.max(...y.marks.map((mark) => y.text(mark).length)));
  const x = scale(extent(points.map((point) => point[0])), [left, width - MARGIN.right],
    { log: chart.x.log, base: chart.x.base ?? 10, most: width > 500 ? 7 : 4 });
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `${chart.describe} Arrow keys read the numbers.` });
  svg.append(...frame(x, y, { left, width, height }, chart));
  for (const [index, each] of all.entries()) svg.append(...line(each, each.colour ?? index, x, y, chart));
  const readout = h("p", { class: "readout", role: "status" });
  const cursor = s("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  svg.append(cursor);
  listen(svg, cursor, readout, all, x, chart, { left, width });
  host.replaceChildren(legend(all), svg, readout, folded("Numbers", () => numbers(all, chart)));
}

function frame(x, y, { left, width, height }, chart) {
  const parts = [];
  for (const mark of y.marks) {
    const at = y.at(mark);
    parts.push(s("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: at, y2: at }),
      s("text", { class: "tick", x: left - 8, y: at + 4, "text-anchor": "end" }, y.text(mark)));
  }
  for (const mark of x.marks) {
    const at = x.at(mark);
    parts.push(s("line", { class: "mark", x1: at, x2: at, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom + 5 }),
      s("text", { class: "tick", x: at, y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, x.text(mark)));
  }
  const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
  parts.push(
    s("line", { class: "axis", x1: left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom }),
    s("text", { class: "label", x: (left + width - MARGIN.right) / 2, y: height - 5, "text-anchor": "middle" }, chart.x.label),
    s("text", { class: "label", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" }, chart.y.label));
  return parts;
}

function line(each, index, x, y, chart) {
  const usable = each.points.filter(([px, py]) => (!chart.y.log || py > 0) && (!chart.x.log || px > 0));
  const path = usable.map(([px, py], i) => `${i ? "L" : "M"}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`).join("");
  const parts = [s("path", { class: `line${each.faint ? " faint" : ""}${each.dashed ? " dashed" : ""}`, d: path, stroke: colour(index) })];
  if (each.dots || usable.length === 1) {
    parts.push(...usable.map(([px, py]) => s("circle", { cx: x.at(px), cy: y.at(py), r: 3.5, fill: colour(index) })));
  }
  return parts;
}

function legend(all) {
  if (all.length < 2) return "";
  return h("ul", { class: "legend" }, all.map((each, index) => h("li", {},
    s("svg", { width: 22, height: 10, "aria-hidden": "true" },
      s("path", { class: `line${each.faint ? " faint" : ""}${each.dashed ? " dashed" : ""}`, d: "M0 5L22 5", stroke: colour(each.colour ?? index) })),
    each.name)));
}

function nearest(points, value) {
  let best = 0;
  for (let i = 1; i < points.length; i += 1) {
    if (Math.abs(points[i][0] - value) < Math.abs(points[best][0] - value)) best = i;
  }
  return best;
}

function listen(svg, cursor, readout, all, x, chart, { left, width }) {
  const longest = all.reduce((best, each) => (each.points.length > best.points.length ? each : best));
  let place = -1;
  const show = (index) => {
    place = Math.min(longest.points.length - 1, Math.max(0, index));
    const value = longest.points[place][0];
    const at = x.at(value);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", "visible");
    const found = all.map((each) => `${each.name} ${number(each.points[nearest(each.points, value)][1])}`);
    readout.textContent = `${chart.x.label} ${number(value)}: ${found.join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const share = (Math.min(width - MARGIN.right, Math.max(left, at)) - left) / (width - MARGIN.right - left);
    const value = chart.x.log ? x.low * (x.high / x.low) ** share : x.low + share * (x.high - x.low);
    show(nearest(longest.points, value));
  });
  svg.addEventListener("pointerleave", () => cursor.setAttribute("visibility", "hidden"));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(place < 0 ? 0 : place + step);
  });
}

function numbers(all, chart) {
  const steps = [...new Set(all.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  const shown = steps.filter((_, i) => i % Math.ceil(steps.length / 60) === 0);
  const rows = shown.map((value) => [number(value), ...all.map((each) => {
    const found = each.points.find((point) => point[0] === value);
    return found ? number(found[1]) : "";
  })]);
  return table(chart.describe, [chart.x.label, ...all.map((each) => each.name)], rows);
}
