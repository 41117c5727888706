// Words of tokens, and attention between tokens gathered into attention between words.

import { isSpace, wordSpans } from "./characters.js";

/**
 * The words of a text and, for each of its tokens, the index of its word.
 * @param text the text; where it has as many words as the decoded ids, words are spelled as in it
 */
export function tokenWords(tokenizer, ids, text) {
  let decoded = tokenizer.decode(ids);
  let spans = wordSpans(decoded);
  if (!spans.length) return { words: [], wordOf: [] };
  const ranges = wordRanges(tokenizer, ids, decoded, spans);
  const joined = spans.map(() => false); // true for a word that shares a token with the one before it
  for (const [first, last] of ranges) joined.fill(true, first + 1, Math.max(first, last) + 1);
  let number = 0;
  const numbers = joined.map((withPrevious) => (number += withPrevious ? 0 : 1));
  if (text !== decoded) {
    const written = wordSpans(text);
    if (written.length === spans.length) [decoded, spans] = [text, written];
  }
  const starts = spans.filter((_, i) => !joined[i]).map(([start]) => start);
  const ends = spans.filter((_, i) => !joined[i + 1]).map(([, end]) => end);
  return {
    words: starts.map((start, i) => decoded.slice(start, ends[i])),
    wordOf: ranges.map(([first]) => numbers[first] - 1),
  };
}

/** First and last word of each token's characters; the next word if it has none. */
function wordRanges(tokenizer, ids, decoded, spans) {
  const wordAt = []; // word of each character; of a space the word that follows
  spans.forEach(([, end], word) => {
    while (wordAt.length < end) wordAt.push(word);
  });
  // One entry more than characters: a token without any may stand at the very end.
  while (wordAt.length <= decoded.length) wordAt.push(spans.length - 1);
  let start = 0;
  return ids.map((_, i) => {
    // Every prefix is decoded, as a character may be several tokens.
    const end = tokenizer.decode(ids.slice(0, i + 1)).length;
    let last = Math.max(start, end - 1);
    while (last > start && isSpace(decoded[last] ?? "")) last -= 1;
    const range = [wordAt[start], wordAt[Math.min(last, decoded.length)]];
    start = Math.max(start, end);
    return range;
  });
}

/** Index of each token's word, from 0, where a special token counts as a word. */
export function wordNumbers(tokenizer, { ids, special }) {
  const alone = ids.map((id, i) => special[i] || id === tokenizer.mask);
  const numbers = [];
  for (let start = 0; start < ids.length;) {
    let stop = start + 1;
    while (!alone[start] && stop < ids.length && !alone[stop]) stop += 1;
    const next = numbers.length ? numbers.at(-1) + 1 : 0;
    const own = alone[start] ? [0] : tokenWords(tokenizer, ids.slice(start, stop), "").wordOf;
    const usable = own.length ? own : Array.from({ length: stop - start }, (_, i) => i);
    numbers.push(...usable.map((each) => next + each));
    start = stop;
  }
  return numbers;
}

/**
 * Gather attention between tokens into attention between words.
 * @param weights rows of attention of target tokens to the encoder's tokens
 * @param source {tokenizer, ids, text} of the source; `target` likewise
 */
export function align(weights, source, target) {
  const [from, to] = [source, target].map(({ tokenizer, ids, text }) => tokenWords(tokenizer, ids, text));
  return { source: from.words, target: to.words, matrix: gathered(weights, from, to, source.tokenizer.first.length) };
}

/** Weights between words: rows of a target word's tokens are averaged, columns of a source word's tokens are added. */
export function gathered(weights, from, to, first) {
  const matrix = to.words.map(() => from.words.map(() => 0));
  const counts = to.words.map((_, word) => to.wordOf.filter((each) => each === word).length || 1);
  to.wordOf.forEach((row, token) => from.wordOf.forEach((column, i) => {
    matrix[row][column] += weights[token][first + i] / counts[row];
  }));
  return matrix;
}

/** Alignment of a text with itself. */
export function copiedAlignment(text) {
  const words = wordSpans(text).map(([start, end]) => text.slice(start, end));
  return { source: words, target: words, matrix: words.map((_, a) => words.map((__, b) => (a === b ? 1 : 0))) };
}

/** Alignment of a text from those of its parts, whose words attend only to their own part. */
export function joinAlignments(parts) {
  const source = parts.flatMap((part) => part.source);
  let before = 0;
  const matrix = parts.flatMap((part) => {
    const rows = part.matrix.map((row) => source.map((_, i) => row[i - before] ?? 0));
    before += part.source.length;
    return rows;
  });
  return { source, target: parts.flatMap((part) => part.target), matrix };
}
