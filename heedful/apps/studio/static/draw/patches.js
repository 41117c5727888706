// A picture as a model of images cuts it, and what is laid over its patches.

import { h, number, percent, s } from "../dom.js";
import { css, ink, redrawn } from "./colours.js";

const SIZE = 340;
const DIM = 0.6; // of a picture's own contrast below colours, so that they stand out
const [SAID, ROOM] = [0.05, 46]; // a share from which it is written on its patch, and the pixels that it needs
const AXIS = 20; // pixels for the name of the upright axis

/**
 * Draw patches apart from each other, or together with colour over them.
 * @param picture {pixels, side, patch, channels, shares, chosen, describe, choose, tell}
 *   pixels: bytes of the patches in reading order, of each its channels, rows and columns;
 *   shares: for each patch how much colour lies over it, or null to draw them apart;
 *   chosen: the patch with a frame, or −1; erased: patches that are black, with a frame each; choose: called with a patch that is pointed at;
 *   known: for each patch whether it is there, by default all of them;
 *   size: in pixels, by default as wide as the place; axes: names of the level and of the upright one
 */
export function patchPicture(host, picture) {
  redrawn(host, () => draw(host, picture));
}

function draw(host, picture) {
  const count = picture.side / picture.patch;
  const gap = picture.shares ? 0 : SIZE / count >= 16 ? 3 : 1;
  const size = Math.min(picture.size ?? SIZE, Math.max(140, host.clientWidth)) - (picture.axes ? AXIS : 0) - gap * (count - 1);
  const unit = size / picture.side;
  const step = unit * picture.patch + gap;
  const whole = size + gap * (count - 1);
  const ratio = devicePixelRatio || 1;
  const canvas = h("canvas", { role: "img", tabindex: picture.choose ? "0" : null, class: picture.choose ? "choosable" : null,
    "aria-label": picture.describe + (picture.choose ? " Arrow keys choose a patch." : "") });
  canvas.width = Math.round(whole * ratio);
  canvas.height = canvas.width;
  canvas.style.width = `${whole}px`;
  canvas.style.height = `${whole}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const most = picture.shares ? Math.max(...picture.shares, 1e-12) : 1;
  const ground = picture.shares && groundOf(picture);
  for (let i = 0; i < count * count; i += 1) {
    const [x, y] = [(i % count) * step, Math.floor(i / count) * step];
    if (picture.known && !picture.known[i]) {
      pen.fillStyle = style.getPropertyValue("--sunken");
      pen.fillRect(x, y, step - gap, step - gap);
      continue;
    }
    if (picture.erased?.includes(i)) {
      pen.fillStyle = "#000";
      pen.fillRect(x, y, step - gap, step - gap);
      continue;
    }
    pixels(pen, picture, i, x, y, unit, ground);
    if (!picture.shares) continue;
    pen.globalAlpha = 0.9 * (picture.shares[i] / most);
    pen.fillStyle = style.getPropertyValue("--glow");
    pen.fillRect(x, y, step, step);
    pen.globalAlpha = 1;
  }
  if (picture.shares && step >= ROOM) written(pen, picture.shares, count, step);
  // Over colours of attention the frame is white, in black so that it is seen on any ground.
  for (const [colour, line] of picture.shares ? [["#000", 5], ["#fff", 2.5]] : [[style.getPropertyValue("--glow"), 3]]) {
    Object.assign(pen, { strokeStyle: colour, lineWidth: line });
    for (const i of picture.erased ?? (picture.chosen >= 0 ? [picture.chosen] : [])) {
      pen.strokeRect((i % count) * step + 1.5, Math.floor(i / count) * step + 1.5, step - gap - 3, step - gap - 3);
    }
  }
  if (picture.choose) listen(canvas, picture, count, step);
  const focused = host.contains(document.activeElement);
  host.replaceChildren(picture.axes ? h("div", { class: "axed" }, h("span", {}, `${picture.axes[1]} →`), canvas, h("span", {}, `${picture.axes[0]} →`)) : canvas);
  if (focused && picture.choose) canvas.focus({ preventScroll: true });
}

/** Write the large shares on their patches, and part these by lines. */
function written(pen, shares, count, step) {
  pen.strokeStyle = "rgb(255 255 255 / 0.14)";
  pen.lineWidth = 1;
  for (let i = 1; i < count; i += 1) {
    pen.strokeRect(Math.round(i * step) + 0.5, -1, count * step, count * step + 2);
    pen.strokeRect(-1, Math.round(i * step) + 0.5, count * step + 2, count * step);
  }
  Object.assign(pen, { font: `600 14px ${getComputedStyle(document.body).fontFamily}`, textAlign: "center", textBaseline: "middle", fillStyle: "#fff", strokeStyle: "#000", lineWidth: 3, lineJoin: "round" });
  shares.forEach((share, i) => {
    if (share < SAID) return;
    const words = [percent(share, 2), (i % count + 0.5) * step, (Math.floor(i / count) + 0.5) * step];
    pen.strokeText(...words);
    pen.fillText(...words);
  });
}

/** Draw one patch large, its brightness as numbers where there is room and one channel. */
export function patchNumbers(host, { pixels: bytes, patch, channels, chosen }) {
  const area = patch * patch;
  const unit = 100 / patch;
  const values = Array.from({ length: area }, (_, i) => Array.from({ length: channels }, (__, channel) => bytes[(chosen * channels + channel) * area + i]));
  host.replaceChildren(s("svg", { viewBox: "0 0 100 100", role: "img", "aria-label": `Brightness of the patch: ${values.join(", ")}` }, values.map((value, i) => {
    const [x, y] = [(i % patch) * unit, Math.floor(i / patch) * unit];
    const [red, green, blue] = [0, 1, 2].map((channel) => value[channels === 1 ? 0 : channel]);
    return s("g", {}, s("rect", { x, y, width: unit + 0.2, height: unit + 0.2, fill: css([red, green, blue]) }),
      channels === 1 && patch <= 7 ? s("text", { class: "patch-number", x: x + unit / 2, y: y + unit / 2 + 2.5, fill: ink([red, green, blue]) }, red) : null);
  })));
}

/** What the colours of attention mean: from none to the largest share of all places, over the colour of their ground. */
export function shareKey(most, ground = "transparent") {
  const bar = h("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, transparent, var(--glow)), ${ground}`;
  return h("p", { class: "key" }, "0", bar, `${number(most, 3)}, the largest here`);
}

