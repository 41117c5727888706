// Bars side by side: a distribution.

import { folded, number, table } from "../dom.js";
import { axis, frame, leftOf, widthOf } from "./axes.js";
import { redrawn, series } from "./colours.js";
import { d3 } from "./d3.js";
import { readItems } from "./items.js";

export { facts } from "./facts.js";

const [HEIGHT, TOP, BOTTOM] = [204, 10, 38];

/**
 * Draw bars.
 * @param chart {values, names, colour, describe, most: the end of the axis, label: of the items}
 */
export function barChart(host, chart) {
  host.numbers = () => ({ title: chart.describe, columns: [chart.label ?? "", "value"], rows: chart.values.map((value, i) => [chart.names?.[i] ?? i + 1, value]) });
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const { values } = chart;
  const names = values.map((_, i) => String(chart.names?.[i] ?? i + 1));
  const width = Math.max(220, host.clientWidth);
  const bottom = HEIGHT - BOTTOM;
  const y = axis([0, chart.most ?? (d3.max(values) || 1)], [bottom, TOP], { room: 60 });
  const box = { width, height: HEIGHT, top: TOP, bottom, right: width - 4, left: leftOf(y, false) };
  const scale = d3.scaleBand(d3.range(values.length), [box.left, box.right]).padding(0.24);
  const every = Math.ceil((d3.max(names, (name) => widthOf(name)) + 8) / scale.step());
  const x = { scale, marks: scale.domain().filter((i) => i % every === 0), text: (i) => names[i] };
  const svg = d3.create("svg").attr("width", width).attr("height", HEIGHT).attr("viewBox", `0 0 ${width} ${HEIGHT}`)
    .attr("role", "img").attr("aria-label", `${chart.describe} Arrow keys read the numbers.`);
  frame(svg.append("g"), x, y, box, { x: chart.label });
  const bars = svg.append("g").selectAll("rect").data(values).join("rect")
    .attr("class", "bar").attr("fill", series(chart.colour ?? 0)).attr("x", (_, i) => scale(i)).attr("width", scale.bandwidth())
    .attr("y", (value) => y.scale(value)).attr("height", (value) => Math.max(0, bottom - y.scale(value)));
  const readout = readItems(svg, {
    count: values.length,
    nearest: ([at]) => Math.min(values.length - 1, Math.max(0, Math.floor((at - box.left) / scale.step()))),
    show(index) {
      bars.classed("read", (_, i) => i === index);
      return index === null ? "" : `${chart.label ?? ""} ${names[index]}: ${number(values[index])}`.trim();
    },
  });
  host.replaceChildren(svg.node(), readout, folded("Numbers", () =>
    table(chart.describe, [chart.label ?? "", "value"], values.map((value, i) => [names[i], number(value)]))));
}
