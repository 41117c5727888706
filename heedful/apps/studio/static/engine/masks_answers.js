// The answer of the page Masks and biases: visible pairs, biases, and the weights that remain.

import { logSumExp } from "./arithmetic.js";
import { describeMask, parseMask, sees } from "./masks.js";
import { alibiSlopes, t5Bucket } from "./positions_answers.js";
import { Generator } from "./random.js";
import { Refusal } from "./refusal.js";

const HEAD_WIDTH = 16;
const SEED = 1;
const T5_BUCKETS = 32;
const NOTHING = -1; // position of padding

/** Positions of packed texts, each counted from 0, with padding at the end; the first texts are the longer ones. */
function placesOf(length, real, segments) {
  const starts = [];
  for (let number = 0, at = 0; number < segments; number += 1) {
    starts.push(at);
    at += Math.floor(real / segments) + (number < real % segments ? 1 : 0);
  }
  const segment = Array.from({ length }, (_, i) => (i < real ? starts.findLastIndex((start) => start <= i) : NOTHING));
  return { positions: segment.map((number, i) => (number === NOTHING ? NOTHING : i - starts[number])), segment };
}

/** The bias of a head as a function of indices of query and key, null without one. */
function biasOf({ bias, heads, head, max_distance: most, length }, positions) {
  if (bias === "none") return null;
  const distance = (i, j) => positions[j] - positions[i];
  if (bias === "alibi") {
    const slope = alibiSlopes(heads)[head - 1];
    return (i, j) => -slope * Math.abs(distance(i, j));
  }
  // Untrained tables hold zeros, which would draw nothing: random numbers show which pairs share one.
  if (bias === "t5") {
    const numbers = new Generator(SEED).normals(T5_BUCKETS * heads);
    return (i, j) => numbers[t5Bucket(distance(i, j), T5_BUCKETS, Math.max(most, 9)) * heads + head - 1];
  }
  const query = new Generator(SEED).normals(heads * length * HEAD_WIDTH);
  const vectors = new Generator(SEED).normals((2 * most + 1) * HEAD_WIDTH);
  return (i, j) => {
    const [at, row] = [((head - 1) * length + i) * HEAD_WIDTH, (Math.max(-most, Math.min(most, distance(i, j))) + most) * HEAD_WIDTH];
    let sum = 0;
    for (let channel = 0; channel < HEAD_WIDTH; channel += 1) sum += query[at + channel] * vectors[row + channel];
    return sum * HEAD_WIDTH ** -0.5;
  };
}

/** Visible pairs, the bias, and the attention weights for dot products of 0. */
export async function draw(request) {
  const settings = { mask: "causal", length: 17, padding: 0, segments: 1, bias: "none", heads: 8, head: 1, max_distance: 16, ...request };
  const { length, padding, segments, heads, head } = settings;
  if (padding >= length) throw new Refusal({ what: `padding ${padding} leaves nothing of ${length} tokens` });
  if (head > heads) throw new Refusal({ what: `there is no head ${head} of ${heads}` });
  const mask = await parseMask(settings.mask);
  const { positions, segment } = placesOf(length, length - padding, segments);
  const table = (of) => positions.map((_, i) => positions.map((__, j) => of(i, j)));
  const visible = table((i, j) => Number(positions[i] !== NOTHING && positions[j] !== NOTHING
    && sees(mask, positions[i], positions[j], segments === 1 || segment[i] === segment[j])));
  const bias = biasOf(settings, positions);
  const added = bias && table(bias);
  const weights = visible.map((row, i) => {
    const scores = row.map((seen, j) => (seen ? added?.[i][j] ?? 0 : -Infinity));
    const normalizer = logSumExp(scores);
    return scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - normalizer)));
  });
  const last = visible.at(-1);
  const edges = [...last, 0].flatMap((seen, i) => (seen !== (last[i - 1] ?? 0) ? [i] : []));
  return {
    visible, seen: visible.flat().reduce((a, b) => a + b), pairs: length ** 2, sentence: `A query sees ${describeMask(mask)}.`,
    bounds: edges.filter((_, i) => i % 2 === 0).map((first, i) => [first, edges[2 * i + 1] - 1]),
    weights, added, positions, segments: segments === 1 ? null : segment,
  };
}