/** Labels as bars, the likeliest first; the strong one is the first, or the `own` one. */
export const labelBars = (labels, own = labels[0]) => h("ul", { class: "beside classes" }, labels.map((each) => {
  const bar = h("span", { class: "length", style: { width: `${100 * each.probability}%` } });
  return h("li", { class: each === own ? "own" : null }, h("span", { "data-fact": each === own ? "label" : null }, each.label), h("span", { class: "track" }, bar),
    h("span", { class: "count" }, percent(each.probability)));
}));

/** One patch of an answer, as a small picture. */
export function patchOf(drawing, index) {
  const { patch, channels } = drawing;
  const size = patch * patch;
  const bytes = pixelsOf(drawing).subarray(index * size * channels);
  const canvas = h("canvas", { width: patch, height: patch, title: `patch ${index + 1}` });
  const made = new ImageData(patch, patch);
  for (let i = 0; i < size; i += 1) made.data.set([0, 1, 2].map((c) => bytes[i * channels + (c % channels)]).concat(255), 4 * i);
  canvas.getContext("2d").putImageData(made, 0, 0);
  return canvas;
}

/** The bytes of the patches of an answer, in reading order. */
export const pixelsOf = ({ patches }) => Uint8Array.from(atob(patches), (letter) => letter.charCodeAt(0));

/** Whether nothing is drawn: every pixel is black. */
export const isBlank = ({ patches }) => /^A*=*$/.test(patches); // "A" stands for zeros in base64

/** Patches put together again, the first of their colours, as rows of so many pixels: for a pad to draw on. */
export function greyPicture(found, size) {
  const { side, patch, channels } = found;
  const bytes = pixelsOf(found);
  const count = side / patch;
  const at = (y, x) => bytes[(Math.floor(y / patch) * count + Math.floor(x / patch)) * patch * patch * channels + (y % patch) * patch + (x % patch)];
  const near = (i) => Math.floor((i * side) / size);
  return Array.from({ length: size }, (_, y) => Array.from({ length: size }, (__, x) => at(near(y), near(x))));
}

/** The colour of most of a picture: the median of each channel. */
function groundOf({ pixels: bytes, patch, channels }) {
  const medians = Array.from({ length: channels }, (_, channel) => {
    const own = bytes.filter((__, i) => Math.floor(i / (patch * patch)) % channels === channel).sort();
    return own[own.length >> 1];
  });
  return [0, 1, 2].map((channel) => medians[channels === 1 ? 0 : channel]);
}

function pixels(pen, { pixels: bytes, patch, channels }, i, x, y, unit, ground) {
  const area = patch * patch;
  const start = i * area * channels;
  const small = h("canvas", { width: patch, height: patch });
  const image = new ImageData(patch, patch);
  for (let place = 0; place < area; place += 1) {
    const rgb = [0, 1, 2].map((channel) => bytes[start + (channels === 1 ? 0 : channel) * area + place]);
    image.data.set([...rgb.map((value, channel) => (ground ? DIM * value + (1 - DIM) * ground[channel] : value)), 255], 4 * place);
  }
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, x, y, unit * patch + 0.5, unit * patch + 0.5); // half a pixel more leaves no seams
}

function listen(canvas, picture, count, step) {
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (value) => Math.min(count - 1, Math.max(0, Math.floor(value / step)));
    picture.choose(at(event.clientY - box.top) * count + at(event.clientX - box.left));
  });
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const [row, column] = [Math.floor(Math.max(0, picture.chosen) / count), Math.max(0, picture.chosen) % count];
    const inside = (value) => Math.min(count - 1, Math.max(0, value));
    picture.choose(picture.chosen < 0 ? 0 : inside(row + down) * count + inside(column + right));
  });
}

/** The patch whose pixels differ most: one with something in it. */
export function liveliest({ patches, patch, channels }) {
  const bytes = atob(patches);
  const each = patch * patch * channels;
  const spread = Array.from({ length: bytes.length / each }, (_, i) => {
    const values = Array.from(bytes.slice(i * each, (i + 1) * each), (letter) => letter.charCodeAt(0));
    const mean = values.reduce((sum, value) => sum + value, 0) / each;
    return values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  });
  return spread.indexOf(Math.max(...spread));
}
