// Scales by D3, their ticks, and the frame of a chart.

import { d3 } from "./d3.js";

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Lowest and highest of some numbers. */
export const extent = (values) => d3.extent(values);

/** A number by its power of ten, as 10⁻⁵ or 2·10¹⁸, where it would be long to write out. */
function power(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  if (!(value > 0) || (exponent > -4 && exponent < 9)) return null;
  const factor = Number((value / 10 ** exponent).toPrecision(3));
  const raised = [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPT[Number(digit)]).join("");
  return `${factor === 1 ? "" : `${factor}·`}10${exponent < 0 ? "⁻" : ""}${raised}`;
}

const short = d3.format("~s"); // 12.5k
const rounded = d3.format(",.6~r");

/** The words of marks. On a linear axis all are written alike, as the largest asks. */
function written(marks, log) {
  const largest = Math.max(...marks.map(Math.abs));
  const form = (size) => (size >= 1e9 || size < 1e-4 ? (value) => (value < 0 ? `−${power(-value)}` : power(value)) ?? rounded(value) : size >= 1e4 ? short : rounded);
  return (value) => (value === 0 ? "0" : form(log ? Math.abs(value) : largest)(value));
}

const pen = document.createElement("canvas").getContext("2d");

/** The width of words in a drawing, in pixels. */
export function widthOf(words, { bold = false } = {}) {
  pen.font = `${bold ? "650 " : ""}12px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(words).width;
}

/** Marks of a logarithmic scale: 1, 2, 3 … of each power; 1, 2, 5; or powers alone, as room is. */
function logMarks(scale, most, base) {
  const factor = (mark) => Math.round(mark / base ** Math.floor(Math.log(mark) / Math.log(base) + 1e-9));
  const all = scale.ticks(most);
  const choices = [all, all.filter((mark) => [1, 2, 5].includes(factor(mark))), all.filter((mark) => factor(mark) === 1)];
  const found = choices.find((marks) => marks.length <= most && marks.length > 1) ?? (choices[2].length > 1 ? choices[2] : choices[1]);
  const every = Math.ceil(found.length / Math.max(2, most));
  return found.filter((_, i) => i % every === 0);
}

/**
 * An axis: a scale of D3, its marks and their texts.
 * @param domain lowest and highest number
 * @param range first and last place in pixels
 * @param options {log, base, room: pixels that a mark takes, whole: true for marks at whole numbers alone}
 */
export function axis(domain, range, { log = false, base = 10, room = 56, whole = false } = {}) {
  let [low, high] = domain;
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 1, high + 1];
  const scale = (log ? d3.scaleLog().base(base) : d3.scaleLinear()).domain([low, high]).range(range);
  const most = Math.max(2, Math.floor(Math.abs(range[1] - range[0]) / room));
  const marks = log ? logMarks(scale, most, base) : scale.ticks(most).filter((mark) => !whole || Number.isInteger(mark));
  return { scale, marks, text: written(marks, log) };
}

/** The room that the ticks of a vertical axis and its title, if it has one, take. */
export const leftOf = (y, title = true) => Math.ceil((title ? 34 : 14) + Math.max(14, ...y.marks.map((mark) => widthOf(y.text(mark)))));

/**
 * Draw the frame: grid, ticks, and the titles of the axes. The title of the vertical one stands left
 * of the longest tick, whatever its length.
 * @param into a selection of D3; it is emptied
 * @param box {left, right, top, bottom, width, height}: the field and the whole drawing
 */
export function frame(into, x, y, box, titles) {
  into.selectAll("*").remove();
  const ticks = (made, { scale, marks, text: words }) => made(scale).tickValues(marks).tickFormat(words).tickSizeOuter(0);
  into.append("g").attr("transform", `translate(${box.left},0)`)
    .call(ticks(d3.axisLeft, y).tickSizeInner(box.left - box.right).tickPadding(8))
    .call((g) => g.select(".domain").remove())
    .call((g) => g.selectAll("line").attr("class", "grid"));
  into.append("g").attr("transform", `translate(0,${box.bottom})`)
    .call(ticks(d3.axisBottom, x).tickSizeInner(5).tickPadding(4))
    .call((g) => g.select(".domain").attr("class", "axis").attr("d", `M${box.left},0H${box.right}`))
    .call((g) => g.selectAll("line").attr("class", "mark"));
  into.selectAll("text").attr("class", "tick").attr("fill", null);
  title(into, titles.x, (box.left + box.right) / 2, box.height - 5);
  title(into, titles.y, 0, 0).attr("transform", `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`);
}

const title = (into, words, x, y) =>
  into.append("text").attr("class", "label").attr("text-anchor", "middle").attr("x", x).attr("y", y).text(words ?? "");
