// What is in an open box of a block's picture, for the word that is followed: its vectors as strips,
// or in attention a column for each word, with keys or values, scores and shares.

import { number, s } from "../dom.js";
import { css, diverging, sequence } from "./colours.js";
import { shownPiece } from "./links.js";
import { largest } from "./strip.js";

const ROW = { height: 15, gap: 4, chunk: 32 };
const COLUMN = { least: 30, most: 46, strip: 58, bar: 34, line: 15, thick: 15 };
const PAD = 9;
const NARROW = 400; // pixels: less has no room for numbers beside a strip

const STRIPS = new Set(["stream", "norm", "query", "routing", "inner", "output", "sum"]);

/** What is drawn in a part: {rows} or {columns, …}, and its height; null where its numbers are not there. */
export function insideOf(part, parts, names, word) {
  const found = STRIPS.has(part.role) ? rowsOf(part, parts, names, word) : columnsOf(part, parts, word);
  return found && { ...found, height: heightOf(found) };
}

/** What a part is made of and the part itself: strips below each other, on one scale. */
function rowsOf(part, parts, names, word) {
  const sources = part.role === "stream" ? [] : part.reads.map((key) => parts.find((each) => each.key === key));
  const signs = part.role === "sum" && sources.length > 1 ? ["", "+ ", "= "] : [];
  const rows = [...sources, part].filter((each) => each.channels?.[word]).flatMap((each, i) => {
    const values = each.channels[word];
    const name = `${signs[i] ?? ""}${names.get(each.key).replace("+ ", "")}`;
    return Array.from({ length: Math.ceil(values.length / ROW.chunk) }, (_, k) => ({ name: k ? "" : name, own: each === part, values: values.slice(k * ROW.chunk, (k + 1) * ROW.chunk) }));
  });
  return rows.length ? { rows } : null;
}

/** A column for each word: its key or value, the score and the share that the followed word gives it. */
function columnsOf(part, parts, word) {
  const of = (...roles) => parts.find((each) => each.place === part.place && roles.includes(each.role));
  const [weights, scores] = [of("weights")?.channels?.[word], of("scores")?.channels?.[word]];
  const vectors = ["value", "context"].includes(part.role) ? of("value", "memory") : of("key", "memory");
  const { role } = part;
  if (!vectors?.channels || !weights || (role === "scores" && !scores)) return null;
  const shares = role === "weights" || role === "context";
  const columns = vectors.tokens.map((piece, i) => ({
    piece, weight: weights[i], strip: role === "weights" ? null : vectors.channels[i], faded: role === "context",
    value: shares ? weights[i] : role === "scores" ? scores[i] : null,
    text: shares ? `${Math.round(100 * weights[i])} %` : role !== "scores" ? null : scores[i] === null ? "hidden" : number(Math.round(10 * scores[i]) / 10),
  }));
  const lead = { key: of("query"), scores: of("query"), context: part }[role]?.channels?.[word];
  return { columns, role, lead: lead && { name: role === "context" ? "mixed" : "query", strip: lead } };
}

function heightOf({ rows, columns, role }) {
  if (rows) return 2 * PAD + rows.length * (ROW.height + ROW.gap) - ROW.gap;
  return 2 * PAD + COLUMN.line + (columns[0].strip ? COLUMN.strip : 0) + (columns[0].text ? COLUMN.line : 0) + (["scores", "weights"].includes(role) ? COLUMN.bar + 4 : 0);
}

/** The drawing, in a frame of this size. */
export function insidePicture(found, { x, y, width }) {
  const group = s("g", { class: "inside", "aria-hidden": "true" }, s("rect", { class: "inside-frame", x, y, width, height: found.height, rx: 7 }));
  group.append(...(found.rows ? rowsPicture(found.rows, x + PAD, y + PAD, width - 2 * PAD) : columnsPicture(found, x + PAD, y + PAD, width - 2 * PAD)));
  return group;
}

const words = (content, x, y, attributes = {}) => s("text", { x, y, ...attributes }, content);

