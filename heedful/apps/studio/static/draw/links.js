// Two columns of words, and lines from those that look to those that are looked at.

import { h, number, s } from "../dom.js";
import { redrawn, series } from "./colours.js";

const LINE = 26; // height of a word in pixels, as in the style sheet
const MOST = 1200; // lines at a time; more are a blot, and slow
const BINS = 4096;
const LEAST_SAID = 0.001;
const STRIP = 7; // pixels of a head's strip beside a word
const MOST_STRIPS = 12;

/** A piece of text that can be seen: what would move a line or show nothing gets a sign. */
export function shownPiece(piece) {
  const signs = { "\n": "↵", "\r": "↵", "\t": "⇥", "\u2581": "·" };
  const seen = piece.replace(/[\n\r\t\u2581]/g, (sign) => signs[sign]).replace(/[\p{Cc}\p{Cn}\p{Cs}]/gu, "\ufffd");
  // Also what has letters of no width: a joiner, a soft hyphen, a mark of direction.
  return seen.replace(/[\p{Cf}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufe00-\ufe0f]/gu, "").trim() === "" ? "␣" : seen;
}

/** A piece in a sentence: without the sign of the space before it, unless it is nothing else. */
export const spokenPiece = (piece) => shownPiece(piece.replace(/^\u2581+(?=.)/u, ""));

/** The colour of a head among so many. */
export const headColour = (head, count) => (count <= 6 ? series(head)
  : `oklch(var(--head-light) 0.13 ${((head * 360) / count + 260) % 360})`);

/**
 * Draw words and lines.
 * @param host where
 * @param picture {rows, columns: {pieces, label}, heads: [{head, weights}], colour(head),
 *   others: heads whose lines of the chosen word are drawn pale, chosen: {side, index} or null, choose({side, index} or null): told what a click has chosen,
 *   least: the weight from which a line is drawn}
 *   weights: of each head, rows after rows; side: "row" or "column"
 */
export function linkPicture(host, picture) {
  // Of the word that is chosen alone, or of all, as they are seen.
  host.numbers = () => ({ title: "Attention weights", columns: ["head", picture.rows.label, picture.columns.label, "weight"], rows: weightsOf(picture) });
  const svg = s("svg", { class: "lines", "aria-hidden": "true" });
  const said = h("p", { class: "readout", role: "status" });
  const note = h("p", { class: "note" });
  const words = { row: side(picture, "row", look, keep), column: side(picture, "column", look, keep) };
  const strips = picture.heads.length > 1 && picture.heads.length <= MOST_STRIPS ? picture.heads.length * STRIP : 0;
  for (const { element } of Object.values(words)) element.style.setProperty("--strips", `${strips}px`);
  const most = Math.max(picture.rows.pieces.length, picture.columns.pieces.length);
  // What is said stands below: above, its lines would move the words under the pointer.
  host.replaceChildren(h("div", { class: "links" },
    h("p", { class: "note" }, picture.rows.label), h("span", {}), h("p", { class: "note" }, picture.columns.label),
    words.row.element, svg, words.column.element), said, note);
  let now = picture.chosen;
  // Scrolling by keyboard carries words under a pointer that rests; that is no pointing.
  let keyed = false;
  host.onkeydown = () => {
    keyed = true;
  };
  host.onpointermove = (event) => {
    if (event.movementX || event.movementY) keyed = false;
  };

  function look(next, pointed = false) {
    if (pointed && keyed) return;
    now = next ?? picture.chosen;
    draw();
  }
  function keep(next) {
    const same = picture.chosen?.side === next.side && picture.chosen.index === next.index;
    picture.chosen = same ? null : next;
    for (const [name, { buttons }] of Object.entries(words)) {
      buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(picture.chosen?.side === name && picture.chosen.index === i)));
    }
    look(picture.chosen);
    picture.choose(picture.chosen);
  }
  function draw() {
    const width = svg.clientWidth;
    svg.setAttribute("height", most * LINE);
    svg.setAttribute("viewBox", `0 0 ${width} ${most * LINE}`);
    const found = linesOf(picture, now);
    const line = ([row, column, head, weight], kind, opacity) => s("path", {
      d: `M0 ${(row + 0.5) * LINE}C${width / 2} ${(row + 0.5) * LINE} ${width / 2} ${(column + 0.5) * LINE} ${width} ${(column + 0.5) * LINE}`,
      class: kind, stroke: picture.colour(head), "stroke-width": (0.5 + (kind === "pale" ? 1.5 : 8) * weight).toFixed(2),
      "stroke-opacity": Math.min(1, opacity).toFixed(2), "data-link": `${row},${column},${head}`, "data-weight": weight,
    });
    const others = now && picture.others?.length ? linesOf({ ...picture, heads: picture.others }, now).lines : [];
    svg.replaceChildren(...others.map((each) => line(each, "pale", 0.1 + 0.25 * each[3])),
      ...found.lines.map((each) => line(each, "link", 0.12 + each[3])));
    note.textContent = `${found.note}${others.length ? " Thin: the other heads of the layer." : ""}`;
    glow(words, picture, now);
    said.textContent = now ? sentence(picture, now) : "Point at a word, or go to it with the keyboard, for its lines alone; click to keep them.";
  }
  redrawn(host, draw);
}

