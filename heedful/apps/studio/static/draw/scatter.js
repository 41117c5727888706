// Named dots over two axes, one of them chosen and compared with another.

import { folded, h, number, table } from "../dom.js";
import { axis, extent, frame, leftOf, widthOf } from "./axes.js";
import { redrawn, series } from "./colours.js";
import { d3 } from "./d3.js";
import { readItems } from "./items.js";

const [TOP, BOTTOM, RIGHT, LINE, DOT] = [14, 40, 16, 15, 5];
const SMALL = 11 / 12; // of a name's letters: those of the line below it
const ROOMY = 700; // pixels: in a narrower chart the kinds stand in a legend, not below the names

/**
 * Draw dots.
 * @param chart {ring: what a ring means, points: [{name, x, y, own: marked, open: a ring, group: number of its colour, kind: words for its colour, below: words under its name where there is room,
 *   short: words for its name, in lines, where there is little}],
 *   x: {label, axis: words for the axis instead, log, text}, y: {label, axis}, describe, chosen: name of a point, choose: called with the point that is clicked,
 *   compare: {name of another point, across, up: words for the way from it to the chosen one}, zone: {name of a point, words: on the
 *   field left of it and above}}
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
  frame(svg.append("g"), x, y, box, { x: chart.x.axis ?? chart.x.label, y: chart.y.axis ?? chart.y.label });
  const placed = points.map((each) => ({ ...each, at: [x.scale(each.x), y.scale(each.y)] })).sort((a, b) => a.x - b.x);
  const zone = zoneOf(placed.find(({ name }) => name === chart.zone?.name), chart.zone, box);
  if (zone) svg.append("rect").attr("class", "zone").attr("x", box.left).attr("y", 0).attr("width", zone.right - box.left).attr("height", zone.bottom);
  const way = wayTo(placed.find(({ name }) => name === chart.chosen), placed.find(({ name }) => name === chart.compare?.name), chart.compare);
  svg.append("path").attr("class", "way-between").attr("d", way && d3.line()(way.corners));
  const dots = svg.append("g").selectAll("circle").data(placed).join("circle")
    .attr("class", (each) => `spot${each.own ? " own" : ""}${each.open ? " open" : ""}${each.name === chart.chosen ? " chosen" : ""}`).attr("r", (each) => (each.name === chart.chosen ? DOT + 2 : DOT))
    .attr("cx", ({ at }) => at[0]).attr("cy", ({ at }) => at[1]).style("fill", (each) => (each.open ? null : colourOf(each))).style("stroke", (each) => (each.name === chart.chosen ? null : colourOf(each)));
  const roomy = width >= ROOMY;
  const names = labels(placed.map((each) => ({ ...each, words: roomy ? [each.name, each.below].filter(Boolean) : each.short ?? [each.name] })), way, box, zone);
  svg.append("g").selectAll("text").data(names).join("text").attr("class", (each) => `spot-name${each.own ? " own" : ""}${each.between ? " between" : ""}${each.zone ? " of-zone" : ""}`).style("fill", colourOf)
    .selectAll("tspan").data((each) => each.words.map((words, i) => ({ ...each, words, i }))).join("tspan")
    .attr("class", ({ i }) => (i ? "kind" : null)).attr("x", (each) => each.left).attr("y", (each) => each.top + LINE * (each.i + 1) - 3).text((each) => each.words);
  const value = (each) => (chart.x.text ?? number)(each.x);
  const held = host.contains(document.activeElement);
  const readout = readItems(svg, {
    start: placed.findIndex(({ name }) => name === chart.chosen), choose: chart.choose && ((index) => chart.choose(placed[index])),
    count: placed.length,
    nearest: (place) => d3.minIndex(placed, ({ at }) => Math.hypot(at[0] - place[0], at[1] - place[1])),
    show(index) {
      dots.classed("read", (_, i) => i === index);
      if (index === null) return "";
      const each = placed[index];
      return `${each.name}: ${chart.y.label} ${number(each.y)}, ${chart.x.label} ${value(each)}`;
    },
  });
  const kinds = roomy ? [] : d3.sort(new Map(points.filter(({ kind }) => kind).map(({ kind, group }) => [kind, group])), ([, group]) => group);
  host.replaceChildren(kinds.length ? h("ul", { class: "legend" }, kinds.map(([kind, group]) => h("li", { style: { color: series(group) } }, `● ${kind}`)), chart.ring ? h("li", {}, `○ ${chart.ring}`) : "") : "",
    svg.node(), readout, folded("Numbers", () => table(chart.describe, ["", chart.y.label, chart.x.label], placed.map((each) => [each.name, number(each.y), value(each)]))));
  if (held && chart.choose) svg.node().focus();
}

/** The field left of a point and above it, with its words in the corner. */
function zoneOf(point, zone, { left }) {
  if (!point) return null;
  const [right, bottom] = point.at;
  return { right, bottom, name: { words: zone.words, spots: () => [[left + 8, 4]], zone: true } };
}

