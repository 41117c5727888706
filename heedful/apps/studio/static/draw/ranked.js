// Named bars or dots, the largest first; the numbers stand beside them.

import { folded, number, table } from "../dom.js";
import { axis, widthOf } from "./axes.js";
import { redrawn, series } from "./colours.js";
import { d3 } from "./d3.js";
import { readItems } from "./items.js";

const [ROW, BELOW] = [24, 40];

/**
 * Draw the bars, from 0 to the right, or to the left for numbers below 0.
 * @param rows [{name, value, own: marked as the one to compare, colour: of its family (colours.js), if any, text: instead of the number}]
 * @param chart {label: of the axis, or none, kept: true for the rows in their order, reach: [low, high] of the axis at least, dots: draw dots on an axis that begins near the lowest number, describe}
 */
export function rankedBars(host, rows, chart) {
  host.numbers = () => ({ title: chart.describe, columns: ["", chart.label], rows: rows.map(({ name, value }) => [name, value]) });
  redrawn(host, () => draw(host, chart.kept ? rows : [...rows].sort((a, b) => b.value - a.value), chart));
}

const words = (row) => row.text ?? number(row.value);

function draw(host, rows, { label = "", reach = [], dots = false, describe }) {
  const width = Math.max(260, host.clientWidth);
  const bottom = rows.length * ROW + 4;
  const height = bottom + (label ? BELOW : BELOW / 2 + 4);
  const left = d3.max(rows, (row) => widthOf(row.name, { bold: row.own })) + 10;
  const right = width - d3.max(rows, (row) => widthOf(words(row), { bold: row.own })) - 12;
  const [low, high] = d3.extent([...rows.map((row) => row.value), ...reach]);
  const from = dots ? Math.floor(low - 0.1 * (high - low)) : Math.min(0, low);
  const x = axis([from, dots ? high + 0.04 * (high - low) : Math.max(0, high)], [left, right], { room: 48 });
  const y = d3.scaleBand(d3.range(rows.length), [2, bottom - 2]).padding(0.28);
  const svg = d3.create("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`)
    .attr("role", "img").attr("aria-label", `${describe} Arrow keys read the numbers.`);
  const frame = svg.append("g").attr("transform", `translate(0,${bottom})`)
    .call(d3.axisBottom(x.scale).tickValues(x.marks).tickFormat((mark) => number(mark)).tickSizeOuter(0).tickSizeInner(-bottom).tickPadding(8));
  frame.select(".domain").remove();
  frame.selectAll("line").attr("class", (mark) => (mark === 0 ? "axis" : "grid"));
  frame.selectAll("text").attr("class", "tick").attr("fill", null);
  const below = dots ? `${label} (the axis begins at ${from})` : label;
  svg.append("text").attr("class", "label").attr("text-anchor", "middle").attr("x", Math.min((left + right) / 2, width - widthOf(below) / 2 - 6)).attr("y", height - 4).text(below);
  const each = svg.append("g").selectAll("g").data(rows).join("g")
    .attr("class", (row) => (row.own ? "ranked-row own" : "ranked-row")).attr("data-value", (row) => row.value)
    .attr("transform", (_, i) => `translate(0,${y(i)})`);
  const middle = y.bandwidth() / 2 + 4;
  each.append("text").attr("class", "ranked-name").attr("x", left - 8).attr("y", middle).attr("text-anchor", "end").text((row) => row.name);
  if (dots) each.append("circle").attr("class", "bar").attr("cx", (row) => x.scale(row.value)).attr("cy", y.bandwidth() / 2).attr("r", 5.5);
  else each.append("rect").attr("class", "bar").attr("x", (row) => x.scale(Math.min(0, row.value)))
    .attr("width", (row) => Math.max(1, Math.abs(x.scale(row.value) - x.scale(0)))).attr("height", y.bandwidth());
  each.select(".bar").style("fill", (row) => (row.colour === undefined ? null : series(row.colour)));
  each.append("text").attr("class", "ranked-value").attr("x", right + 8).attr("y", middle).text(words);
  const readout = readItems(svg, {
    count: rows.length,
    nearest: ([, at]) => Math.min(rows.length - 1, Math.max(0, Math.floor(at / y.step()))),
    show(index) {
      each.classed("read", (_, i) => i === index);
      return index === null ? "" : `${rows[index].name}: ${words(rows[index])}`;
    },
  });
  host.replaceChildren(svg.node(), readout, folded("Numbers", () => table(describe, ["", label], rows.map((row) => [row.name, words(row)]))));
}
