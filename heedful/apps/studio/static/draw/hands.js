// Pairs of channels as hands of a clock: each turns with the position, fast ones and slow ones. A
// hand's height is the sine, which the wave beside it draws over all positions.

import { button } from "../controls.js";
import { h, number, s } from "../dom.js";
import { redrawn, series } from "./colours.js";

const [ROW, RADIUS, LEFT, RIGHT] = [74, 30, 8, 226]; // pixels; right of the waves stand clock and words
const [NARROW, CLOCK, BELOW] = [480, 80, 24]; // in a narrow drawing the words stand below their wave
const [SMALLEST, ROOM] = [112, 34]; // a clock's column, and words below it
const TICKS = 8; // positions that are named below the waves, at most

const turnsIn = (frequency) => `one turn in ${number((2 * Math.PI) / frequency, 3)}`;
const channelsOf = (pair) => `channels ${2 * pair}, ${2 * pair + 1}`;
const degrees = (radians) => (-180 * radians) / Math.PI; // SVG turns clockwise

/**
 * Draw waves and hands; drawn anew with another position, the hands turn there.
 * @param host where
 * @param picture {pairs: [{pair: its number, frequency: radians per position}], length: positions, at: the chosen one, choose: called with one, describe}
 */
export function wavesAndHands(host, picture) {
  host.numbers = () => ({
    title: picture.describe, columns: ["pair", "radians per position", "position", "sine", "cosine"],
    rows: picture.pairs.map(({ pair, frequency: each }) => [pair, each, picture.at, Math.sin(each * picture.at), Math.cos(each * picture.at)]),
  });
  kept(host, picture, build);
}

/**
 * Draw a clock for each pair with two hands, a query's and a key's.
 * @param picture {pairs, at: position of the query, gap: how far the key stands behind it, describe}
 */
export function pairsOfHands(host, picture) {
  host.numbers = () => ({
    title: picture.describe, columns: ["pair", "query's angle", "key's angle", "between them", "cosine"],
    rows: picture.pairs.map(({ pair, frequency: each }) => [pair, each * picture.at, each * (picture.at + picture.gap), each * picture.gap, Math.cos(each * picture.gap)]),
  });
  kept(host, picture, buildPairs);
}

/** Draw, or where only the position is another one, turn what is there. */
function kept(host, picture, make) {
  const key = JSON.stringify([make.name, picture.pairs, picture.length, picture.gap]);
  const stands = host.hands?.key === key && host.contains(host.hands.svg);
  host.hands = { ...(stands ? host.hands : { key }), picture };
  if (stands) {
    host.hands.turn(picture);
    return;
  }
  redrawn(host, () => {
    Object.assign(host.hands, make(host, host.hands.picture));
    host.replaceChildren(host.hands.svg);
    host.hands.turn(host.hands.picture);
  });
}

function clock(x, y, radius, kinds, colour) {
  const hands = kinds.map((kind) => s("line", { class: `hand ${kind}`, x1: 0, y1: 0, x2: radius, y2: 0 }));
  return { hands, group: s("g", { transform: `translate(${x} ${y})` }, s("circle", { class: "clock", r: radius, style: { stroke: colour } }), s("line", { class: "clock-zero", x1: radius - 4, x2: radius, y1: 0, y2: 0 }), hands) };
}

const turn = (hand, angle) => {
  hand.style.transform = `rotate(${degrees(angle)}deg)`;
};

