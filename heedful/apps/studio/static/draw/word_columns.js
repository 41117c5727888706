// A block as columns, one for each word: lines cross where attention mixes them, and stay in a column
// in the feed-forward network; what both bring is added to the stream, row by row, in numbers.

import { decimalsOf, fixed, h, isStill, s } from "../dom.js";
import { css, diverging, redrawn } from "./colours.js";
import { isMark } from "./flow.js";
import { shownPiece, spokenPiece } from "./links.js";
import { largest, usual } from "./strip.js";

const CELL = 7; // pixels of a channel
const CHANNELS = 6; // so few that each can be seen and pointed at
const [ROOM, SMALL, WIDEST] = [26, 46, 76]; // pixels of a word: at least, at least on a narrow screen, at most
const [HEAD, GAP, LABEL] = [20, 4, 14];
const BANDS = { all: 68, back: 68, own: 32 };
const MEETS = { all: () => true, back: (from, to) => from <= to };
const TOLD = 0.05; // shares from here on are written
const CLOSE = 34; // pixels of a word: where it has less, the largest share alone is written
const PACE = 320; // milliseconds from row to row, as a word goes down
const EXACT = 0.01; // of the largest number: sums that are scaled or normed on the way are not drawn as sums
const NAMES = { self: "self-attention", cross: "cross-attention", feedforward: "feed-forward" };

/** The rows {sign, name, place, vectors: of all words}, or null where the stream is no plain sum. */
export function streamRows(parts) {
  const by = new Map(parts.map((part) => [part.key, part]));
  const vectors = (key) => by.get(key).channels?.map((each) => each.slice(0, CHANNELS));
  if (!vectors("input")) return null;
  const rows = [{ sign: "", name: "stream in", vectors: vectors("input") }];
  for (const part of parts.filter(({ role, on_stream: on }) => role === "sum" || (role === "norm" && on))) {
    const after = vectors(part.key);
    if (part.role === "norm") {
      rows.push({ sign: "", name: "after the norm", vectors: after });
      continue;
    }
    const [stream, added] = part.reads;
    if (added === undefined || !vectors(added)) return null;
    const [before, plus] = [vectors(stream), vectors(added)];
    const isSum = (row, i) => row.every((value, j) => Math.abs(before[i][j] + plus[i][j] - value) <= EXACT * largest(row));
    if (!after.every(isSum)) return null;
    rows.push({ sign: "+", name: NAMES[part.place] ?? part.place, place: part.place, vectors: plus }, { sign: "=", name: "sum", vectors: after });
  }
  return rows;
}

/**
 * Draw the columns.
 * @param picture {rows, parts, bands: as of `flowPicture`, with mixes: which words meet, as in MEETS, word: the one that is followed, choose: called with a word}
 */
export function columnsPicture(host, picture) {
  let at = null; // {word, channel} whose numbers stand at the right
  redrawn(host, () => draw(host, picture, at, (now) => (at = now)));
  if (!isStill() && host.word !== picture.word) flowDown(host);
  host.word = picture.word;
}

/** Let the word go down its rows: lines grow into it, then its vector of the row comes. */
function flowDown(host) {
  const own = host.querySelectorAll(".lane-line.own");
  const timing = (row) => ({ delay: row * PACE, duration: 1.5 * PACE, fill: "backwards", easing: "ease-out" });
  for (const line of own) line.animate([{ strokeDasharray: "0 900" }, { strokeDasharray: "900 0" }], timing(Number(line.dataset.row)));
  for (const cell of host.querySelectorAll(".lane-cell")) cell.animate([{ opacity: 0.12 }, { opacity: 1 }], timing(Number(cell.dataset.row)));
  host.querySelectorAll(".addition-number").forEach((figure, i) => figure.animate([{ opacity: 0 }, { opacity: 1 }], timing(i)));
}

/** The words that have room: all, or those that the followed one looks at most. */
function shownWords({ parts, rows, word }, count) {
  const all = rows[0].vectors.map((_, i) => i);
  const row = parts.find(({ place, role }) => place === "self" && role === "weights")?.channels?.[word];
  const rank = (i) => (i === word ? 2 : row?.[i] ?? 0);
  return all.sort((a, b) => rank(b) - rank(a) || Math.abs(a - word) - Math.abs(b - word)).slice(0, count).sort((a, b) => a - b);
}

