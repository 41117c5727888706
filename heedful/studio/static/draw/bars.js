// Bars side by side: a distribution.

import { h, number, s } from "../dom.js";
import { redrawn, series } from "./colours.js";

/**
 * Draw bars.
 * @param chart {values, names, colour, describe, most, label}
 */
export function barChart(host, chart) {
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const width = Math.max(220, host.clientWidth);
  const [height, left, bottom, top] = [200, 40, 34, 10];
  const most = chart.most ?? Math.max(...chart.values);
  const each = (width - left - 4) / chart.values.length;
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.describe });
  for (const mark of [0, most / 2, most]) {
    svg.append(s("line", { class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark) }),
      s("text", { class: "tick", x: left - 6, y: y(mark) + 4, "text-anchor": "end" }, number(mark, 2)));
  }
  chart.values.forEach((value, i) => {
    const bar = s("rect", { class: "bar", x: left + i * each + each * 0.12, width: each * 0.76, y: y(value),
      height: Math.max(0, height - bottom - y(value)), fill: series(chart.colour ?? 0) });
    bar.append(s("title", {}, `${chart.names?.[i] ?? i + 1}: ${number(value)}`));
    svg.append(bar);
    const skip = Math.ceil(22 / each);
    if (i % skip === 0) {
      svg.append(s("text", { class: "tick", x: left + (i + 0.5) * each, y: height - bottom + 16, "text-anchor": "middle" }, chart.names?.[i] ?? i + 1));
    }
  });
  svg.append(s("text", { class: "label", x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, chart.label ?? ""));
  host.replaceChildren(svg);
}

/** Numbers with names, in a row. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value, key]) =>
    h("div", {}, h("dt", {}, name), h("dd", { "data-fact": key ?? null }, value))));
