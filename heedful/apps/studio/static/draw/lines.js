// Lines over an axis, with the numbers under a pointer, a finger or the arrow keys.

import { folded, h, number, s, table } from "../dom.js";
import { axis, extent, frame, leftOf, widthOf } from "./axes.js";
import { redrawn, series as colour } from "./colours.js";
import { d3 } from "./d3.js";

const MARGIN = { right: 26, top: 12, bottom: 40 };
const EDGE = 5; // beyond the field, so that dots at its ends are whole
const [ENDS, APART, LEAD] = [500, 15, 14]; // pixels: the narrowest chart with long names at the ends, between two of them, and from a line to its name
const FREE = 12; // pixels: between the names of others and that of a pale line
const SHORT = 80; // pixels: the longest name that stands at the end in a narrower chart too
const NEAR = 30; // pixels: how far from a line a click still means it
const LINKED = 64; // pixels left of the field: linked charts begin at one place
const ROWS = 60; // of the table of numbers
let charts = 0;

/**
 * Draw lines. Drawing anew into the same place keeps the focus, the pointer and the open table.
 * @param host where
 * @param chart {series: [{name, points: [[x, y]], colour, dashed, faint, dots, named: true for a name though it is pale, strong: a bold name,
 *   label: what stands at its end instead of the name; of a pale one where it is free, run: what it is of, to lift it, unread: true for no number under the pointer, of a pale one also none in the table,
 *   raised: pixels that it lies higher, where it would hide another}],
 *   x: {label, log, base, whole: marks at whole numbers alone, domain: the stretch to show, by default all;
 *   text: from a mark to its words}, y: {label: "" for none, log, zero},
 *   describe, height, empty: said when there is nothing, legend: false to leave it out,
 *   ends: true for names at the ends of the lines but pale ones, where there is room, instead of a legend; mark: [x, words] of an upright line,
 *   left, right: the room beside the field, at least;
 *   choose: called with the series that is clicked, or its name; lift: called with what the line nearest to the pointer is of, and with
 *   undefined when it leaves: `host.chart.lift` then lifts the lines of it and names them; quiet: true where numbers are shown elsewhere, and here only told to screen readers;
 *   linked: a pointer and a stretch that it shares with other charts (`draw/linked.js`), says: true for the one of them that writes where they are read}
 */
export function lineChart(host, chart) {
  host.numbers = () => ({ title: chart.describe, columns: ["series", chart.x.label, chart.y.label || "value"], rows: chart.series.flatMap(({ name, points }) => points.map((point) => [name, ...point])) });
  redrawn(host, () => draw(host, chart));
}

function draw(host, chart) {
  const usable = ([x, y]) => (!chart.x.log || x > 0) && (!chart.y.log || y > 0);
  const given = chart.series.filter((each) => each.points.length > 0);
  const all = given.map((each, i) => ({ ...each, colour: colour(each.colour ?? i), points: each.points.filter(usable) }))
    .filter((each) => each.points.length > 0);
  if (all.length === 0) {
    const why = given.length ? "Nothing above 0 can be drawn on this axis." : chart.empty ?? "There is nothing to draw yet.";
    host.replaceChildren(h("p", { class: "note" }, why));
    return;
  }
  const parts = partsOf(host, chart);
  const plot = layOut(host, chart, all);
  parts.plot = plot;
  parts.svg.attr("width", plot.width).attr("height", plot.height).attr("viewBox", `0 0 ${plot.width} ${plot.height}`)
    .attr("aria-label", `${chart.describe} Arrow keys read the numbers.`);
  frame(parts.frame, plot.x, plot.y, plot, { x: chart.x.label, y: chart.y.label });
  parts.field.attr("x", plot.left - EDGE).attr("y", 0).attr("width", plot.right - plot.left + 2 * EDGE).attr("height", plot.bottom + EDGE);
  parts.svg.classed("choosable", Boolean(chart.choose));
  drawLines(parts.lines, plot);
  drawNames(parts.names, plot);
  parts.legend.replaceChildren(...(chart.legend === false || plot.ends ? [] : [legendOf(chart.ends ? all.filter(isNamed) : all)]));
  if (parts.numbers.open) parts.numbers.lastChild.replaceWith(numbers(plot));
  chart.linked?.drawn(parts, plot);
  if (parts.value !== null) show(parts, parts.value, true);
  parts.readout.classList.toggle("unseen", Boolean(chart.quiet));
  lift(parts, parts.lifted);
}