function draw(host, picture, before, keep) {
  const { rows, parts, bands, word, choose } = picture;
  const width = Math.min(760, Math.max(300, host.clientWidth));
  const wide = width > 520;
  const [left, right] = wide ? [146, 72] : [14, 62];
  const words = shownWords(picture, Math.floor((width - left - right) / (wide ? ROOM : SMALL)));
  const step = Math.min(WIDEST, (width - left - right) / words.length);
  const middle = (k) => left + (k + 0.5) * step;
  const end = left + words.length * step;
  const { tokens } = parts[0];
  const most = usual(...rows.flatMap(({ vectors }) => words.filter((i) => !isMark(tokens[i])).map((i) => vectors[i])));
  const cell = Math.min(step - 4, 56);
  const followed = words.indexOf(word);
  const first = rows[1].vectors[word].reduce((best, value, i, row) => (Math.abs(value) > Math.abs(row[best]) ? i : best), 0);
  const at = before ?? { word, channel: first };
  const drawn = [];
  const tops = [];
  let y = HEAD + (wide ? 0 : GAP);
  for (const { sign, name, place, vectors } of rows) {
    if (place) {
      const source = sourceOf(parts, place, words, middle, { left, end });
      const high = BANDS[bands.get(place)?.mixes ?? "own"] + (source.names ? LABEL : 0) + (wide ? 0 : LABEL);
      drawn.push(...bandPicture(bands.get(place), { row: tops.length, y, high, wide, left, end, step, middle, words, followed, word, source }));
      y += high + GAP;
    }
    if (!wide) y += LABEL;
    tops.push(y);
    drawn.push(s("text", { class: `addition${sign === "+" ? " added" : ""}`, x: wide ? 16 : left, y: wide ? y + (CHANNELS * CELL) / 2 + 4 : y - 4 }, `${sign} ${name}`.trim()),
      ...words.flatMap((i, k) => vectors[i].map((value, j) => s("rect", { class: "lane-cell", "data-row": tops.length - 1, x: middle(k) - cell / 2, y: y + j * CELL, width: cell, height: CELL - 0.6, fill: css(diverging(Math.max(-1, Math.min(1, value / most)))) }))));
    y += CHANNELS * CELL + GAP;
  }
  const height = y;
  const half = (CHANNELS * CELL) / 2;
  const sums = rows.flatMap(({ sign }, i) => (sign === "=" ? [tops[i] + half] : []));
  const stream = s("path", { class: "lane-stream", d: `M5 ${tops[0] + half}V${tops.at(-1) + half}` });
  const svg = s("svg", { class: "lanes", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" },
    s("rect", { class: "lane-followed", x: left + followed * step, y: 0, width: step, height: height - GAP, rx: 5 }),
    words.map((i, k) => s("text", { class: `lane-word${i === word ? " own" : ""}`, x: middle(k), y: 14 }, shortened(tokens[i], step), s("title", {}, shownPiece(tokens[i])))),
    stream, [tops[0] + half, ...sums].map((cy, i) => s("circle", { class: "lane-joint", cx: 5, cy, r: i ? 4.5 : 3.5 })), drawn);
  const frames = rows.map(() => s("rect", { class: "addition-frame", width: cell + 2, height: CELL + 1.4, rx: 2 }));
  const head = s("text", { class: "lane-channel", x: width - 2, y: 14 });
  const figures = rows.map((_, i) => s("text", { class: `addition-number${rows[i].sign === "+" ? " added" : ""}`, x: width - 2, y: tops[i] + half + 4 }));
  svg.append(...frames, head, ...figures);
  const mark = (now) => {
    const column = words.indexOf(now.word);
    head.textContent = `channel ${now.channel + 1}`;
    frames.forEach((frame, i) => {
      frame.setAttribute("x", middle(column) - cell / 2 - 1);
      frame.setAttribute("y", tops[i] + now.channel * CELL - 1);
    });
    const told = toldOf(rows, rows.map(({ vectors }) => vectors[now.word][now.channel]));
    figures.forEach((figure, i) => (figure.textContent = told[i]));
    svg.setAttribute("aria-label", `“${shownPiece(tokens[now.word])}”, channel ${now.channel + 1}: ${rows.map(({ name }, i) => `${name} ${told[i]}`).join(", ")}. Arrow keys go from channel to channel and from word to word.`);
  };
  const go = (now) => {
    keep(now);
    mark(now);
    Object.assign(at, now);
  };
  mark(words.includes(at.word) ? at : { ...at, word });
  listen(svg, { rows, words, tops, left, step, at, go, choose });
  const rest = words.length < tokens.length && `${words.length} of ${tokens.length} words, those that “${spokenPiece(tokens[word])}” looks at most: there is no room for more.`;
  host.replaceChildren(svg, rest ? h("p", { class: "hint" }, rest) : "");
}

/** The numbers of a channel with the signs of their rows, so exact that the sums are right as they are written. */
function toldOf(rows, values) {
  const decimals = decimalsOf(rows.flatMap(({ sign }, i) => (sign === "=" ? [[values[i], values[i - 2], values[i - 1]]] : [])));
  return values.map((value, i) => (rows[i].sign === "+" ? `${value < 0 ? "−" : "+"} ${fixed(Math.abs(value), decimals)}` : `${rows[i].sign ? "= " : ""}${fixed(value, decimals)}`));
}

function shortened(piece, step) {
  const name = spokenPiece(piece);
  const room = Math.max(3, Math.floor(step / 7));
  return name.length > room ? `${name.slice(0, room - 1)}…` : name;
}

/** Pointing tells the numbers of a cell, a click follows its word, arrow keys go along. */
function listen(svg, { words, tops, left, step, at, go, choose }) {
  const placeOf = (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const column = Math.floor((x - left) / step);
    const top = tops.findLast((each) => each <= y);
    const channel = Math.floor((y - top) / CELL);
    return { word: words[column], channel: channel < CHANNELS ? channel : undefined };
  };
  svg.addEventListener("pointermove", (event) => {
    const { word, channel } = placeOf(event);
    if (word !== undefined && channel !== undefined) go({ word, channel });
  });
  svg.addEventListener("click", (event) => {
    const { word } = placeOf(event);
    if (word !== undefined) choose(word);
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] }[event.key];
    if (!by && event.key !== "Enter") return;
    event.preventDefault();
    if (!by) return choose(at.word);
    const within = (value, count) => Math.min(count - 1, Math.max(0, value));
    go({ word: words[within(words.indexOf(at.word) + by[0], words.length)], channel: within(at.channel + by[1], CHANNELS) });
  });
}

