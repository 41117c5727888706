// Answers of the page Decoding: the next token, greedy search, and every step of a beam search.

import { at, meanOverHeads } from "./forms.js";
import { Writer, bestTokens, nextPass, usualRoom } from "./next_token.js";
import { attentionLayers, choose, mixersOf, numHeads, partsOf } from "./passes.js";
import { checkLength } from "./readings.js";
import { Refusal } from "./refusal.js";
import { placesOf, search } from "./search.js";
import { distribution, draw, randomNumber } from "./sampling.js";
import { isCausal } from "./stack.js";

const LONGEST = 1000;
const MOST_CHOSEN = 200;
const COMING = 3; // future positions among those that are seen or not
const BYTES = 4; // of a float32

/** The next step: visible positions, attention, candidates and size of the cache. */
export function step(model, { text, chosen = [], layer = null, head = null, count = 12, ...drawing }) {
  checkLength(text, LONGEST, "text");
  const { result, capture } = nextPass(model, text, chosen);
  const { reading, ended } = result;
  const shown = ["decoder", "cross"].filter((part) => partsOf(model).includes(part));
  const layers = Object.fromEntries(shown.map((part) => [part, attentionLayers(model, part)]));
  const numbers = [...new Set(Object.values(layers).flat().map(({ number }) => number))].sort((a, b) => a - b);
  if (layer !== null && !numbers.includes(layer)) {
    throw new Refusal({ what: `Layer ${layer} has no attention to show`, where: "layer", remedy: `Those that have: ${numbers.join(", ") || "none"}` });
  }
  const rows = (part) => meanRows(capture, (layers[part] ?? []).filter(({ number }) => layer === null || number === layer), head);
  const length = reading.decoder.ids.length;
  return {
    text: result.text,
    read: reading.decoder.pieces,
    given: length - chosen.length + Number(ended),
    ended,
    score: result.chosenScores.reduce((sum, each) => sum + each, 0),
    visible: visiblePositions(layers.decoder, length),
    weights: rows("decoder"),
    source: reading.encoder?.pieces ?? null,
    cross: reading.encoder ? rows("cross") : null,
    layers: numbers,
    heads: Math.max(...Object.values(layers).map(numHeads)),
    mixers: mixersOf([model.stacks.decoder]),
    ...cacheSizes(layers, reading, length - result.writer.initial.decoder.ids.length),
    ...candidates(result, { count, chosen, ...drawing }),
  };
}

/** Attention [L, Lk] of one head, or as a mean over heads and layers; null without any. */
function meanRows(capture, layers, head) {
  if (!layers.length) return null;
  const each = layers.map(({ address }) => {
    const weights = capture.get(`${address}.weights`);
    return head === null ? meanOverHeads(weights) : at(weights, choose(head, weights.shape[0], "head"));
  });
  const [{ shape: [rows, columns] }] = each;
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (__, column) =>
    each.reduce((sum, { values }) => sum + values[row * columns + column], 0) / each.length));
}

function visiblePositions(layers, length) {
  const causal = isCausal(layers[0].sublayer.part.mask);
  return Array.from({ length: length + COMING }, (_, position) => !causal || position < length);
}

/** Keys and values of the decoder's own tokens after each step, and those of the source. */
function cacheSizes(layers, reading, steps) {
  const bytesOf = (each, tokens) => each.reduce((sum, { sublayer: { part } }) => sum + 2 * tokens * part.num_kv_heads * part.head_width * BYTES, 0);
  const length = reading.decoder.ids.length;
  const { part } = layers.decoder[0].sublayer;
  return {
    kept: Array.from({ length: steps + 1 }, (_, step_) => {
      const slots = length - steps + step_;
      return { slots, bytes: bytesOf(layers.decoder, slots) };
    }),
    shape: [1, part.num_kv_heads, length, part.head_width],
    memory: bytesOf(layers.cross ?? [], reading.encoder?.ids.length ?? 0),
  };
}

/** The most probable tokens, and their probabilities under settings of sampling. */
function candidates({ writer, scores }, { count, chosen, seed = 1, ...settings }) {
  const own = distribution(scores, {}).probabilities;
  const drawn = distribution(scores, settings);
  const positive = (probabilities) => probabilities.filter((each) => each > 0).length;
  const entropy = (probabilities) => probabilities.reduce((sum, each) => sum - (each > 0 ? each * Math.log(each) : 0), 0);
  return {
    candidates: bestTokens(scores, count).map((id) => ({
      id, piece: writer.nameOf(id), probability: Math.exp(scores[id]), drawn: drawn.probabilities[id],
    })),
    drawn: draw(drawn, randomNumber(seed, chosen.length)),
    possible: positive(own),
    drawable: positive(drawn.probabilities),
    entropy: entropy(own),
    drawn_entropy: entropy(drawn.probabilities),
  };
}

/** The tokens of greedy search, up to the end or the page's limit. */
export function greedy(model, { text, chosen = [] }) {
  checkLength(text, LONGEST, "text");
  const room = usualRoom(model, text);
  const writer = new Writer(model, text, Math.max(room ?? 0, chosen.length));
  writer.check(chosen);
  const [best] = search(writer.task(), { beam: 1, maxLength: room, prefix: chosen });
  // A continuation that was cut at its limit counts as finished, so its length is compared.
  const ended = best.finished && (model.translates || best.tokens.length < writer.limit);
  return { chosen: [...best.tokens, ...(ended ? [writer.end] : [])].slice(0, MOST_CHOSEN) };
}

/** Every continuation that a beam search scored. */
export function beam(model, { text, beam: width = 4, n_best: nBest = 1, length_penalty: lengthPenalty = 0.6, max_length: maxLength = 30 }) {
  checkLength(text, LONGEST, "text");
  const writer = new Writer(model, text, maxLength);
  const room = model.translates ? model.numPositions - 1 : writer.room;
  if (maxLength > room) {
    throw new Refusal({ what: `The model can read ${writer.bound} tokens, and so write ${room} after this text`, where: `max_length = ${maxLength}`, remedy: "Ask for less, or give a shorter text" });
  }
  const trace = [];
  const hypotheses = search(writer.task(), { beam: width, nBest: Math.min(nBest, width), lengthPenalty, maxLength }, trace);
  const finite = (value) => (Number.isFinite(value) ? value : null);
  return {
    steps: trace.map(({ bound, worst, ranked }) => ({
      bound: finite(bound),
      worst: finite(worst),
      looked: ranked.map((each) => ({
        token: each.token, piece: writer.nameOf(each.token), parent: each.parent, beam: each.beam, fate: each.fate,
        probability: Math.exp(each.tokenScore), score: each.score, normalized: each.normalized, text: writer.textOf(each.tokens),
      })),
    })),
    paths: hypotheses.map((each) => placesOf(trace, each)),
    hypotheses: hypotheses.map((each) => ({
      text: writer.textOf(each.tokens), score: each.score, normalized: each.normalized, finished: each.finished,
    })),
  };
}
