// The words of a sentence in a row, and how each reaches the last: from word to word, or at once.

import { s } from "../dom.js";
import { widthOf } from "./axes.js";
import { redrawn, series } from "./colours.js";

const [EDGE, PAD, SIZE] = [2, 5, 13]; // pixels: beside the row, beside a word in its chip, and of its letters
const [CHIP, DOT, HOP, SLANT] = [26, 7, 14, 13]; // pixels: heights of a chip and of a hop, radius of a dot, room for a slanted word
const DARK = 0.66; // of a chip: from here its word is pale

/**
 * Draw the words.
 * @param picture {words: or null where there are only places, length, direct: true where each reaches the last at once,
 *   shades: of each word, from 0 for pale to 1, or null, colour: number of a series, describe}
 */
export function wordPaths(host, picture) {
  redrawn(host, () => draw(host, picture));
}

/**
 * Let a dot go along the way of the first word, and draw the way behind it. Ends in the picture as it was.
 * @param sent {steps: of the way, travel: milliseconds of it, rest: milliseconds until the dot goes, left: how dark it is
 *   after so many steps, from 0 to 1, told: called with each step}
 */
export function sendAlong(host, { steps, travel, rest, left, told }) {
  cancelAnimationFrame(host.frame);
  const started = performance.now();
  let before = -1;
  const move = (now) => {
    cancelAnimationFrame(host.frame);
    const way = host.querySelector(".route");
    const at = Math.min(1, Math.max(0, now - started) / travel) * steps;
    const step = Math.floor(at);
    const is = now - started < rest;
    host.move = is ? move : null;
    if (is) {
      const { x, y } = way.getPointAtLength((way.getTotalLength() * at) / steps);
      way.setAttribute("stroke-dasharray", `${at} ${steps}`);
      let dot = host.querySelector(".sent");
      if (!dot) way.ownerSVGElement.append(dot = s("g", { class: "sent" }, s("circle", { class: "ground", r: DOT }), s("circle", { r: DOT })));
      dot.setAttribute("transform", `translate(${x} ${y})`);
      dot.lastChild.setAttribute("fill-opacity", left(step));
    } else {
      way.removeAttribute("stroke-dasharray");
      host.querySelector(".sent")?.remove();
    }
    if (step !== before) told(before = step);
    if (is) host.frame = requestAnimationFrame(move);
  };
  host.frame = requestAnimationFrame(move);
}

/** Middles and widths of the chips of words, as far as they fit into a row. */
function chipsOf(words, width) {
  const wide = words.map((word) => (widthOf(word) * SIZE) / 12 + 2 * PAD);
  const gap = (width - 2 * EDGE - wide.reduce((sum, each) => sum + each, 0)) / (words.length - 1);
  if (gap < 1) return null;
  let at = EDGE;
  return wide.map((each) => {
    const chip = { x: at + each / 2, wide: each };
    at += each + Math.min(gap, 14);
    return chip;
  });
}

function draw(host, { words, length, direct, shades, colour, describe }) {
  const width = Math.max(220, host.clientWidth);
  const chips = words && chipsOf(words, width);
  const begin = DOT + (words && !chips ? 1.5 * DOT : 0); // the first slanted word hangs to the left
  const gap = (width - begin - DOT - 2 * EDGE) / Math.max(1, length - 1);
  const places = chips ?? Array.from({ length }, (_, i) => ({ x: begin + EDGE + gap * i }));
  const slanted = !chips && words && gap >= SLANT;
  const last = length - 1;
  const rise = direct ? Math.min(120, 0.32 * width) : 2 * HOP; // of the widest arc, which a curve reaches half
  const top = rise / 2 + DOT + 2;
  const radius = Math.min(DOT, 0.42 * gap);
  const foot = chips ? CHIP : 2 * radius + (slanted ? 62 : 20);
  const height = top + foot + 2;
  const arc = (from, to) => {
    const [x1, x2] = [places[from].x, places[to].x];
    return `Q${(x1 + x2) / 2} ${top - rise * (direct ? 0.25 + 0.75 * ((x2 - x1) / width) : 1)} ${x2} ${top}`;
  };
  const start = (from) => `M${places[from].x} ${top}`;
  const steps = direct ? [[0, last]] : Array.from({ length: last }, (_, i) => [i, i + 1]);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, style: { color: series(colour) }, role: "img", "aria-label": describe });
  // At once each arc is as strong as what arrives of its word.
  if (direct) svg.append(...places.slice(0, -1).map((_, i) => s("path", { class: "wire lit", "stroke-opacity": shades?.[i] ?? 0.3, d: start(i) + arc(i, last) })));
  svg.append(s("path", { class: "route", pathLength: steps.length, "stroke-width": Math.min(3, 0.2 * gap), d: start(0) + steps.map((step) => arc(...step)).join("") }));
  for (const [i, { x, wide }] of places.entries()) {
    const shade = shades?.[i] ?? 0;
    const look = { class: "knot on", "fill-opacity": 0.04 + 0.96 * shade };
    if (chips) {
      const box = { x: x - wide / 2, y: top, width: wide, height: CHIP, rx: 5 };
      svg.append(s("rect", { ...box, class: "knot ground" }), s("rect", { ...box, ...look }),
        s("text", { class: `chip-word${shade > DARK ? " pale" : ""}`, x, y: top + CHIP / 2 + 4.5, "text-anchor": "middle" }, words[i]));
    } else {
      // The ground shows through a pale dot, and not the line below it.
      const dot = { cx: x, cy: top + radius, r: radius };
      svg.append(s("circle", { ...dot, class: "knot ground" }), s("circle", { ...dot, ...look }));
      if (slanted) svg.append(s("text", { class: "tick", "text-anchor": "end", transform: `translate(${x + 4} ${top + 2 * radius + 9}) rotate(-60)` }, words[i]));
    }
  }
  if (!chips && !slanted) svg.append(s("text", { class: "tick", x: EDGE, y: height - 4 }, words?.[0] ?? "first token"), s("text", { class: "tick", x: width - EDGE, y: height - 4, "text-anchor": "end" }, words?.[last] ?? "last token"));
  host.replaceChildren(svg);
  host.move?.(performance.now()); // a dot on its way goes on in the new drawing
}