/** Where the lines into a band come from: the words' own columns, or the source's pieces along its top. */
function sourceOf(parts, place, words, middle, { left, end }) {
  const weights = parts.find((part) => part.place === place && part.role === "weights")?.channels;
  if (place !== "cross") return { from: words.map((i, k) => ({ index: i, x: middle(k) })), weights };
  const { tokens } = parts.find((part) => part.place === place && part.role === "memory") ?? { tokens: [] };
  const step = (end - left) / Math.max(1, tokens.length);
  return { from: tokens.map((_, i) => ({ index: i, x: left + (i + 0.5) * step })), weights, names: tokens.map((piece) => shortened(piece, step)) };
}

/** A sub-layer: which words meet, and how much the followed one takes from each. */
function bandPicture(band, { row, y, high, wide, left, end, step, middle, words, followed, word, source }) {
  const mixes = band?.mixes ?? "own";
  const title = wide ? wrapped(band?.short ?? band?.title ?? "", 17) : [band?.short ?? band?.title ?? ""];
  const [top, bottom] = [y + (wide ? 0 : LABEL) + (source.names ? LABEL + 2 : 0), y + high - 2];
  const ground = s("rect", { class: "band", x: left - 2, y, width: end - left + 4, height: high, rx: 6 });
  const names = title.map((line, i) => s("text", { class: "lane-title", x: wide ? 16 : left + 2, y: wide ? y + high / 2 + 5 + 15 * (i - (title.length - 1) / 2) : y + 11 }, line));
  if (mixes === "own") {
    return [ground, ...names, ...words.flatMap((_, k) => [s("path", { class: `lane-line${k === followed ? " own" : ""}`, "data-row": row, d: `M${middle(k)} ${top}V${bottom}` }),
      s("rect", { class: "lane-box", x: middle(k) - Math.min(14, step / 2 - 4), y: (top + bottom) / 2 - 6, width: Math.min(28, step - 8), height: 12, rx: 3 })])];
  }
  const from = top + LABEL; // below the shares
  const line = (x, to, weight, own) => s("path", { class: `lane-line${own ? " own" : ""}`, "data-row": row, d: `M${x} ${from}C${x} ${(from + bottom) / 2} ${middle(to)} ${(from + bottom) / 2} ${middle(to)} ${bottom}`, "stroke-width": own ? 1 + 8 * weight : 1, ...(own && source.weights ? { "stroke-opacity": 0.3 + 0.7 * weight, "data-share": weight } : {}) });
  const meets = (index, i) => source.names || MEETS[mixes](index, i);
  const share = (i, index) => source.weights?.[i]?.[index] ?? 0;
  const lines = words.flatMap((i, k) => (k === followed ? [] : source.from.filter(({ index }) => meets(index, i)).map(({ x }) => line(x, k, 0, false))));
  const own = source.from.filter(({ index }) => meets(index, word)).map(({ index, x }) => line(x, followed, share(word, index), true));
  const best = Math.max(...source.from.map(({ index }) => share(word, index)));
  const shares = source.from.filter(({ index }) => share(word, index) >= (step < CLOSE ? best : TOLD))
    .map(({ index, x }) => s("text", { class: "lane-share", x, y: top + 11 }, `${Math.round(100 * share(word, index))} %`));
  return [ground, ...names, ...(source.names ?? []).map((name, i) => s("text", { class: "lane-word", x: source.from[i].x, y: y + (wide ? 12 : LABEL + 12) }, name)), ...lines, ...own, ...shares];
}

function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= letters) lines.push("");
    lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trim();
  }
  return lines;
}
