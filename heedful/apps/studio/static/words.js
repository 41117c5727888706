// Words as buttons, one of which is the query; and pieces joined to the words they belong to.

import { call } from "./api.js";
import { h } from "./dom.js";
import { shownPiece, spokenPiece } from "./draw/links.js";

/**
 * The words of a text in a row: a click makes one the query.
 * @param words {pieces, chosen: index or -1, choose: called with an index, label}
 */
export function wordRow({ pieces, chosen, choose, label }) {
  const buttons = pieces.map((piece, i) => h("button", {
    type: "button", class: "piece", dir: "auto", tabindex: i === Math.max(0, chosen) ? "0" : "-1",
    "aria-pressed": String(i === chosen), "aria-label": spokenPiece(piece), "data-word": i, onclick: () => choose(i),
  }, shownPiece(piece)));
  const row = h("div", { class: "word-row", role: "group", "aria-label": label }, buttons);
  row.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || next === undefined || !buttons[next]) return;
    event.preventDefault();
    event.stopPropagation();
    buttons[at].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  });
  return row;
}

/** Put a fresh row in the place of an old one; who was in the old row is in the fresh one. */
export function renewWords(host, words) {
  const focused = host.contains(document.activeElement);
  host.replaceChildren(wordRow(words));
  if (focused) host.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

/** Maps of heads from an answer with weights in base64: head → weights, row after row. */
export function weightMaps({ weights: { shape, float32 }, heads }) {
  const bytes = Uint8Array.from(atob(float32), (letter) => letter.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  const size = shape[1] * shape[2];
  return new Map(heads.map((head, i) => [head, numbers.subarray(i * size, (i + 1) * size)]));
}

/** Names of the words of one side, from its pieces and the number of each piece's word. */
function joined({ pieces, words }) {
  const names = [];
  words.forEach((word, i) => {
    names[word] = (names[word] ?? "") + pieces[i];
  });
  return names.map((name) => name.replaceAll("\u2581", " ").trim() || name);
}

/**
 * Weights between words, from those between pieces: a word asks as the mean of its pieces, and is
 * attended to as their sum, so that a row still adds up to 1.
 * @param side rows and columns: {pieces, words: the number of each piece's word}
 * @param maps head → weights, row after row
 */
export function joinWords({ rows, columns, maps }) {
  const [down, across] = [joined(rows), joined(columns)];
  const count = new Float32Array(down.length);
  for (const word of rows.words) count[word] += 1;
  const joinMap = (weights) => {
    const sums = new Float32Array(down.length * across.length);
    rows.words.forEach((row, i) => columns.words.forEach((column, j) => {
      sums[row * across.length + column] += weights[i * columns.words.length + j] / count[row];
    }));
    return sums;
  };
  return { rows: { ...rows, pieces: down }, columns: { ...columns, pieces: across }, maps: new Map([...maps].map(([head, weights]) => [head, joinMap(weights)])) };
}

/** What the heads of a layer attend to in a model's own translation: the answer, and the same between words. */
export async function ownAttention({ model, text, part, layer }, signal) {
  // The request of the page Attention as it opens, so that an exported course has recorded it.
  const found = await call("attention", "show", { model, text, second: "", given: "own", part, layer, heads: null }, signal);
  return { found, words: joinWords({ ...found, maps: weightMaps(found) }) };
}
