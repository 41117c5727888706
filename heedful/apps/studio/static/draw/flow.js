// A block as a diagram: the stream on the left from top to bottom, what reads it and adds to it on
// the right. Where a part stands follows from what it is and what it reads, as the library says.

import { number, s } from "../dom.js";
import { insideOf, insidePicture } from "./block_inside.js";
import { redrawn } from "./colours.js";
import { shownPiece } from "./links.js";

const BOX = { height: 27, gap: 11, stream: 196, between: 26, side: 8, head: 25, inside: 3 }; // so low that a block fits a screen
const BAR = { step: 6, most: 40, least: 1.8 }; // pixels of a token, bars of a box, pixels of the narrowest
const [VALUE, SHARE] = [42, 34]; // pixels of a number, and more for a word beside it
const NAMED = 200; // pixels of a box: a narrower one has the share alone

/** Whether a piece is no word: an end, another special token, or a full stop. Models keep huge vectors there. */
export const isMark = (piece) => /^(<.*>|\[.*\])$/u.test(piece) || !/[\p{L}\p{N}]/u.test(piece);

/**
 * Draw a block.
 * @param picture {parts, names and says: by key, bands: place → {title, short: for a narrow drawing}, chosen: a key, choose: called with a key, word: a token's index, describe}
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

/**
 * Rows, and columns of the branch from 0; −1 is the stream's. A band's title takes a row's free right side, or room of its own.
 * @param open the part whose row has `room` below it, for what is in it
 */
function arranged(parts, titles, open, room) {
  const columns = parts.some((part) => part.role === "bias") ? 4 : 3;
  const last = columns - 1;
  const spans = {
    bias: [0, 0], query: [last - 2, last - 2], key: [last - 1, last - 1], value: [last, last],
    scores: [0, last - 1], weights: [0, last - 1], memory: [last - 1, last],
  };
  const places = new Map();
  const bands = new Map();
  const step = BOX.height + BOX.gap;
  let [y, below] = [4 - step, 0]; // what is open in this row stands below it
  parts.forEach((part, i) => {
    const free = below === 0;
    if (!beside(part, parts[i - 1])) {
      y += step + below;
      below = 0;
    }
    if (part.key === open) below = room;
    if (!part.on_stream && titles.has(part.place)) {
      if (!bands.has(part.place)) {
        if (!parts[i - 1]?.on_stream || parts[i - 1].role === "sum" || !free) y += BOX.head;
        bands.set(part.place, { from: y - BOX.head - BOX.gap / 2, ...titles.get(part.place) });
      }
      bands.get(part.place).to = y + BOX.height + 4 + below;
    }
    const narrow = part.role === "norm" && part.place === "cross"; // the memory stands beside it
    const [from, to] = part.on_stream ? [-1, -1] : spans[part.role] ?? [0, narrow ? last - 2 : last];
    places.set(part.key, { y, from, to });
  });
  return { places, columns, bands: [...bands.values()], height: y + BOX.height + 6 + below };
}

