// The answer to one word in several sentences: its vectors, as points of a plane.

import { tokenWords } from "./alignment.js";
import { lengthOf, principal } from "./arithmetic.js";
import { splitLines, strip } from "./characters.js";
import { significant } from "./forms.js";
import { passOf } from "./passes.js";
import { Refusal } from "./refusal.js";

const MOST_CONTEXTS = 16;
const LONGEST_WORD = 40;
const PUNCTUATION = new Set(" .,;:!?\"'()“”");

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const products = (rows) => rows.map((a) => rows.map((b) => dot(a, b)));
const quoted = (word) => (word.includes("'") && !word.includes('"') ? `"${word}"` : `'${word.replaceAll("'", "\\'")}'`); // as Python quotes
const significantRows = (rows) => rows.map((row) => row.map(significant));

/** The vectors of a word after each block, in several sentences, as points of a plane; undefined for what is no word. */
export function contexts(model, { text, word }) {
  if (!word || [...word].length > LONGEST_WORD) return undefined;
  const lines = splitLines(text).map(strip).filter(Boolean);
  if (lines.length < 3 || lines.length > MOST_CONTEXTS) {
    throw new Refusal({ what: `There are ${lines.length} sentences; 3 to ${MOST_CONTEXTS} can be compared`, where: "text", remedy: "Type as many, a line each" });
  }
  const vectors = lines.map((line) => wordVectors(model, line, word));
  const depths = vectors[0].map((_, depth) => {
    const rows = vectors.map((each) => each[depth]);
    const lengths = rows.map((row) => lengthOf(row) || 1);
    return {
      points: significantRows(principal(rows).points),
      cosines: significantRows(products(rows.map((row, i) => row.map((value) => value / lengths[i])))),
    };
  });
  return { sentences: lines, depths };
}

/** Mean vector of the tokens of a word at the embedding and after each block. */
function wordVectors(model, sentence, word) {
  // Only what is read is shown, so any translation will do.
  const { reading, capture } = passOf(model, { text: sentence, ...(model.translates ? { given: "typed", second: "." } : {}) });
  const stack = model.stacks[reading.encoder ? "encoder" : "decoder"];
  const { ids, special } = reading[stack.name];
  const places = ids.map((_, place) => place).filter((place) => !special[place]);
  const { words, wordOf } = tokenWords(model.source, places.map((place) => ids[place]), sentence);
  const wanted = words.findIndex((each) => bare(each) === strip(word).toLowerCase());
  if (wanted < 0) {
    throw new Refusal({ what: `The sentence has no word ${quoted(strip(word))}`, where: sentence, remedy: "Write it in each sentence as it is above" });
  }
  const rows = places.filter((_, i) => wordOf[i] === wanted);
  const after = stack.blocks.map((block, number) => `${number}.${block.at(-1).address}.stream`);
  return ["embedding", ...after].map((address) => {
    const { shape: [, width], values } = capture.get(`${stack.name}.${address}`);
    return Array.from({ length: width }, (_, i) => rows.reduce((sum, row) => sum + values[row * width + i], 0) / rows.length);
  });
}

/** A word in small letters, without the punctuation at its ends. */
function bare(word) {
  const inside = [...word].map((each) => !PUNCTUATION.has(each));
  return [...word].slice(Math.max(0, inside.indexOf(true)), inside.lastIndexOf(true) + 1).join("").toLowerCase();
}
