// The answer to one word in several sentences: its vectors, as points of a plane.

import { tokenWords } from "./alignment.js";
import { lengthOf } from "./arithmetic.js";
import { splitLines, strip } from "./characters.js";
import { significant } from "./forms.js";
import { passOf } from "./passes.js";
import { Refusal } from "./refusal.js";

const MOST_CONTEXTS = 16;
const LONGEST_WORD = 40;
const ROUNDS = 60; // of rotations, of which 16 rows need about 8
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
    const mean = rows[0].map((__, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
    const lengths = rows.map((row) => lengthOf(row) || 1);
    return {
      points: significantRows(plane(products(rows.map((row) => row.map((value, i) => value - mean[i]))))),
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

/**
 * Coordinates along the two directions in which rows differ most, from their products: the singular
 * vectors of the rows are eigenvectors of these, found by Jacobi's rotations.
 */
function plane(gram) {
  const size = gram.length;
  const matrix = gram.map((row) => [...row]);
  const vectors = gram.map((_, i) => gram.map((__, j) => Number(i === j)));
  for (let round = 0; round < ROUNDS; round += 1) {
    for (let p = 0; p < size; p += 1) {
      for (let q = p + 1; q < size; q += 1) {
        if (matrix[p][q] === 0) continue;
        const angle = Math.atan2(2 * matrix[p][q], matrix[q][q] - matrix[p][p]) / 2;
        const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
        for (const rows of [matrix, vectors]) for (const row of rows) [row[p], row[q]] = [cosine * row[p] - sine * row[q], sine * row[p] + cosine * row[q]];
        [matrix[p], matrix[q]] = [matrix[p].map((value, i) => cosine * value - sine * matrix[q][i]), matrix[q].map((value, i) => sine * matrix[p][i] + cosine * value)];
      }
    }
  }
  const order = gram.map((_, i) => i).sort((a, b) => matrix[b][b] - matrix[a][a]).slice(0, 2);
  return gram.map((_, row) => order.map((at) => vectors[row][at] * Math.sqrt(Math.max(0, matrix[at][at]))));
}