/** A column of words: one stop for the tabulator, arrow keys from there. */
function side(picture, name, look, keep) {
  const { pieces, label } = name === "row" ? picture.rows : picture.columns;
  const chosen = picture.chosen?.side === name ? picture.chosen.index : -1;
  const buttons = pieces.map((piece, index) => h("button", {
    type: "button", class: "piece", dir: "auto", tabindex: index === Math.max(0, chosen) ? "0" : "-1", title: piece,
    "aria-pressed": String(index === chosen), "data-side": name, "data-index": index,
    onpointerenter: () => look({ side: name, index }, true), onpointerleave: () => look(null, true),
    onfocus: () => look({ side: name, index }), onblur: () => look(null),
    onclick: () => keep({ side: name, index }),
  }, shownPiece(piece)));
  const element = h("div", { class: `pieces of-${name}`, role: "group", "aria-label": label }, buttons);
  element.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 10, PageUp: at - 10, Home: 0, End: Infinity }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    const to = buttons[Math.min(buttons.length - 1, Math.max(0, next))];
    buttons[at].tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  return { element, buttons };
}

/** [row, column, head, weight] of the lines to draw, and what is left out. */
function linesOf(picture, now) {
  const [rows, columns] = [picture.rows.pieces.length, picture.columns.pieces.length];
  const counts = new Uint32Array(BINS + 1);
  const each = (use) => {
    for (const { head, weights } of picture.heads) {
      const first = now?.side === "row" ? now.index : 0;
      const last = now?.side === "row" ? now.index + 1 : rows;
      for (let row = first; row < last; row += 1) {
        if (now?.side === "column") use(row, now.index, head, weights[row * columns + now.index]);
        else for (let column = 0; column < columns; column += 1) use(row, column, head, weights[row * columns + column]);
      }
    }
  };
  const bin = (weight) => Math.min(BINS, Math.floor(weight * BINS));
  each((row, column, head, weight) => {
    counts[bin(weight)] += 1;
  });
  // The strongest that are not too many; of one bin all are drawn or none, but for the highest.
  let least = BINS;
  for (let sum = counts[BINS]; least > 1 && sum + counts[least - 1] <= MOST; least -= 1) sum += counts[least - 1];
  const bound = Math.max(least, Math.ceil(picture.least * BINS));
  const lines = [];
  let all = 0;
  each((row, column, head, weight) => {
    all += 1;
    if (bin(weight) >= bound) lines.push([row, column, head, weight]);
  });
  const note = all === 0 ? "All heads are off." : lines.length === all ? "" : `A weight below ${number(bound / BINS, 2)} has no line.`;
  return { lines, note };
}

/** [head, row, column, weight] of the word that is chosen, or of all words; heads count from 1. */
function weightsOf({ rows, columns, heads, chosen }) {
  const on = (side, index) => chosen?.side !== side || chosen.index === index;
  return heads.flatMap(({ head, weights }) => rows.pieces.flatMap((row, i) => columns.pieces.map((column, j) => [head + 1, row, column, weights[i * columns.pieces.length + j]])
    .filter((_, j) => on("row", i) && on("column", j))));
}

/** What a word looks at, or is looked at by: the mean of the heads. */
function means(picture, now) {
  const [rows, columns] = [picture.rows.pieces.length, picture.columns.pieces.length];
  const count = now.side === "row" ? columns : rows;
  return Array.from({ length: count }, (_, i) => {
    const place = now.side === "row" ? now.index * columns + i : i * columns + now.index;
    return picture.heads.reduce((sum, { weights }) => sum + weights[place], 0) / (picture.heads.length || 1);
  });
}

function glow(words, picture, now) {
  for (const each of Object.values(words)) {
    for (const button of each.buttons) {
      button.style.removeProperty("--weight");
      button.style.removeProperty("background-image");
      button.classList.remove("looked");
    }
  }
  if (!now) return;
  words[now.side].buttons[now.index]?.classList.add("looked");
  const other = words[now.side === "row" ? "column" : "row"].buttons;
  means(picture, now).forEach((weight, i) => other[i].style.setProperty("--weight", weight.toFixed(4)));
  if (picture.heads.length < 2 || picture.heads.length > MOST_STRIPS) return;
  other.forEach((button, i) => {
    button.style.backgroundImage = stripes(picture, now.side === "row" ? [now.index, i] : [i, now.index]);
  });
}

/** A strip for each head, in its colour: the fuller, the more weight. */
function stripes({ heads, columns, colour }, [row, column]) {
  const each = 100 / heads.length;
  const stops = heads.flatMap(({ head, weights }, i) => {
    const shade = `color-mix(in srgb, ${colour(head)} ${(100 * weights[row * columns.pieces.length + column]).toFixed(0)}%, transparent)`;
    return [`${shade} ${(i * each).toFixed(2)}%`, `${shade} ${((i + 1) * each).toFixed(2)}%`];
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

function sentence(picture, now) {
  const own = (now.side === "row" ? picture.rows : picture.columns).pieces[now.index];
  const other = (now.side === "row" ? picture.columns : picture.rows).pieces;
  const found = means(picture, now).map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]).filter(([weight], i) => i === 0 || weight >= Math.max(LEAST_SAID, picture.least)).slice(0, 5)
    .map(([weight, i]) => `“${spokenPiece(other[i])}” ${number(weight, 3)}`);
  return `“${spokenPiece(own)}” ${now.side === "row" ? "looks at" : "is looked at by"} ${found.join(", ")} (${picture.heads.length === 1 ? `head ${picture.heads[0].head + 1}` : "the mean of the heads that are on"}).`;
}