const colourOf = ({ group }) => (group === undefined ? null : series(group));

/** The way from a dot to the chosen one: across, then up or down, each with its words in the middle. */
function wayTo(to, from, words) {
  if (!to || !from) return null;
  const [[x1, y1], [x2, y2]] = [from.at, to.at];
  return {
    corners: [[x1, y1], [x2, y1], [x2, y2]],
    // Beside the middle of each part; of the first also on the side where the second is, right of it.
    steps: [{ words: [words.across], at: [(x1 + x2) / 2, y1], spots: (wide) => [[(x1 + x2 - wide) / 2, y2 > y1 ? y1 - LINE - 4 : y1 + 5], [Math.min(x1, x2) + 8, y2 > y1 ? y1 + 5 : y1 - LINE - 4], [Math.min(x1, x2) - wide - 8, y1 - LINE / 2]] },
      { words: [words.up], at: [x2, (y1 + y2) / 2], spots: (wide) => [[x2 + 10, (y1 + y2 - LINE) / 2], [x2 - 10 - wide, (y1 + y2 - LINE) / 2]] }],
  };
}

/**
 * A place for each name beside its dot where it covers no other name and no dot, and no line if it can;
 * a name for which there is none is left to the pointer. Those that are marked choose first, then the
 * words of the way, then those at the right edge, where there is least room.
 */
function labels(placed, way, box, zone) {
  const taken = placed.map(({ at: [cx, cy] }) => ({ left: cx - DOT - 1, right: cx + DOT + 1, top: cy - DOT - 1, bottom: cy + DOT + 1 }));
  const lines = d3.pairs(way?.corners ?? [], ([x1, y1], [x2, y2]) => ({ left: Math.min(x1, x2) - 1, right: Math.max(x1, x2) + 1, top: Math.min(y1, y2) - 1, bottom: Math.max(y1, y2) + 1 }));
  const crosses = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
  const found = [];
  const between = (way?.steps ?? []).map((each) => ({ ...each, between: true }));
  for (const each of [...(zone ? [zone.name] : []), ...placed.filter(({ own }) => own), ...between, ...placed.filter(({ own }) => !own).reverse()]) {
    const [cx, cy] = each.at ?? [0, 0];
    const wide = Math.max(...each.words.map((words, i) => (i ? SMALL * widthOf(words) : widthOf(words, { bold: each.own || each.between }))));
    const high = LINE * each.words.length;
    const along = Math.max(box.left + 1, Math.min(cx - wide / 2, box.width - wide - 1)); // above or below
    const right = [cx + 10, cy - LINE / 2];
    const left = [cx - 10 - wide, cy - LINE / 2];
    const above = [along, cy - high - 6];
    const below = [along, cy + 6];
    const beside = [[cx + 5, cy - high - 3], [cx + 5, cy + 3], [cx - 5 - wide, cy - high - 3], [cx - 5 - wide, cy + 3]];
    const apart = [[along, cy - high - LINE - 6], [along, cy + LINE + 6]]; // where all near it is taken
    const free = (each.spots?.(wide) ?? [right, left, above, below, ...beside, ...apart]).map(([x, y]) => ({ left: x, right: x + wide, top: y, bottom: y + high }))
      .filter((one) => one.left > box.left && one.right < box.width && one.top > 0 && one.bottom < box.bottom && !taken.some((other) => crosses(one, other)));
    const place = free.find((one) => !lines.some((line) => crosses(one, line))) ?? free[0];
    if (place) {
      taken.push(place);
      found.push({ ...each, ...place });
    }
  }
  return found;
}