function draw(host, { parts, names, says, bands: titles, chosen, choose, word, describe }) {
  const open = parts.find(({ key }) => key === chosen);
  const inside = insideOf(open, parts, names, word);
  const { places, columns, bands, height } = arranged(parts, titles, chosen, inside ? inside.height + BOX.inside : 0);
  const width = Math.min(720, Math.max(300, host.clientWidth));
  const stream = Math.min(BOX.stream, width / 3.4);
  const left = stream + BOX.between;
  const each = (width - left - 8 - BOX.side * (columns - 1)) / columns;
  const box = (key) => {
    const { y, from, to } = places.get(key);
    const x = from < 0 ? 3 : left + from * (each + BOX.side);
    const wide = from < 0 ? stream : (to - from + 1) * each + (to - from) * BOX.side;
    return { x, y, width: wide, height: BOX.height, middle: x + wide / 2, stream: from < 0 };
  };
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": describe });
  svg.append(s("defs", {}, s("marker", { id: "flow-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
    s("path", { class: "tip", d: "M0 0L8 4L0 8z" }))));
  const roomy = width - left > 300;
  for (const { from, to, title, short = title } of bands) {
    svg.append(s("rect", { class: "band", x: left - 7, y: from, width: width - left + 6, height: to - from, rx: 9 }),
      s("text", { class: "band-title", x: left + 2, y: from + 18 }, roomy ? title : short));
  }
  for (const part of parts) {
    for (const key of part.reads) {
      const [from, to] = [box(key), box(part.key)];
      svg.append(s("path", { class: from.stream && to.stream ? "flow stream" : "flow", d: wire(from, to), "marker-end": "url(#flow-tip)", "data-from": key, "data-to": part.key }));
    }
  }
  if (inside) {
    const x = open.on_stream ? 3 : left - 2;
    svg.append(insidePicture(inside, { x, y: places.get(chosen).y + BOX.height + BOX.inside, width: width - x - 2 }));
  }
  if (width > 560) svg.append(...streamNote(parts.filter((part) => part.on_stream).map(({ key }) => box(key))));
  // One scale, that of the words, so that a sum and its parts compare.
  const sizes = parts.filter(hasBars).flatMap((part) => part.sizes.map((size, i) => [size, isMark(part.tokens[i])]));
  const longest = sizes.reduce((most, [size, mark]) => (mark && sizes.some((other) => !other[1]) ? most : Math.max(most, size)), 1e-9);
  const own = parts[0].tokens.join();
  const drawn = parts.map((part) => {
    const place = box(part.key);
    const followed = part.tokens.join() === own ? word : -1;
    const shares = sharesOf(part, parts, followed);
    const element = node(part, place, { shares, name: names.get(part.key), says: says.get(part.key) ?? "", chosen: part.key === chosen, choose, word: followed });
    if (shares) element.append(...bars({ sizes: shares.row, tokens: shares.tokens }, { ...place, width: place.width - (place.width < NAMED ? -8 : SHARE) }, names.get(part.key), shares.most, shares.tokens.join() === own ? word : -1, (share) => `${number(100 * share, 3)} % of its attention`));
    else if (hasBars(part)) element.append(...bars(part, place, names.get(part.key), longest, followed));
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

/** What the stream is, where its line is long enough to stand beside. */
function streamNote(boxes) {
  const below = boxes.findIndex((each, i) => i && each.y - boxes[i - 1].y > 4 * (BOX.height + BOX.gap));
  if (below < 0) return [];
  const middle = (boxes[below - 1].y + BOX.height + boxes[below].y) / 2;
  return ["the stream:", "a vector for each", "word, which runs", "past the parts"].map((line, i) =>
    s("text", { class: `stream-note${i ? "" : " first"}`, x: boxes[0].middle + 12, y: middle + 16 * (i - 1) }, line));
}

/** The lengths of the tokens' vectors, a bar each in the order of the text, before the number at the right end; marks are broken where they are longer. */
function bars({ sizes, tokens }, { x, y, width, height }, name, longest, word, tell = (size) => `length ${number(size, 3)}`) {
  const right = x + width - VALUE;
  const step = Math.min(BAR.step, (right - x - 8.3 * name.length - 18) / sizes.length);
  if (step < BAR.least) return [];
  return sizes.map((size, i) => {
    const mark = isMark(tokens[i]);
    const middle = right - (sizes.length - i - 0.5) * step;
    const long = Math.max(0.5, (height - 8) * Math.min(1, size / longest));
    const rise = size > longest ? `v${-0.5 * long}m0 -3v${3 - 0.5 * long}` : `v${-long}`;
    return s("path", { class: `bar${mark ? " apart" : ""}${i === word ? " followed" : ""}`, "stroke-width": step - 1, d: `M${middle} ${y + height - 4}${rise}` },
      s("title", {}, `${shownPiece(tokens[i])}: ${tell(size)}`));
  });
}

/** What a word takes from each word, with the one that it takes most from; null for other parts than weights. */
export function sharesOf(part, parts, word) {
  const row = part.role === "weights" ? part.channels?.[word] : null;
  const key = parts.find((each) => each.place === part.place && (each.role === "key" || each.role === "memory"));
  if (!row || !key || key.tokens.length !== row.length || row.length > BAR.most) return null;
  const most = Math.max(...row);
  return { row, tokens: key.tokens, most, best: row.indexOf(most) };
}

function node(part, { x, y, width, height }, { name, says, chosen, choose, word, shares }) {
  const [size, most] = [part.figures["mean length"], part.figures["mean of the largest"]];
  const figure = size !== undefined ? `length ${number(size, 3)}` : most !== undefined ? `largest weight ${number(most, 2)}` : null;
  const drawn = shares ? shares.row : hasBars(part) ? part.sizes : null;
  const value = shares ? `${width < NAMED ? "" : `${shownPiece(shares.tokens[shares.best])} `}${Math.round(100 * shares.most)} %` : drawn && word >= 0 ? number(part.sizes[word], 3) : "";
  const room = width - 7.6 * name.length - 18 - (drawn ? drawn.length * BAR.step + 46 + (shares ? SHARE : 0) : 0);
  const fits = width - 7.8 * name.length - 7 * value.length > 20;
  const label = `${name}${says ? `, ${says}` : ""}: shape ${part.shape.join(" by ")}${figure ? `, mean ${figure}` : ""}`;
  const group = s("g", { class: `flow-part ${part.role}`, role: "button", tabindex: "0", "aria-pressed": String(chosen), "aria-label": label, "data-part": part.key },
    s("rect", { x, y, width, height, rx: 7 }),
    s("title", {}, label),
    s("text", { class: "name", x: x + 9, y: y + height / 2 + 4.5 }, name, says && 5.7 * says.length < room ? s("tspan", { class: "size", dx: 7 }, says) : null),
    fits ? s("text", { class: "value", x: x + width - 8, y: y + height / 2 + 4.5, "text-anchor": "end" }, value) : null);
  const press = () => choose(part.key);
  group.addEventListener("click", press);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  });
  return group;
}
