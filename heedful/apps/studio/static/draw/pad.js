// A place to draw on, with a pointer, a finger or the arrow keys: white on black.

import { h } from "../dom.js";

const SIZE = 280;
const LEVELS = 15;
const THICK = 0.045; // of the side: half of a line's width
const SOFT = 0.03;

/** Rows of pixels from 0 to 255 as a short text for an address: levels, and how often if often. */
export function write(rows) {
  const levels = rows.flat().map((value) => Math.round((value / 255) * LEVELS));
  let text = "";
  for (let i = 0; i < levels.length;) {
    let end = i;
    while (end < levels.length && levels[end] === levels[i]) end += 1;
    const digit = levels[i].toString(16);
    text += end - i > 3 ? `${digit}*${end - i}.` : digit.repeat(end - i);
    i = end;
  }
  return text;
}

/** The same, back; an empty drawing where the text is no drawing of this size. */
export function read(text, side) {
  const levels = [];
  for (const [, digit, times] of text.matchAll(/([0-9a-f])(?:\*(\d{1,5})\.)?/g)) {
    for (let i = 0; i < Number(times ?? 1) && levels.length <= side * side; i += 1) levels.push(parseInt(digit, 16));
  }
  const flat = levels.length === side * side ? levels : Array(side * side).fill(0);
  return Array.from({ length: side }, (_, row) =>
    flat.slice(row * side, (row + 1) * side).map((level) => Math.round((level / LEVELS) * 255)));
}

/**
 * A pad.
 * @param options {side, changed}: pixels on a side; told the rows after every stroke
 */
export function pad({ side, changed }) {
  const canvas = h("canvas", { class: "pad", width: side, height: side, tabindex: "0", role: "img",
    "aria-label": "A place to draw on. Arrow keys move, the space bar draws." });
  canvas.style.width = `min(100%, ${SIZE}px)`;
  const pen = canvas.getContext("2d");
  let rows = read("", side);
  let cursor = [Math.floor(side / 2) + 0.5, Math.floor(side / 2) + 0.5];
  let before = null;

  function show(marked = false) {
    const image = pen.createImageData(side, side);
    rows.flat().forEach((value, i) => image.data.set([value, value, value, 255], 4 * i));
    if (marked) image.data.set([230, 120, 20, 255], 4 * (Math.floor(cursor[1]) * side + Math.floor(cursor[0])));
    pen.putImageData(image, 0, 0);
  }

  function line(from, to) {
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const length = dx * dx + dy * dy || 1;
    rows = rows.map((row, y) => row.map((value, x) => {
      const share = Math.min(1, Math.max(0, ((x + 0.5 - from[0]) * dx + (y + 0.5 - from[1]) * dy) / length));
      const away = Math.hypot(x + 0.5 - from[0] - share * dx, y + 0.5 - from[1] - share * dy) / side;
      const shade = Math.min(1, Math.max(0, (THICK + SOFT - away) / SOFT));
      return Math.max(value, Math.round(shade * LEVELS) * (255 / LEVELS));
    }));
    changed(rows);
  }

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * side, ((event.clientY - box.top) / box.height) * side];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    before = place(event);
    line(before, before);
    show();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (before === null) return;
    const now = place(event);
    line(before, now);
    before = now;
    show();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { before = null; });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], " ": [0, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    cursor = cursor.map((value, i) => Math.min(side - 0.5, Math.max(0.5, value + move[i])));
    if (event.key === " ") line(cursor, cursor);
    show(true);
  });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && show(true));
  canvas.addEventListener("blur", () => show());
  show();
  return {
    element: canvas,
    set(next) {
      rows = next;
      if (before === null) show(document.activeElement === canvas && canvas.matches(":focus-visible"));
    },
  };
}
