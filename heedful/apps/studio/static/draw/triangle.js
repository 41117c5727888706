// The causal triangle: a row for each step of a decoder, with the word it writes, and lines from one
// step to the words of the source.

import { folded, h, isStill, number, s, table } from "../dom.js";
import { css, redrawn, sequence } from "./colours.js";
import { shownPiece, spokenPiece } from "./links.js";

const MOST = 40; // rows at a time, the last ones
const TALL = 28; // height of a row, at most
const NAMES = [[640, 112, 13], [460, 78, 9], [0, 60, 9]]; // for a drawing so wide: room for a name, and its letters
const LEAST = 0.02; // weight from which a line is drawn

/**
 * Draw the triangle.
 * @param picture {read: pieces of the steps so far, ended: whether the last one wrote the end, coming: positions ahead, weights: rows of what is
 *   attended to, hidden: rows of what is not seen, source: pieces or null, cross: rows, row: the step
 *   whose lines are drawn, choose: called with a step}
 */
export function causalTriangle(host, picture) {
  const { read, weights, cross, source } = picture;
  host.numbers = () => ({ title: "Attention of each step", columns: ["step", ...read, ...(cross ? source : [])], rows: read.map((piece, i) => [piece, ...read.map((_, j) => weights?.[i]?.[j] ?? null), ...(cross ? cross[i] : [])]) });
  redrawn(host, () => draw(host, picture));
}

function draw(host, picture) {
  const { read, ended, coming, weights, hidden, source, cross, row, choose } = picture;
  const first = Math.max(0, read.length - MOST);
  const rows = read.slice(first);
  const columns = rows.length + coming;
  const [, names, letters] = NAMES.find(([least]) => host.clientWidth >= least);
  const cut = (text) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
  const width = Math.max(source ? 340 : 260, host.clientWidth);
  const side = source ? names + 50 : 0; // the source, and the bend of the lines
  const room = width - 2 * names - 12 - side;
  const cell = Math.min(TALL, room / columns);
  const tall = Math.max(14, Math.min(TALL, cell * 1.4));
  const [left, end] = [names, names + columns * cell];
  const edge = Math.min(end + 10 + names, width - side - 1);
  const height = Math.max(rows.length * tall, source ? source.length * 22 : 0) + 26;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": describe(picture) });
  const top = 22;
  svg.append(s("text", { class: "tick", x: left - 8, y: 13, "text-anchor": "end" }, "has read"), s("text", { class: "tick", x: left, y: 13 }, "looks back at"),
    s("text", { class: "tick", x: Math.max(end + 10, left + 90), y: 13 }, "writes"));
  if (source) svg.append(s("text", { class: "tick", x: width - names, y: 13 }, "source"));
  const steps = rows.map((piece, i) => step(i + first, i));
  svg.append(...steps);
  if (source) svg.append(...lines(picture, row - first, cut, { from: edge, to: width - names - 8, at: (i) => top + (i + 0.5) * tall, place: (j) => top + (j + 0.5) * ((height - top - 4) / Math.max(source.length, 1)) }));
  const grew = host.rows !== undefined && host.rows === read.length - 1;
  host.rows = read.length;
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.step : null;
  const note = first ? h("p", { class: "note" }, `The last ${rows.length} of ${read.length} steps are drawn.`) : "";
  host.replaceChildren(svg, note, folded("Numbers", () => numbers(picture)));
  if (focused) (svg.querySelector(`[data-step="${focused}"]`) ?? steps.at(-1)).focus({ preventScroll: true });
  if (grew && !isStill()) {
    steps.at(-1).animate([{ opacity: 0, transform: `translate(0px, ${-tall}px)` }, { opacity: 1, transform: "none" }], { duration: 500, easing: "ease-out" });
  }

  /** One step: what it has read, what it may look at, and what it writes. */
  function step(index, i) {
    const y = top + i * tall;
    const chosen = index === row;
    const written = read[index + 1] ?? (ended ? "(end)" : undefined);
    const words = `Step ${index + 1}, after ${spokenPiece(read[index])}: ${written === undefined ? "the next word" : `writes ${spokenPiece(written)}`}`;
    const group = s("g", { class: `tri-step${chosen ? " chosen" : ""}`, role: "button", tabindex: chosen ? "0" : "-1", "aria-pressed": String(chosen), "aria-label": words, "data-step": index },
      s("rect", { class: "tri-back", x: 1, y, width: edge - 1, height: tall - 1, rx: 4 }),
      s("text", { class: "way-name", x: left - 8, y: y + tall * 0.68, "text-anchor": "end" }, cut(shownPiece(read[index]))),
      ...Array.from({ length: columns }, (_, j) => square(index, j + first, left + j * cell, y)),
      s("text", { class: "tri-word", x: end + 10, y: y + tall * 0.68 }, written === undefined ? "?" : cut(shownPiece(written))));
    group.addEventListener("click", () => choose(index));
    group.addEventListener("keydown", (event) => {
      const next = { ArrowDown: index + 1, ArrowUp: index - 1, Home: first, End: read.length - 1 }[event.key];
      if (next !== undefined) {
        event.preventDefault();
        svg.querySelector(`[data-step="${next}"]`)?.focus();
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose(index);
      }
    });
    return group;
  }
  function square(i, j, x, y) {
    const is = hidden[i][j];
    const value = weights[i][j] ?? 0;
    const name = j < read.length ? `“${spokenPiece(read[j])}”` : "a word still to come";
    return s("rect", { class: is ? "tri-hidden" : null, x: x + 0.5, y: y + 0.5, width: cell - 1.5, height: tall - 2, rx: 2, fill: is ? null : css(sequence(0.06 + 0.94 * value)), "data-cell": `${i},${j}` },
      s("title", {}, `Step ${i + 1}, ${name}: ${is ? "hidden" : number(value, 3)}`));
  }
}

/** The words of the source, and lines to them as strong as the attention of a step. */
function lines({ source, cross, row }, i, cut, { from, to, at, place }) {
  const weights = cross[row];
  return source.flatMap((piece, j) => {
    const weight = weights[j];
    const [y, end] = [at(i), place(j)];
    const middle = (from + to) / 2;
    return [
      weight < LEAST ? null : s("path", { class: "link", d: `M${from} ${y}C${middle} ${y} ${middle} ${end} ${to} ${end}`, stroke: "var(--series-1)", "stroke-width": (0.8 + 6 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.3 + weight).toFixed(2), "data-link": `${row},${j},0`, "data-weight": weight }),
      s("text", { class: `tri-source${weight >= 0.2 ? " strong" : ""}`, x: to + 8, y: end + 4.5 }, cut(shownPiece(piece)), s("title", {}, `${shownPiece(piece)}: ${number(weight, 3)}`)),
    ].filter(Boolean);
  });
}

function describe({ read, source, cross, row }) {
  const of = `The causal triangle of ${read.length} ${read.length === 1 ? "step" : "steps"}: each sees itself and the steps before it.`;
  if (!source) return of;
  const best = cross[row].reduce((most, weight, j, all) => (weight > all[most] ? j : most), 0);
  return `${of} Step ${row + 1} looks most at ${spokenPiece(source[best])} of the source, with ${number(cross[row][best], 3)}.`;
}

function numbers({ read, coming, weights, hidden }) {
  const names = [...read.map(shownPiece), ...Array(coming).fill("…")];
  return table("Attention of each step to each position", ["step", ...names],
    read.map((piece, i) => [shownPiece(piece), ...names.map((_, j) => (hidden[i][j] ? "hidden" : number(weights[i][j], 3)))]));
}
