// The sentences of a text, which a translator reads one by one, and the joining of translations.

import { LETTER, clean, oneLine, strip } from "./characters.js";

// Addresses, code, tags, placeholders and emoji, which the package keeps exactly; more is matched
// than it keeps.
const PARTS = new RegExp(
  "[{}<>`|_~=\\[\\]*#\\u2022\\u00b7\\u00a9\\u00ae\\u00a7\\u00b6\\u2020\\u2021&@^\\u203c-\\u2bff\\u3030\\u20e3]"
  + "|[\\u{f0000}-\\u{fffff}]|\\p{Extended_Pictographic}|[\\u{1f1e6}-\\u{1f1ff}]|%[\\w(%]|\\$[A-Za-z(]|(?<!\\S):[A-Za-z]"
  + "|:\\/\\/|www\\.|\\.(?:com|org|net|edu|gov|io|dev|app)\\b", "u");
const END_OF_CHAT = /(?<!\.[\p{L}\p{N}_])([.!?\u2026])( +)(?=[\p{L}\p{N}_])/gu; // nothing begins with a capital
const END = /([.!?\u2026]+["'\u2019\u201d)\]\u00bb]*)(\s+)(?=["'\u2018\u201c(\[\u00ab\u201e\u00bf\u00a1]?[\p{Lu}\p{N}])/gu;
const ABBREVIATION = /(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Jr|Sr|vs|etc|Gen|Sen|Rep|Gov|Capt|Lt|Col|Sgt|Rev|No|Inc|Ltd|Co|\p{L}|(?:\p{L}\.)+\p{L})\.$/u;
const LETTERLESS = 0.01; // share of texts without letters from which a model has learned them

/** Whether a text may have parts that the package keeps as they are, which is not done here. */
export const mayHaveParts = (text) => PARTS.test(text);

/**
 * Cut a line into sentences, each with the white space after it. The package's rules for
 * abbreviations are larger: here a sentence ends before white space and a capital or a digit.
 */
function sentences(line) {
  const pieces = [];
  let start = 0;
  for (const match of line.matchAll(line === line.toLowerCase() ? END_OF_CHAT : END)) {
    const end = match.index + match[0].length;
    const bare = line.slice(start, match.index + match[1].length);
    if (match[1] === "." && ABBREVIATION.test(bare)) continue;
    pieces.push(line.slice(start, end));
    start = end;
  }
  return [...pieces, line.slice(start)];
}

/**
 * Cut a text into segments that are translated at once.
 * @returns {lines: number of them, segments: [{text, ids, line, gap, isCopied}]}; null where one is
 *   too long for the model
 */
export function cutText(text, { source: tokenizer, reading, spec }) {
  if (!strip(text)) return { lines: 0, segments: [] };
  const cleaned = clean(text).split("\n");
  const lines = (reading.split === "none" ? [cleaned.join(" ")] : cleaned).map(strip);
  const segments = lines.flatMap((line, number) => (reading.split === "sentences" ? sentences(line) : [line]).map((piece) => {
    const bare = strip(piece);
    const ids = tokenizer.encode(bare);
    return { text: bare, ids, line: number, gap: piece.slice(piece.trimEnd().length), isCopied: !isReadable(bare, ids, tokenizer, reading) };
  })).filter(({ ids }) => ids.length);
  if (segments.some(({ ids }) => ids.length > spec.max_length)) return null;
  return { lines: segments.length ? lines.length : 0, segments };
}

/** Whether a text has a letter that the model knows, or the model learned texts without letters. */
function isReadable(text, ids, tokenizer, { letterless = 0 }) {
  if (!LETTER.test(text)) {
    return letterless >= LETTERLESS || !tokenizer.shown.some((piece) => LETTER.test(piece));
  }
  if (!ids.includes(tokenizer.unk)) return true;
  const letters = new Set([...text].filter((each) => LETTER.test(each)));
  return [...letters].some((each) => !tokenizer.encode(each).includes(tokenizer.unk));
}

/** Join the translations of segments to a text with as many lines as the source. */
export function joinSegments({ lines, segments }, translations) {
  const joined = Array.from({ length: lines }, () => []);
  segments.forEach((segment, i) => joined[segment.line].push([segment, oneLine(translations[i])]));
  return joined.map((parts) => {
    if (parts.length === 1) return parts[0][1];
    let [text, before] = ["", null];
    for (const [segment, whole] of parts) {
      const translation = strip(whole);
      if (!translation) continue;
      if (before) text += /^ +$/.test(before.gap) ? before.gap : " ";
      text += translation;
      before = segment;
    }
    return text;
  }).join("\n");
}

/** A sentence on letters and digits without a token; null if there are none. */
export function describeUnknown(tokenizer, texts) {
  const counts = new Map();
  for (const text of texts.map(tokenizer.spelled)) {
    const characters = [...text];
    const ids = tokenizer.encode(text);
    tokenizer.spans(text).forEach(([start, end], i) => {
      if (ids[i] !== tokenizer.unk) return;
      for (const each of characters.slice(start, end)) {
        if (/[\p{L}\p{N}]/u.test(each)) counts.set(each, (counts.get(each) ?? 0) + 1);
      }
    });
  }
  if (!counts.size) return null;
  const named = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 10).map(([each]) => each).join(" ");
  const total = [...counts.values()].reduce((a, b) => a + b, 0);
  return `${total} character${total > 1 ? "s" : ""} unknown to the model, which reads them all alike: ${named}${counts.size > 10 ? " \u2026" : ""}`;
}