/** The elements of a chart, made once for a place. */
function partsOf(host, chart) {
  if (host.chart?.svg.node().parentNode === host) return host.chart;
  const svg = d3.create("svg").attr("role", "img").attr("tabindex", "0");
  const id = `field-${(charts += 1)}`;
  const parts = {
    svg, value: null,
    field: svg.append("clipPath").attr("id", id).append("rect"),
    frame: svg.append("g"),
    over: svg.append("g"), // what a linked chart adds
    lines: svg.append("g").attr("clip-path", `url(#${id})`).attr("pointer-events", "none"),
    names: svg.append("g").attr("pointer-events", "none"),
    name: svg.append("text").attr("class", "tick lifted").attr("pointer-events", "none"),
    cursor: svg.append("line").attr("class", "cursor").attr("visibility", "hidden"),
    at: svg.append("text").attr("class", "tick at").attr("pointer-events", "none"),
    dots: svg.append("g").attr("pointer-events", "none"),
    legend: h("div", {}), readout: h("p", { class: "readout", role: "status" }),
  };
  parts.numbers = folded("Numbers", () => numbers(parts.plot));
  listen(parts, chart.linked);
  host.replaceChildren(parts.legend, svg.node(), parts.readout, parts.numbers);
  host.chart = parts;
  return parts;
}

/** Scales and sizes. The height of the field follows the points of the stretch that is shown. */
function layOut(host, chart, all) {
  const width = Math.max(240, host.clientWidth);
  const height = chart.height ?? Math.min(340, Math.max(220, width * 0.45));
  const names = chart.ends ? all.filter(isNamed).map((each) => widthOf(labelOf(each))) : [];
  const ends = chart.ends && (width >= ENDS || Math.max(...names) <= SHORT);
  const points = all.flatMap((each) => each.points);
  const stretch = chart.x.domain ?? extent(points.map(([x]) => x));
  const seen = points.filter(([x]) => x >= stretch[0] && x <= stretch[1]);
  const reach = extent((seen.length ? seen : points).map((point) => point[1]));
  if (chart.y.zero && !chart.y.log) reach[0] = Math.min(0, reach[0]);
  if (chart.y.log) reach[0] /= 1.08;
  else {
    // The lowest line is not drawn on the axis itself, unless that is zero.
    if (reach[0] > 0) reach[0] = Math.max(0, reach[0] - (reach[1] - reach[0]) * 0.04);
    reach[1] += (reach[1] - reach[0]) * 0.04;
  }
  const bottom = height - MARGIN.bottom;
  const y = axis(reach, [bottom, MARGIN.top], { log: chart.y.log, room: 44 });
  const box = { width, height, bottom, top: MARGIN.top, left: Math.max(chart.left ?? (chart.linked ? LINKED : 0), leftOf(y, Boolean(chart.y.label))), right: width - Math.max(chart.right ?? 0, ends ? Math.max(0, ...names) + (names.length > 1 ? LEAD : 0) + 10 : MARGIN.right) };
  const x = axis(stretch, [box.left, box.right], { log: chart.x.log, base: chart.x.base ?? 10, whole: chart.x.whole, room: width > 500 ? 78 : 62 });
  if (chart.x.text) x.text = chart.x.text;
  return { ...box, x, y, all, chart, ends };
}

const isNamed = (each) => (!each.faint || each.named) && each.label !== "";
const labelOf = (each) => each.label ?? each.name;

const kind = (each) => `line${each.faint ? " faint" : ""}${each.dashed ? " dashed" : ""}`;

function drawLines(into, { all, x, y }) {
  const path = d3.line(([px]) => x.scale(px), ([, py]) => y.scale(py)).digits(1);
  into.selectAll("path").data(all).join("path")
    .attr("class", kind).attr("stroke", (each) => each.colour).attr("d", (each) => path(each.points)).attr("transform", (each) => (each.raised ? `translate(0 -${each.raised})` : null))
    .filter((each) => each.strong).raise();
  into.selectAll("circle")
    .data(all.filter((each) => each.dots || each.points.length === 1).flatMap((each) => each.points.map((point) => ({ point, colour: each.colour, raised: each.raised ?? 0 }))))
    .join("circle").attr("r", 3.5).attr("fill", (each) => each.colour)
    .attr("cx", ({ point }) => x.scale(point[0])).attr("cy", ({ point, raised }) => y.scale(point[1]) - raised);
}

