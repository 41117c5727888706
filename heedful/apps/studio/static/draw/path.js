// Points in a plane, joined in their order: a curve that positions run along.

import { number, s } from "../dom.js";
import { extent } from "./axes.js";
import { css, redrawn, sequence } from "./colours.js";

/**
 * Draw points.
 * @param chart {points: [[x, y]], describe, name}
 */
export function pathChart(host, chart) {
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const size = Math.min(420, Math.max(240, host.clientWidth));
  const xs = extent(chart.points.map((point) => point[0]));
  const ys = extent(chart.points.map((point) => point[1]));
  const reach = Math.max(xs[1] - xs[0], ys[1] - ys[0]) || 1;
  const room = 26;
  const at = ([x, y]) => [
    size / 2 + ((x - (xs[0] + xs[1]) / 2) / reach) * (size - 2 * room),
    size / 2 - ((y - (ys[0] + ys[1]) / 2) / reach) * (size - 2 * room),
  ];
  const places = chart.points.map(at);
  const svg = s("svg", { width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": chart.describe });
  svg.append(s("rect", { class: "plate", x: 1, y: 1, width: size - 2, height: size - 2, rx: 6 }),
    s("path", { class: "thread", d: places.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") }));
  const last = Math.max(1, places.length - 1);
  const every = Math.max(1, Math.ceil(places.length / 8));
  places.forEach(([x, y], i) => {
    const dot = s("circle", { cx: x, cy: y, r: 4.5, fill: css(sequence(0.25 + (0.75 * i) / last)), class: "dot" });
    dot.append(s("title", {}, `${chart.name} ${i}: ${number(chart.points[i][0], 3)}, ${number(chart.points[i][1], 3)}`));
    svg.append(dot);
  });
  // Numbers stand outside the curve, and above all dots.
  for (let i = 0; i < places.length; i += every) {
    const [dx, dy] = places[i].map((value) => value - size / 2);
    const away = 14 / (Math.hypot(dx, dy) || 1);
    svg.append(s("text", { class: "tick", x: places[i][0] + away * dx, y: places[i][1] + away * dy + 4, "text-anchor": "middle" }, i));
  }
  host.replaceChildren(svg);
}
