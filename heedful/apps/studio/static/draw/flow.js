// A block as a diagram: the stream on the left from top to bottom, what reads it and adds to it on
// the right. Where a part stands follows from what it is and what it reads, as the library says.

import { number, s } from "../dom.js";
import { redrawn } from "./colours.js";
import { shownPiece } from "./links.js";

const BOX = { height: 27, gap: 12, stream: 172, between: 24, side: 8 }; // so low that a block fits a screen
const USUAL = 0.94; // of the lengths are within the scale
const BAR = { step: 5, most: 40, least: 2 }; // pixels of a token, bars of a box, pixels of the narrowest

/** The shape for a small box: without the batch of one. */
export const shortShape = (shape) => shape.slice(1).join(" × ");

/**
 * Draw a block.
 * @param picture {parts, names: by key, chosen: a key, choose: called with a key, describe}
 */
export function flowPicture(host, picture) {
  redrawn(host, () => draw(host, picture));
}

const PROJECTED = new Set(["query", "key", "value", "bias"]);

/** Whether a part stands in the row of the part before it. */
function beside(part, before) {
  if (!before || part.place !== before.place) return false;
  const both = PROJECTED.has(part.role) && PROJECTED.has(before.role);
  return part.role === "sum" || both || (part.role === "memory" && before.role === "norm" && !before.on_stream);
}

/** Rows, and columns of the branch from 0; −1 is the stream's. */
function arranged(parts) {
  const columns = parts.some((part) => part.role === "bias") ? 4 : 3;
  const last = columns - 1;
  const spans = {
    bias: [0, 0], query: [last - 2, last - 2], key: [last - 1, last - 1], value: [last, last],
    scores: [0, last - 1], weights: [0, last - 1], memory: [last - 1, last],
  };
  const places = new Map();
  let row = -1;
  parts.forEach((part, i) => {
    if (!beside(part, parts[i - 1])) row += 1;
    const narrow = part.role === "norm" && part.place === "cross"; // the memory stands beside it
    const [from, to] = part.on_stream ? [-1, -1] : spans[part.role] ?? [0, narrow ? last - 2 : last];
    places.set(part.key, { row, from, to });
  });
  return { places, columns, rows: row + 1 };
}

