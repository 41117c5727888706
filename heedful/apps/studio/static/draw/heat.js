// Numbers of two indices as colours. The picture is a canvas; the same numbers can be read with a
// pointer, with the arrow keys, and in a table.

import { folded, h, number, table } from "../dom.js";
import { css, diverging, redrawn, sequence } from "./colours.js";

const TICK = 12;
const TABLE_CELLS = 4200;
const FLAT = 380; // height of a map whose cells need not be square

/**
 * Draw a heat map.
 * @param host where
 * @param map {values, rows, columns, kind, describe, hidden, cell, readout}
 *   rows and columns: {label, names}; kind: "share" from 0 to 1, "sequence" from 0 to the largest,
 *   "diverging" around 0; hidden: cells to leave out; cell: largest size of a cell in pixels; tall: height of a row;
 *   shade: from a number to its share of the ramp, whose ends are then named by `ends`, or numbers on it by `ticks`;
 *   apart: cells in the second colour, of a map with `shade`; choose: called with the row and column of a cell that is clicked, or read and entered;
 *   marked: {side: "row" or "column", index, count: 1 unless said, colour: the name of a property of the page, that of what glows unless said} with a frame around it, or several;
 *     the host's function `mark` marks others
 */
export function heatMap(host, map) {
  host.numbers = () => ({ title: map.describe, columns: ["", ...columnNames(map)], rows: map.values.map((row, i) => [map.rows.names?.[i] ?? i, ...row.map((value, j) => (map.hidden?.[i]?.[j] ? null : value))]) });
  redrawn(host, () => draw(host, map));
}

function span(map) {
  const numbers = map.values.flat();
  const most = numbers.reduce((best, value) => Math.max(best, Math.abs(value)), 0);
  return map.kind === "share" ? 1 : most || 1;
}