/** Names at the ends of lines, pushed apart where they would cover each other, and the mark. */
function drawNames(into, plot) {
  const { all, x, y, right, top, bottom, chart, ends } = plot;
  const named = (some) => some.map((each) => ({ each, name: labelOf(each), fill: each.colour, y: y.scale(each.points.at(-1)[1]) })).sort((a, b) => b.y - a.y);
  const names = ends ? named(all.filter(isNamed)) : [];
  plot.names = names;
  names.forEach((each, i) => {
    each.end = each.y;
    each.y = Math.min(each.y, i ? names[i - 1].y - APART : bottom);
  });
  for (const pale of ends ? named(all.filter((each) => !isNamed(each) && each.label)) : []) {
    if (names.every((each) => Math.abs(each.y - pale.y) >= FREE)) names.push({ ...pale, end: pale.y });
  }
  const lead = names.length > 1 ? LEAD : 0; // a name that was pushed apart is led back to its line
  into.selectAll("path.lead").data(names.filter((each) => each.end - each.y > 3)).join("path").attr("class", "lead").style("stroke", (each) => each.fill)
    .attr("d", (each) => `M${right + 2} ${each.end}L${right + lead + 2} ${each.y}`);
  into.selectAll("text.end").data(names).join("text").attr("class", ({ each }) => `tick end${each.strong ? " strong" : ""}`).attr("x", right + lead + 6).attr("y", (each) => each.y + 4)
    .style("fill", (each) => each.fill).text((each) => each.name);
  const marks = chart.mark ? [chart.mark] : [];
  const past = (at) => 2 * x.scale(at) > x.scale.range()[0] + x.scale.range()[1];
  into.selectAll("line").data(marks).join("line").attr("class", "roll-from").attr("x1", ([at]) => x.scale(at)).attr("x2", ([at]) => x.scale(at)).attr("y1", top).attr("y2", bottom);
  into.selectAll("text.marked").data(marks).join("text").attr("class", "tick marked")
    // Beyond the middle the words stand left of their line, so that none leave the drawing.
    .attr("text-anchor", ([at]) => (past(at) ? "end" : "start")).attr("x", ([at]) => x.scale(at) + (past(at) ? -6 : 6)).text(([, words]) => words)
    .attr("y", ([at, words]) => {
      const wide = widthOf(words) + 6;
      const across = past(at) ? [x.scale(at) - wide, x.scale(at)] : [x.scale(at), x.scale(at) + wide];
      const spots = [bottom - 8, top + 10]; // above, where a line goes through the words below
      return spots.find((y) => !all.some((each) => crosses(each, plot, across, [y - 13, y + 4]))) ?? spots[0];
    });
}

/** Whether a line goes through a box of pixels. */
function crosses({ points }, { x, y }, [left, right], [upper, lower]) {
  return d3.pairs(points, (a, b) => [x.scale(a[0]), y.scale(a[1]), x.scale(b[0]), y.scale(b[1])]).some(([x1, y1, x2, y2]) => {
    if (x2 < left || x1 > right) return false;
    const ends = [left, right].map((px) => y1 + ((y2 - y1) * (Math.min(x2, Math.max(x1, px)) - x1)) / (x2 - x1 || 1));
    return Math.min(...ends) < lower && Math.max(...ends) > upper;
  });
}

/** The names of series beside a piece of their lines; nothing for one alone. */
export function legendOf(all) {
  if (all.length < 2) return "";
  return h("ul", { class: "legend" }, all.map((each) => h("li", {},
    s("svg", { width: 22, height: 10, "aria-hidden": "true" }, s("path", { class: kind(each), d: "M0 5L22 5", stroke: each.colour })),
    labelOf(each))));
}

/** Read the numbers at a place of the axis: a line, a dot on each series, and words below. */
function show(parts, value, quiet = false) {
  const { x, y, top, bottom, all, chart } = parts.plot;
  parts.value = value;
  const [low, high] = x.scale.domain();
  const near = (each) => each.points[d3.minIndex(each.points, ([px]) => Math.abs(px - value))];
  // A series that has ended, or not yet begun, has no number here.
  const reaches = ({ points }) => value >= points[0][0] && value <= points.at(-1)[0];
  const found = all.filter(reaches).map((each) => ({ ...each, point: near(each) }));
  const inside = value >= low && value <= high;
  parts.cursor.attr("y1", top).attr("y2", bottom).attr("x1", x.scale(value)).attr("x2", x.scale(value))
    .attr("visibility", inside ? "visible" : "hidden");
  const isLate = 2 * x.scale(value) > x.scale(low) + x.scale(high);
  // Of linked charts one says where all are read.
  parts.at.attr("x", x.scale(value) + (isLate ? -6 : 6)).attr("y", bottom - 7).attr("text-anchor", isLate ? "end" : "start").text(inside && chart.says ? `${chart.x.label} ${number(value)}` : "");
  parts.dots.selectAll("circle").data(found.filter(({ point: [px] }) => inside && px >= low && px <= high)).join("circle")
    .attr("r", 4).attr("class", "dot").attr("fill", (each) => each.colour)
    .attr("cx", ({ point: [px] }) => x.scale(px)).attr("cy", ({ point: [, py] }) => y.scale(py));
  found.sort((one, other) => other.point[1] - one.point[1]); // as they lie above each other
  parts.readout.setAttribute("aria-live", quiet ? "off" : "polite");
  const mark = (each) => (found.length > 1 ? h("i", { style: { background: each.colour } }) : "");
  parts.readout.replaceChildren(`${chart.x.label} ${number(value)}: `, ...found.filter((each) => !each.unread).flatMap((each, i) => [i ? ", " : "", h("span", {}, mark(each), `${each.name} `, h("b", {}, number(each.point[1])))]));
}

