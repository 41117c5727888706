// Points in a plane, joined in their order: a curve that positions run along.

import { number, s } from "../dom.js";
import { extent } from "./axes.js";
import { css, redrawn, sequence } from "./colours.js";

const LABEL = { away: [14, 20, 27], sides: 16, free: 13.5 }; // pixels from its dot, directions, pixels to any dot

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
  const taken = [...places];
  const every = Math.max(1, Math.ceil(places.length / 8));
  places.forEach(([x, y], i) => {
    const dot = s("circle", { cx: x, cy: y, r: 4.5, fill: css(sequence(0.25 + (0.75 * i) / last)), class: "dot" });
    dot.append(s("title", {}, `${chart.name} ${i}: ${number(chart.points[i][0], 3)}, ${number(chart.points[i][1], 3)}`));
    svg.append(dot);
  });
  // Numbers stand on the side where nothing else does, above all dots.
  for (let i = 0; i < places.length; i += every) {
    const spots = LABEL.away.flatMap((away) => Array.from({ length: LABEL.sides }, (_, side) => (2 * Math.PI * side) / LABEL.sides)
      .map((angle) => [places[i][0] + away * Math.cos(angle), places[i][1] + away * Math.sin(angle)])).filter((spot) => spot.every((value) => value > 10 && value < size - 10));
    const rooms = spots.map(([x, y]) => taken.reduce((least, [a, b]) => Math.min(least, Math.hypot(a - x, b - y)), size));
    const most = Math.max(...rooms);
    const [x, y] = spots[rooms.findIndex((room) => room >= Math.min(LABEL.free, most))];
    taken.push([x, y]);
    svg.append(s("text", { class: "tick", x, y: y + 4, "text-anchor": "middle" }, i));
  }
  host.replaceChildren(svg);
}
