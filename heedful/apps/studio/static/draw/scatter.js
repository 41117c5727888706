// Named dots over two axes, and the line of those that no other beats in both.

import { folded, h, number, table } from "../dom.js";
import { axis, extent, frame, leftOf, widthOf } from "./axes.js";
import { redrawn, series } from "./colours.js";
import { d3 } from "./d3.js";
import { readItems } from "./items.js";

const [TOP, BOTTOM, RIGHT, LINE, DOT] = [14, 40, 16, 15, 5];

/**
 * Draw dots.
 * @param chart {points: [{name, x, y, own: marked, open: a ring, group: number of its colour}], x: {label, log, text}, y: {label},
 *   describe, best: a name for the line of those that are highest for what lies left of them}
 */
export function scatterChart(host, chart) {
  host.numbers = () => ({ title: chart.describe, columns: ["", chart.x.label, chart.y.label], rows: chart.points.map(({ name, x, y }) => [name, x, y]) });
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const { points } = chart;
  const width = Math.max(260, host.clientWidth);
  const height = chart.height ?? Math.min(440, Math.max(340, width * 0.62));
  const wider = (values, share) => ([low, high]) => (share === null ? [low / 1.6, high * 1.6] : [low - (high - low) * share, high + (high - low) * share]);
  const y = axis(wider(points, 0.08)(extent(points.map((each) => each.y))), [height - BOTTOM, TOP], { room: 44 });
  const box = { width, height, top: TOP, bottom: height - BOTTOM, left: leftOf(y), right: width - RIGHT };
  const x = axis(wider(points, chart.x.log ? null : 0.08)(extent(points.map((each) => each.x))), [box.left, box.right], { log: chart.x.log, room: 64 });
  const svg = d3.create("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`)
    .attr("role", "img").attr("aria-label", `${chart.describe} Arrow keys read the numbers.`);
  frame(svg.append("g"), x, y, box, { x: chart.x.label, y: chart.y.label });
  const placed = points.map((each) => ({ ...each, at: [x.scale(each.x), y.scale(each.y)] })).sort((a, b) => a.x - b.x);
  const corners = [];
  if (chart.best) {
    const front = placed.filter((each) => !placed.some((other) => (other.x < each.x && other.y >= each.y) || (other.x === each.x && other.y > each.y)));
    corners.push(...front.map(({ at }) => at), [box.right, front.at(-1).at[1]]);
    svg.append("path").attr("class", "front").attr("d", d3.line().curve(d3.curveStepAfter)(corners));
  }
  const dots = svg.append("g").selectAll("circle").data(placed).join("circle")
    .attr("class", (each) => `spot${each.own ? " own" : ""}${each.open ? " open" : ""}`).attr("r", DOT)
    .attr("cx", ({ at }) => at[0]).attr("cy", ({ at }) => at[1]).style("fill", ({ group }) => (group === undefined ? null : series(group)))
    .style("stroke", ({ group }) => (group === undefined ? null : series(group)));
  svg.append("g").selectAll("text").data(labels(placed, box, corners)).join("text").attr("class", ({ own }) => (own ? "spot-name own" : "spot-name"))
    .attr("x", (each) => each.left).attr("y", (each) => each.top + LINE - 3).text((each) => each.name);
  const value = (each) => (chart.x.text ?? number)(each.x);
  const readout = readItems(svg, {
    count: placed.length,
    nearest: (place) => d3.minIndex(placed, ({ at }) => Math.hypot(at[0] - place[0], at[1] - place[1])),
    show(index) {
      dots.classed("read", (_, i) => i === index);
      if (index === null) return "";
      const each = placed[index];
      return `${each.name}: ${chart.y.label} ${number(each.y)}, ${chart.x.label} ${value(each)}`;
    },
  });
  host.replaceChildren(chart.best ? h("ul", { class: "legend" }, h("li", {}, h("span", { class: "front-sign" }), chart.best)) : "",
    svg.node(), readout, folded("Numbers", () => table(chart.describe, ["", chart.y.label, chart.x.label], placed.map((each) => [each.name, number(each.y), value(each)]))));
}

/**
 * A place for each name beside its dot where it covers no other name and no dot, and no line if it can;
 * a name for which there is none is left to the pointer. Those that are marked choose first.
 */
function labels(placed, box, corners) {
  const taken = placed.map(({ at: [cx, cy] }) => ({ left: cx - DOT - 1, right: cx + DOT + 1, top: cy - DOT - 1, bottom: cy + DOT + 1 }));
  const lines = d3.pairs(corners, ([x1, y1], [x2, y2]) => [{ left: x1, right: x2, top: y1 - 1, bottom: y1 + 1 }, { left: x2 - 1, right: x2 + 1, top: Math.min(y1, y2), bottom: Math.max(y1, y2) }]).flat();
  const crosses = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
  const found = [];
  for (const each of [...placed].sort((a, b) => (b.own ?? false) - (a.own ?? false))) {
    const [cx, cy] = each.at;
    const wide = widthOf(each.name, { bold: each.own });
    const along = Math.max(box.left + 1, Math.min(cx - wide / 2, box.width - wide - 1)); // above or below
    const right = [cx + 8, cy - LINE / 2];
    const left = [cx - 8 - wide, cy - LINE / 2];
    const above = [along, cy - LINE - 6];
    const below = [along, cy + 6];
    const beside = [[cx + 5, cy - LINE - 3], [cx + 5, cy + 3], [cx - 5 - wide, cy - LINE - 3], [cx - 5 - wide, cy + 3]];
    const apart = [[along, cy - 2 * LINE - 6], [along, cy + LINE + 6]]; // where all near it is taken
    const free = [right, left, above, below, ...beside, ...apart].map(([x, y]) => ({ left: x, right: x + wide, top: y, bottom: y + LINE }))
      .filter((one) => one.left > box.left && one.right < box.width && one.top > 0 && one.bottom < box.bottom && !taken.some((other) => crosses(one, other)));
    const place = free.find((one) => !lines.some((line) => crosses(one, line))) ?? free[0];
    if (place) {
      taken.push(place);
      found.push({ ...place, name: each.name, own: each.own });
    }
  }
  return found;
}