/** The series whose line, or right of the field whose name, is nearest to a place. */
function seriesAt([px, py], { all, names, x, y, right }) {
  const value = x.scale.invert(px);
  const far = px > right && names.length ? names.map(({ each, y: at }) => [each, Math.abs(at - py)])
    : all.map((each) => [each, Math.abs(y.scale(each.points[d3.minIndex(each.points, (point) => Math.abs(point[0] - value))][1]) - py)]);
  const [each, away] = far[d3.minIndex(far, (pair) => pair[1])];
  return away <= NEAR ? each : null;
}

/** Lift the lines of a run out of the others, and write its name where the pointer is or the line ends; `undefined`: none. */
function lift(parts, run) {
  const { x, y, all } = parts.plot;
  const isLifted = (each) => run !== undefined && each.run === run;
  parts.lifted = run;
  parts.lines.classed("lifting", all.some(isLifted)).selectAll("path").classed("lifted", isLifted);
  const [low, high] = x.scale.domain();
  const line = all.findLast(isLifted);
  const inside = line?.points.filter(([px]) => px >= low && px <= high) ?? [];
  const at = parts.value === null ? inside.at(-1) : inside[d3.minIndex(inside, ([px]) => Math.abs(px - parts.value))];
  const isLate = at && 2 * x.scale(at[0]) > x.scale(low) + x.scale(high);
  parts.name.attr("visibility", at ? "visible" : "hidden");
  if (!at) return;
  const wide = widthOf(line.name, { bold: true });
  const left = x.scale(at[0]) + (isLate ? -8 - wide : 8);
  // In a narrow chart a long name moves from its point into the drawing.
  parts.name.attr("x", Math.max(0, Math.min(left, parts.plot.width - wide - 2))).attr("y", Math.max(MARGIN.top, y.scale(at[1]) - 8)).style("fill", line.colour).text(line.name);
}

function hide(parts) {
  parts.value = null;
  parts.cursor.attr("visibility", "hidden");
  parts.at.text("");
  parts.dots.selectAll("circle").remove();
}

/** Follow the pointer and the arrow keys; a linked chart lets the others follow too. */
function listen(parts, linked) {
  const longest = () => parts.plot.all.reduce((best, each) => (each.points.length > best.points.length ? each : best)).points;
  const nearest = (value) => d3.minIndex(longest(), ([x]) => Math.abs(x - value));
  const read = (index) => {
    const points = longest();
    const value = points[Math.min(points.length - 1, Math.max(0, index))][0];
    if (linked) linked.point(value, parts);
    else show(parts, value);
  };
  parts.show = (value, quiet) => show(parts, value, quiet);
  parts.hide = () => hide(parts);
  parts.lift = (run) => lift(parts, run);
  parts.svg.on("pointermove", (event) => {
    const { x, left, right } = parts.plot;
    const at = d3.pointer(event, parts.svg.node())[0];
    read(nearest(x.scale.invert(Math.min(right, Math.max(left, at)))));
    parts.plot.chart.lift?.(seriesAt(d3.pointer(event, parts.svg.node()), parts.plot)?.run);
  }).on("pointerleave", () => {
    (linked ? linked.leave() : hide(parts));
    parts.plot.chart.lift?.();
  })
    .on("click", (event) => {
      const { plot } = parts;
      const each = plot.chart.choose && seriesAt(d3.pointer(event, parts.svg.node()), plot);
      if (each) plot.chart.choose(each);
    })
    .on("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined || event.shiftKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      read(parts.value === null && step !== Infinity ? 0 : nearest(parts.value ?? 0) + step);
    });
}

function numbers({ all, chart }) {
  const places = [...new Set(all.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  const every = Math.ceil(places.length / ROWS) | 1; // odd, for curves that stand at even and at odd places
  const shown = places.filter((_, i) => i % every === 0 || i === places.length - 1);
  const read = all.filter((each) => !(each.faint && each.unread));
  const by = read.map((each) => new Map(each.points));
  const rows = shown.map((value) => [number(value), ...by.map((points) => (points.has(value) ? number(points.get(value)) : ""))]);
  return table(chart.describe, [chart.x.label, ...read.map((each) => each.name)], rows);
}
