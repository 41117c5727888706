// Answers of the page Scale: the softmax of random scores, with and without the division by √dₖ.

import { logSumExp } from "./arithmetic.js";
import { Generator } from "./random.js";

const WIDEST = 1024;
const WIDTHS = Array.from({ length: 11 }, (_, power) => 2 ** power);
const QUERIES = 64; // that are averaged for each point of the curves

const mean = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;

/** For each of some random queries its scores with random keys, of the first channels. */
function scoresOf(queries, keys, drawn, width, seed) {
  const all = new Generator(seed).normals(queries * (keys + 1) * drawn);
  return Array.from({ length: queries }, (_, row) => {
    const query = row * (keys + 1) * drawn;
    return Array.from({ length: keys }, (__, key) => {
      let sum = 0;
      for (let i = 0; i < width; i += 1) sum += all[query + i] * all[query + (key + 1) * drawn + i];
      return sum;
    });
  });
}

/** The weights of scores, their entropy in nats, and the norm of their derivative by the scores. */
function factsOf(scores, factor) {
  const scaled = scores.map((score) => score * factor);
  const normalizer = logSumExp(scaled);
  const weights = scaled.map((score) => Math.exp(score - normalizer));
  const entropy = -weights.reduce((sum, weight) => sum + (weight > 0 ? weight * Math.log(weight) : 0), 0);
  const squares = weights.map((weight) => weight * weight);
  const all = squares.reduce((sum, each) => sum + each, 0);
  // Σᵢⱼ (wᵢ δᵢⱼ − wᵢ wⱼ)²: on the diagonal wᵢ (1 − wᵢ), beside it wᵢ wⱼ.
  const gradient = Math.sqrt(weights.reduce((sum, weight, i) => sum + (weight * (1 - weight)) ** 2 + squares[i] * (all - squares[i]), 0));
  return { weights, largest: Math.max(...weights), entropy, effective: Math.exp(entropy), gradient };
}

/** The weights of one query, with and without the scale. */
export function compare({ keys = 12, seed = 1, width = 64 }) {
  // All widths share their first channels, so a small change of the width changes little.
  const [scores] = scoresOf(1, keys, WIDEST, width, seed);
  const factor = width ** -0.5;
  return { scores, factor, without: factsOf(scores, 1), with: factsOf(scores, factor), even: Math.log(keys) };
}

/** Means over many random queries at widths from 1 to 1,024. */
export function sweep({ keys = 12, seed = 1 }) {
  const curves = {};
  for (const width of WIDTHS) {
    const rows = scoresOf(QUERIES, keys, width, width, seed);
    for (const [scaled, factor] of [["without", 1], ["with", width ** -0.5]]) {
      const facts = rows.map((scores) => factsOf(scores, factor));
      const all = rows.flat().map((score) => score * factor);
      const middle = mean(all);
      const deviation = Math.sqrt(all.reduce((sum, score) => sum + (score - middle) ** 2, 0) / (all.length - 1));
      const found = { entropy: mean(facts.map((each) => each.entropy)), gradient: mean(facts.map((each) => each.gradient)), deviation };
      for (const [name, value] of Object.entries(found)) (curves[`${name}_${scaled}`] ??= []).push(value);
    }
  }
  return { widths: WIDTHS, even: Math.log(keys), ...curves };
}
