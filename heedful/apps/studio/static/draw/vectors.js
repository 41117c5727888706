// The vectors of a sequence as a picture: a row for each token, a column for each channel.

import { h } from "../dom.js";
import { diverging, redrawn } from "./colours.js";

const HEIGHT = 96;
const TALLEST = 16; // pixels of a row

/**
 * Draw vectors.
 * @param picture {values: [L][D], chosen: the row with a frame or −1, choose: called with a row, describe}
 */
export function vectorPicture(host, picture) {
  redrawn(host, () => draw(host, picture));
}

function draw(host, { values, chosen, choose, describe }) {
  const [rows, columns] = [values.length, values[0].length];
  const width = Math.max(200, host.clientWidth);
  const tall = Math.min(TALLEST, HEIGHT / rows);
  const height = tall * rows;
  const ratio = devicePixelRatio || 1;
  const canvas = h("canvas", { role: "img", tabindex: "0", class: "choosable", "aria-label": `${describe} Arrow keys choose a row.` });
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pixels(values, rows, columns), 0, 0, width, height);
  if (chosen >= 0 && chosen < rows) {
    pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--glow");
    pen.lineWidth = 2;
    const top = Math.min(height - Math.max(tall, 4), chosen * tall);
    pen.strokeRect(1, top + 1, width - 2, Math.max(tall, 4) - 2);
  }
  canvas.addEventListener("click", (event) => choose(Math.min(rows - 1, Math.floor((event.clientY - canvas.getBoundingClientRect().top) / tall))));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(Math.min(rows - 1, Math.max(0, chosen + step)));
  });
  const focused = host.contains(document.activeElement);
  host.replaceChildren(canvas);
  if (focused) canvas.focus({ preventScroll: true });
}

/** One pixel for each number; each column is as bright as its largest, for channels differ in size. */
function pixels(values, rows, columns) {
  const most = Array.from({ length: columns }, (_, j) => values.reduce((best, row) => Math.max(best, Math.abs(row[j])), 1e-9));
  const canvas = h("canvas", { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  values.forEach((row, i) => row.forEach((value, j) => image.data.set([...diverging(value / most[j]), 255], 4 * (i * columns + j))));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