function draw(host, { parts, names, chosen, choose, describe }) {
  const { places, columns, rows } = arranged(parts);
  const width = Math.min(720, Math.max(300, host.clientWidth));
  const stream = Math.min(BOX.stream, width / 3.4);
  const left = stream + BOX.between;
  const each = (width - left - 3 - BOX.side * (columns - 1)) / columns;
  const step = BOX.height + BOX.gap;
  const height = rows * step - BOX.gap + 8;
  const box = (key) => {
    const { row, from, to } = places.get(key);
    const x = from < 0 ? 3 : left + from * (each + BOX.side);
    const wide = from < 0 ? stream : (to - from + 1) * each + (to - from) * BOX.side;
    return { x, y: 4 + row * step, width: wide, height: BOX.height, middle: x + wide / 2, stream: from < 0 };
  };
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": describe });
  svg.append(s("defs", {}, s("marker", { id: "flow-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
    s("path", { class: "tip", d: "M0 0L8 4L0 8z" }))));
  for (const part of parts) {
    for (const key of part.reads) {
      const [from, to] = [box(key), box(part.key)];
      svg.append(s("path", { class: from.stream && to.stream ? "flow stream" : "flow", d: wire(from, to), "marker-end": "url(#flow-tip)", "data-from": key, "data-to": part.key }));
    }
  }
  // One scale, so that a sum and its parts compare; few tokens, such as an end, are many times as long.
  const lengths = parts.filter(hasBars).flatMap((part) => part.sizes).sort((a, b) => a - b);
  const longest = lengths[Math.floor(USUAL * (lengths.length - 1))];
  const drawn = parts.map((part) => {
    const place = box(part.key);
    const element = node(part, place, names.get(part.key), part.key === chosen, choose);
    if (hasBars(part)) element.append(...bars(part, place, names.get(part.key), longest));
    return element;
  });
  for (const [index, element] of drawn.entries()) {
    element.addEventListener("keydown", (event) => {
      const next = { ArrowDown: index + 1, ArrowRight: index + 1, ArrowUp: index - 1, ArrowLeft: index - 1, Home: 0, End: drawn.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      drawn[Math.min(drawn.length - 1, Math.max(0, next))].focus();
    });
  }
  svg.append(...drawn);
  const focused = host.contains(document.activeElement) ? document.activeElement.getAttribute("data-part") : null;
  host.replaceChildren(svg);
  if (focused) svg.querySelector(`[data-part="${focused}"]`)?.focus({ preventScroll: true });
}

/** From the bottom of one box to the top of another, or sideways between stream and branch. */
function wire(from, to) {
  const bottom = from.y + from.height;
  if (from.y === to.y) return `M${from.x} ${from.y + from.height / 2}L${to.x + to.width + 2} ${to.y + to.height / 2}`;
  const within = (x, side) => x > side.x && x < side.x + side.width;
  const x = within(to.middle, from) ? to.middle : within(from.middle, to) ? from.middle : null;
  if (x !== null) return `M${x} ${bottom}L${x} ${to.y - 2}`;
  const turn = to.y - BOX.gap / 2;
  return `M${from.middle} ${bottom}L${from.middle} ${turn}L${to.middle} ${turn}L${to.middle} ${to.y - 2}`;
}

/** Whether a tensor is one vector for each token, few enough for a bar each. */
const hasBars = ({ sizes, shape }) => sizes !== null && shape.length === 3 && sizes.length <= BAR.most;

/** The lengths of the tokens' vectors, a bar each, before the number at the right end. */
function bars({ sizes, tokens }, { x, y, width, height }, name, longest) {
  const right = x + width - 40;
  const step = Math.min(BAR.step, (right - x - 7.2 * name.length - 22) / sizes.length);
  if (step < BAR.least) return [];
  return sizes.map((size, i) => s("path", { class: "bar", "stroke-width": step - 1, d: `M${right - (sizes.length - i - 0.5) * step} ${y + height - 4}v${-Math.max(0.5, ((height - 9) * Math.min(1.3, size / longest)))}` },
    s("title", {}, `${shownPiece(tokens[i])}: length ${number(size, 3)}`)));
}

function node(part, { x, y, width, height }, name, chosen, choose) {
  const [size, most] = [part.figures["mean length"], part.figures["mean of the largest"]];
  const figure = size !== undefined ? `length ${number(size, 3)}` : most !== undefined ? `largest weight ${number(most, 2)}` : null;
  const shape = shortShape(part.shape);
  // Three boxes share a row: their shapes say more than their lengths.
  const value = PROJECTED.has(part.role) ? "" : size !== undefined ? number(size, 3) : most === undefined ? "" : `largest ${number(most, 2)}`;
  const end = x + width - 8;
  const room = width - 7.4 * name.length - 6.1 * shape.length - 22;
  const both = room - 7 * value.length > (hasBars(part) ? part.sizes.length * BAR.step : 0); // else the shape is in the label alone
  const fits = width - 7.8 * name.length - 7 * value.length > 20;
  const label = `${name}: shape ${part.shape.join(" by ")}${figure ? `, mean ${figure}` : ""}`;
  const group = s("g", { class: `flow-part ${part.role}`, role: "button", tabindex: "0", "aria-pressed": String(chosen), "aria-label": label, "data-part": part.key },
    s("rect", { x, y, width, height, rx: 7 }),
    s("title", {}, label),
    s("text", { class: "name", x: x + 9, y: y + height / 2 + 4.5 }, name, both ? s("tspan", { class: "size", dx: 7 }, shape) : null),
    fits ? s("text", { class: "value", x: end, y: y + height / 2 + 4.5, "text-anchor": "end" }, value) : null);
  const press = () => choose(part.key);
  group.addEventListener("click", press);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  });
  return group;
}