function build(host, { pairs, length, describe }) {
  const width = Math.max(300, host.clientWidth);
  const narrow = width < NARROW;
  const row = ROW + (narrow ? BELOW : 0);
  const [right, height] = [width - (narrow ? CLOCK : RIGHT), pairs.length * row + 34];
  const xOf = (position) => LEFT + (position / (length - 1)) * (right - LEFT);
  const amplitude = RADIUS;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "slider", tabindex: "0", class: "hands", "aria-label": describe, "aria-valuemin": 0, "aria-valuemax": length - 1 });
  const line = s("line", { class: "hands-at", y1: 0, y2: pairs.length * row });
  const rows = pairs.map(({ pair, frequency }, i) => {
    const colour = series(i);
    const y = i * row + ROW / 2;
    const [across, lines] = narrow ? [LEFT, [y + RADIUS + 18, y + RADIUS + 18]] : [right + 84, [y - 12, y + 24]];
    const steps = Math.round(right - LEFT) / 2; // a point every two pixels
    const wave = Array.from({ length: steps + 1 }, (_, k) => {
      const position = (k / steps) * (length - 1);
      return `${k ? "L" : "M"}${xOf(position).toFixed(1)} ${(y - amplitude * Math.sin(frequency * position)).toFixed(1)}`;
    });
    const { group, hands: [hand] } = clock(right + 46, y, amplitude, ["query"], colour);
    hand.style.stroke = colour;
    const dot = s("circle", { class: "hands-dot", r: 5, style: { fill: colour } });
    const level = s("line", { class: "hands-level", x2: right + 46, style: { stroke: colour } });
    const words = s("text", { class: "tick", x: narrow ? width - 4 : across, y: lines[1], "text-anchor": narrow ? "end" : "start" });
    svg.append(s("line", { class: "hands-zero", x1: LEFT, x2: right, y1: y, y2: y }), s("path", { class: "hands-wave", d: wave.join(""), style: { stroke: colour } }), level, group, dot,
      s("text", { class: "tick strong", x: across, y: lines[0], style: { fill: colour } }, channelsOf(pair)),
      narrow ? "" : s("text", { class: "tick", x: across, y: y + 6 }, turnsIn(frequency)), words);
    return { frequency, y, hand, dot, level, words };
  });
  const every = Math.ceil(length / TICKS);
  const ticks = Array.from({ length }, (_, i) => i).filter((i) => i % every === 0);
  svg.append(line, ...ticks.map((i) => s("text", { class: "tick", x: xOf(i), y: pairs.length * row + 16, "text-anchor": "middle" }, i)),
    s("text", { class: "tick", x: (LEFT + right) / 2, y: height - 2, "text-anchor": "middle" }, "position"));
  const choose = (position) => host.hands.picture.choose(Math.min(length - 1, Math.max(0, position)));
  const point = (event) => choose(Math.round(((event.clientX - svg.getBoundingClientRect().left - LEFT) / (right - LEFT)) * (length - 1)));
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    point(event);
  });
  svg.addEventListener("pointermove", (event) => event.buttons && point(event));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(host.hands.picture.at + step);
  });
  return {
    svg,
    turn({ at }) {
      svg.setAttribute("aria-valuenow", at);
      for (const name of ["x1", "x2"]) line.setAttribute(name, xOf(at));
      for (const { frequency, y, hand, dot, level, words } of rows) {
        const tip = y - amplitude * Math.sin(frequency * at);
        turn(hand, frequency * at);
        dot.setAttribute("cx", xOf(at));
        dot.setAttribute("cy", tip);
        level.setAttribute("x1", xOf(at));
        level.setAttribute("x2", right + 46 + amplitude * Math.cos(frequency * at));
        for (const name of ["y1", "y2"]) level.setAttribute(name, tip);
        words.textContent = `sin ${number(Math.sin(frequency * at), 2)}, cos ${number(Math.cos(frequency * at), 2)}`;
      }
    },
  };
}

function buildPairs(host, { pairs, gap, describe }) {
  const width = Math.max(300, host.clientWidth);
  const most = Math.min(pairs.length, Math.floor(width / SMALLEST));
  const columns = Math.ceil(pairs.length / Math.ceil(pairs.length / most)); // rows of one length
  const step = width / columns;
  const radius = Math.min(56, step / 2 - 10);
  const tall = 2 * radius + ROOM + 44;
  const rows = Math.ceil(pairs.length / columns);
  const svg = s("svg", { width, height: rows * tall, viewBox: `0 0 ${width} ${rows * tall}`, role: "img", class: "hands", "aria-label": describe });
  const clocks = pairs.map(({ pair, frequency }, i) => {
    const [x, y] = [(i % columns) * step + step / 2, Math.floor(i / columns) * tall + radius + 4];
    const { group, hands } = clock(x, y, radius, ["query", "key"], series(i));
    svg.append(group, s("text", { class: "tick strong", x, y: y + radius + 18, "text-anchor": "middle", style: { fill: series(i) } }, channelsOf(pair)),
      s("text", { class: "tick", x, y: y + radius + 35, "text-anchor": "middle" }, turnsIn(frequency)),
      s("text", { class: "tick hands-between", x, y: y + radius + 52, "text-anchor": "middle" }, `cos ${number(Math.cos(frequency * gap), 2)}`));
    return { frequency, hands };
  });
  return {
    svg,
    turn({ at }) {
      for (const { frequency, hands: [query, key] } of clocks) {
        turn(query, frequency * at);
        turn(key, frequency * (at + gap));
      }
    },
  };
}

/** A row of buttons that move a position on; `play` lets it go by itself. */
export function mover({ get, set, last, steps }) {
  let timer = null;
  const play = button("Play", () => (timer ? halt() : start()), { quiet: true });
  const move = (by) => set(Math.min(last(), Math.max(0, get() + by)));
  function start() {
    play.textContent = "Stop";
    timer = setInterval(() => (play.isConnected && get() < last() ? move(1) : halt()), 350);
    if (get() >= last()) set(0);
  }
  function halt() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  return h("p", { class: "row" }, steps.map(([by, title]) => button(title, () => move(by), { quiet: true })), play);
}