function draw(host, map) {
  const rows = map.values.length;
  const columns = map.values[0]?.length ?? 0;
  if (!rows || !columns) {
    host.replaceChildren(h("p", { class: "note" }, "There is nothing to draw."));
    return;
  }
  const most = span(map);
  const colour = (value, apart) => css(map.shade ? diverging((apart ? -1 : 1) * map.shade(value)) : map.kind === "diverging" ? diverging(value / most) : sequence(value / most));
  const named = { rows: map.rows.names, columns: map.columns.names };
  const left = named.rows ? (map.rows.label ? 32 : 20) + 7 * Math.min(12, Math.max(...named.rows.map((name) => String(name).length))) : 46;
  const width = Math.max(240, host.clientWidth);
  const cell = Math.min(map.cell ?? 26, (width - left - 2) / columns);
  const tall = map.tall ?? (map.flat ? Math.min(14, Math.max(3, FLAT / rows)) : Math.max(cell, 4));
  const slanted = isSlanted(map, cell);
  const top = Math.max(2, (TICK - tall) / 2 + 1); // the first row's name is whole
  const sizes = { left, top, cell, tall, right: left + cell * columns, bottom: top + tall * rows };
  const canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": `${map.describe} Arrow keys read the cells${map.choose ? ", Enter chooses a row" : ""}.` });
  const height = sizes.bottom + (slanted ? slanted.room : 38);
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round((sizes.right + 2) * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${sizes.right + 2}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  paint(pen, map, sizes, colour);
  label(pen, map, sizes, host);
  const readout = h("p", { class: "readout", role: "status" });
  const again = () => {
    pen.clearRect(0, 0, sizes.right + 2, height);
    paint(pen, map, sizes, colour);
    label(pen, map, sizes, host);
  };
  host.mark = (marked) => {
    map.marked = marked;
    again();
  };
  listen(canvas, readout, map, sizes, pen, again);
  const parts = [canvas, key(map, most, colour), readout];
  if (rows * columns <= TABLE_CELLS) parts.push(folded("Numbers", () => numbers(map)));
  host.replaceChildren(...parts);
}

function paint(pen, map, sizes, colour) {
  const gap = sizes.cell >= 10 && sizes.tall >= 10 ? 1 : 0;
  const stripes = hatching(pen);
  map.values.forEach((row, i) => row.forEach((value, j) => {
    const [x, y] = [sizes.left + j * sizes.cell, sizes.top + i * sizes.tall];
    if (map.hidden?.[i]?.[j]) {
      pen.fillStyle = stripes;
      pen.fillRect(x, y, sizes.cell - gap, sizes.tall - gap);
      return;
    }
    pen.fillStyle = colour(value, map.apart?.[i]?.[j]);
    // Whole pixels leave no seams between cells that touch.
    pen.fillRect(gap ? x : Math.floor(x), gap ? y : Math.floor(y),
      gap ? sizes.cell - gap : Math.ceil(sizes.cell) + 0.5, gap ? sizes.tall - gap : Math.ceil(sizes.tall) + 0.5);
  }));
  frame(pen, map, sizes);
}

/** Frames around the rows or columns that are chosen. */
function frame(pen, { marked = [], values }, { left, top, cell, tall }) {
  for (const { side, index, count = 1, colour = "--glow" } of [marked].flat().filter(Boolean)) {
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue(colour);
    pen.lineWidth = 2.5;
    if (side === "row") pen.strokeRect(left, top + index * tall, cell * values[0].length, tall * count);
    else pen.strokeRect(left + index * cell, top, cell * count, tall * values.length);
  }
}

/** Slanted lines on the ground of what is hidden: one pattern over all cells, which may be too small for a line each. */
function hatching(pen) {
  const style = getComputedStyle(document.documentElement);
  const tile = h("canvas", { width: 8, height: 8 });
  const own = tile.getContext("2d");
  own.fillStyle = style.getPropertyValue("--sunken");
  own.fillRect(0, 0, 8, 8);
  own.strokeStyle = style.getPropertyValue("--soft");
  own.globalAlpha = 0.6;
  own.beginPath();
  for (const from of [-8, 0, 8]) {
    own.moveTo(from - 1, 9);
    own.lineTo(from + 9, -1);
  }
  own.stroke();
  return pen.createPattern(tile, "repeat");
}

function label(pen, map, sizes, host) {
  const style = getComputedStyle(host);
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--soft");
  pen.font = `${TICK}px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const down = Math.max(1, Math.ceil(TICK / sizes.tall));
  const niceDown = map.rows.names ? down : [1, 2, 5, 10, 20, 25, 50, 100].find((each) => each >= down) ?? down;
  for (let i = 0; i < map.values.length; i += niceDown) {
    const name = map.rows.names ? String(map.rows.names[i]) : String(i);
    pen.fillText(short(name), sizes.left - 6, sizes.top + (i + 0.5) * sizes.tall);
  }
  const slanted = isSlanted(map, sizes.cell);
  pen.textAlign = slanted ? "right" : "center";
  const columns = map.values[0].length;
  const wide = map.columns.names ? Math.max(...map.columns.names.map((name) => String(name).length)) * 7 + 6 : 28;
  const needed = Math.max(1, Math.ceil(wide / sizes.cell));
  const across = [1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 256].find((each) => each >= needed) ?? needed;
  for (let j = 0; slanted && j < columns; j += Math.ceil(TICK / sizes.cell)) {
    pen.save();
    pen.translate(sizes.left + (j + 0.6) * sizes.cell, sizes.bottom + 8);
    pen.rotate(-Math.PI / 3);
    pen.fillText(short(map.columns.names[j]), 0, 0);
    pen.restore();
  }
  pen.textAlign = "center";
  for (let j = 0; !slanted && j < columns; j += across) {
    const name = String(map.columns.names ? map.columns.names[j] : j);
    const x = sizes.left + (j + 0.5) * sizes.cell;
    pen.fillText(name, Math.min(x, sizes.right + 1 - pen.measureText(name).width / 2), sizes.bottom + 11);
  }
  pen.fillText(map.columns.label, (sizes.left + sizes.right) / 2, sizes.bottom + (slanted ? slanted.room - 10 : 28));
  pen.save();
  pen.translate(7, (sizes.top + sizes.bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(map.rows.label, 0, 0);
  pen.restore();
}

const short = (name) => (String(name).length > 12 ? `${String(name).slice(0, 11)}…` : String(name));

/** Names of columns that are wider than the columns are written aslant, in room of their own. */
function isSlanted(map, cell) {
  if (!map.columns.names) return null;
  const longest = Math.max(...map.columns.names.map((name) => short(name).length));
  return longest > 4 && longest * 7 > cell ? { room: 36 + longest * 6.5 } : null;
}

function key(map, most, colour) {
  if (map.binary) return "";
  const all = map.values.flat();
  const low = map.kind === "diverging" && all.some((value) => value < 0) ? -most : 0;
  const high = low < 0 && !all.some((value) => value > 0) ? 0 : most;
  const stops = Array.from({ length: 9 }, (_, i) => (map.shade ? css(sequence(i / 8)) : colour(low + ((high - low) * i) / 8)));
  const bar = h("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  if (!map.ticks) return h("p", { class: "key" }, map.ends?.[0] ?? number(low, 3), bar, map.ends?.[1] ?? number(high, 3));
  bar.append(...map.ticks.map((value) => h("span", { style: { left: `${100 * map.shade(value)}%` } }, number(value))));
  return h("p", { class: "key ticked" }, bar);
}

function listen(canvas, readout, map, sizes, pen, clean) {
  const rows = map.values.length;
  const columns = map.values[0].length;
  let [row, column] = [-1, -1];
  const name = (side, index) => `${side.label} ${side.names ? side.names[index] : index}`;
  const show = (i, j, mark) => {
    row = Math.min(rows - 1, Math.max(0, i));
    column = Math.min(columns - 1, Math.max(0, j));
    const value = map.hidden?.[row]?.[column] ? "hidden" : number(map.values[row][column]);
    readout.textContent = map.readout ? map.readout(row, column, map.values[row][column])
      : `${name(map.rows, row)}, ${name(map.columns, column)}: ${value}`;
    if (!mark) return;
    clean();
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(sizes.left + column * sizes.cell, sizes.top + row * sizes.tall, sizes.cell, sizes.tall);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < sizes.left || y > sizes.bottom) return;
    show(Math.floor((y - sizes.top) / sizes.tall), Math.floor((x - sizes.left) / sizes.cell), false);
  });
  if (map.choose) {
    canvas.classList.add("choosable");
    canvas.addEventListener("click", () => row >= 0 && map.choose(row, column));
  }
  canvas.addEventListener("keydown", (event) => {
    if (map.choose && row >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      map.choose(row, column);
      return;
    }
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    show(row < 0 ? 0 : row + step[0], column < 0 ? 0 : column + step[1], true);
  });
  canvas.addEventListener("blur", clean);
}

const columnNames = (map) => map.columns.names ?? (map.values[0] ?? []).map((_, j) => j);

function numbers(map) {
  const rows = map.values.map((row, i) => [map.rows.names?.[i] ?? i,
    ...row.map((value, j) => (map.hidden?.[i]?.[j] ? "hidden" : number(value, 3)))]);
  return table(map.describe, [`${map.rows.label} \\ ${map.columns.label}`, ...columnNames(map)], rows);
}