function rowsPicture(rows, x, y, width) {
  const wide = width >= NARROW;
  const [left, right] = [wide ? 92 : 78, wide ? 126 : 0];
  const most = largest(...rows.map(({ values }) => values));
  const cell = (width - left - right) / Math.max(...rows.map(({ values }) => values.length));
  return rows.flatMap(({ name, values, own }, i) => {
    const top = y + i * (ROW.height + ROW.gap);
    return [words(name, x, top + 11.5, { class: own ? "own" : null }),
      ...values.map((value, j) => s("rect", { x: x + left + j * cell, y: top, width: cell - 0.5, height: ROW.height, fill: css(diverging(value / most)) }, s("title", {}, number(value, 3)))),
      wide && name ? words(`${values.slice(0, 3).map((value) => number(value, 2)).join(", ")} …`, x + width, top + 11.5, { "text-anchor": "end" }) : ""];
  });
}

function columnsPicture({ columns, role, lead }, x, y, width) {
  const room = lead ? COLUMN.most + 12 : 0;
  const count = Math.min(columns.length, Math.floor((width - room) / COLUMN.least));
  // Of a long text the words with the most weight, in the order of the text.
  const least = columns.map(({ weight }) => weight).sort((a, b) => b - a)[count - 1];
  const drawn = columns.filter(({ weight }) => weight >= least).slice(0, count);
  const step = Math.min(COLUMN.most, (width - room) / count);
  const after = role === "context"; // the sum of all stands behind them
  const most = largest(...columns.flatMap(({ strip }) => (strip ? [strip] : [])), lead?.strip ?? []);
  const highest = largest(drawn.map(({ value }) => value ?? 0));
  const strip = (values, middle, top, opacity = 1) => s("g", { opacity }, values.map((value, i) => s("rect", {
    x: middle - COLUMN.thick / 2, y: top + (i * COLUMN.strip) / values.length, width: COLUMN.thick, height: COLUMN.strip / values.length + 0.2, fill: css(diverging(value / most)),
  })));
  const below = y + COLUMN.line + (columns[0].strip ? COLUMN.strip + 2 : 0);
  const barred = role === "scores" || role === "weights";
  const one = ({ piece, strip: values, faded, value, text, weight }, i) => {
    const middle = x + (after ? 0 : room) + (i + 0.5) * step;
    const name = shownPiece(piece).replace(/^·(?=.)/, "");
    return [words(name.length > 5 ? `${name.slice(0, 4)}…` : name, middle, y + 10, { "text-anchor": "middle" }),
      values ? strip(values, middle, y + COLUMN.line, faded ? 0.12 + 0.88 * weight : 1) : "",
      barred && value !== null ? barOf(value, highest, middle, below, role) : "",
      text ? words(text, middle, below + (barred ? COLUMN.bar + 4 : 0) + 11, { "text-anchor": "middle", class: value === Math.max(...drawn.map((each) => each.value ?? -Infinity)) ? "own" : null }) : ""];
  };
  const [at, line] = after ? [x + drawn.length * step + room / 2 + 6, "="] : [x + room / 2 - 6, role === "scores" ? "·" : ""];
  return [...drawn.flatMap(one), ...(lead ? [words(lead.name, at, y + 10, { "text-anchor": "middle", class: "own" }), strip(lead.strip, at, y + COLUMN.line),
    s("rect", { class: "inside-lead", x: at - COLUMN.thick / 2 - 1.5, y: y + COLUMN.line - 1.5, width: COLUMN.thick + 3, height: COLUMN.strip + 3, rx: 2 }),
    words(line, after ? at - room / 2 + 4 : at + room / 2 - 1, y + COLUMN.line + COLUMN.strip / 2 + 4, { "text-anchor": "middle", class: "own" })] : [])];
}

/** A share as a bar from below; a score as one up or down from the middle. */
function barOf(value, highest, middle, top, role) {
  const zero = top + (role === "weights" ? COLUMN.bar : COLUMN.bar / 2);
  const long = Math.max(0.8, (Math.abs(value) / highest) * (role === "weights" ? COLUMN.bar : COLUMN.bar / 2));
  return s("rect", { class: "inside-bar", "data-value": value, x: middle - 9, y: value < 0 ? zero : zero - long, width: 18, height: long, fill: css(role === "weights" ? sequence(0.35 + 0.65 * value) : diverging(value / highest)) });
}
