// Answers of the page Tour: one text tensor by tensor, from its tokens to the predicted token.

import { logSumExp } from "./arithmetic.js";
import { at, lists, meanOverHeads, rounded, significant } from "./forms.js";
import { bestTokens, nextToken } from "./next_token.js";
import { choose, kept } from "./passes.js";
import { checkLength, read } from "./readings.js";
import { Refusal } from "./refusal.js";
import { strip } from "./characters.js";
import { MASK } from "./tokenizer.js";

const LONGEST = 300;
const MOST_PIECES = 20;
const SHOWN_CHANNELS = 12;
const SHOWN_INNER = 48; // neurons with the largest activations
const CANDIDATES = 10;
const WORD = /[\p{L}\p{N}_]+(?:['\u2019][\p{L}\p{N}_]+)*/gu;

/** The tensors of each stop of the tour. */
export function walk(model, { text: typed, chosen = [], layer = -1, head = 0 }) {
  checkLength(typed, LONGEST, "text");
  const text = model.generates ? typed : hideWord(typed);
  const pass = kept(model, JSON.stringify(["tour", text, chosen]), () => {
    const next = model.generates ? nextToken(model, text, chosen) : hiddenToken(model, text);
    return { next, ...model.capture(next.reading) };
  });
  const stack = model.stacks.encoder ?? model.stacks.decoder;
  const tokens = pass.next.reading[stack.name];
  const number = choose(layer === -1 ? 0 : layer, stack.blocks.length, "layer");
  const { part } = stack.blocks[number].find(({ address }) => address === "self");
  choose(head, part.num_heads, "head");
  if (tokens.ids.length > MOST_PIECES) {
    throw new Refusal({
      what: `The text has ${tokens.ids.length} tokens, more than the tour can show: ${MOST_PIECES}`,
      where: "text",
      remedy: "Shorten it; the page Attention shows longer texts",
    });
  }
  const tensor = (name) => pass.capture.get(`${stack.name}.${name}`);
  const ofHead = (name, index = head) => at(tensor(`${number}.self.${name}`), index);
  const shared = Math.floor(head / (part.num_heads / part.num_kv_heads));
  const embedding = tensor("embedding");
  return {
    text,
    stack: stack.name,
    pieces: tokens.pieces,
    special: tokens.special,
    ids: tokens.ids,
    vocabulary: pass.next.scores.length,
    width: embedding.shape[1],
    ...summands(model, stack.name, tokens, embedding),
    embedding: firstChannels(embedding),
    layer: number,
    layers: stack.blocks.length,
    after: stack.blocks.map((_, i) => firstChannels(tensor(`${i}.output`))),
    can_open: stack.blocks.map((_, i) => i),
    head,
    heads: part.num_heads,
    head_width: part.head_width,
    factor: part.scale,
    scores: finite(ofHead("scores")),
    weights: lists(ofHead("weights")),
    query: firstChannels(ofHead("query")),
    key: firstChannels(ofHead("key", shared)),
    value: firstChannels(ofHead("value", shared)),
    context: firstChannels(ofHead("context")),
    attention_output: firstChannels(tensor(`${number}.self.output`)),
    feedforward_output: firstChannels(tensor(`${number}.feedforward.output`)),
    output: firstChannels(tensor(`${number}.output`)),
    ...strongest(tensor(`${number}.feedforward.inner`)),
    ...written(model, pass, stack.name),
  };
}

/** A text with a masked word; if none is masked, the last word is. */
function hideWord(text) {
  const words = [...text.matchAll(WORD)];
  if (text.includes(MASK) || !words.length) return text;
  const { index, 0: word } = words.at(-1);
  return text.slice(0, index) + MASK + text.slice(index + word.length);
}

/** Predictions of a masked language model for the first mask token of a text. */
function hiddenToken(model, text) {
  const reading = read(model, { text, given: "none" });
  const row = reading.encoder.ids.indexOf(model.source.mask);
  if (row < 0) throw new Refusal({ what: "The text has no [MASK]", where: "text", remedy: `Write ${MASK} in place of a word` });
  const { states } = model.capture(reading);
  const logits = model.maskedLogits(states.subarray(row * model.spec.width, (row + 1) * model.spec.width));
  const normalizer = logSumExp(logits);
  return { reading, row, logits, scores: logits.map((each) => each - normalizer), writer: null };
}

/** The token vectors and the position vectors that add up to the embedding. */
function summands(model, name, { ids }, embedding) {
  const positions = model.positionVectors(name, ids.map((_, i) => i));
  const tokens = positions ? embedding.values.map((value, i) => value - positions[i]) : embedding.values;
  const form = (values) => firstChannels({ shape: embedding.shape, values });
  return { tokens: form(tokens), positions: positions && form(positions) };
}

/** The first channels of vectors [L, D]. */
function firstChannels(tensor) {
  return lists(tensor).map((row) => row.slice(0, SHOWN_CHANNELS));
}

/** Scores with null where a key is hidden. */
function finite({ shape: [rows, columns], values }) {
  return Array.from({ length: rows }, (_, row) => Array.from(values.subarray(row * columns, (row + 1) * columns),
    (score) => (Number.isFinite(score) ? rounded(score, 5) : null)));
}

/** The strongest neurons of each token, and the share of nonzero neurons. */
function strongest({ shape: [rows, width], values }) {
  const cells = (row) => values.subarray(row * width, (row + 1) * width);
  const peaks = Array.from({ length: width }, (_, i) => {
    let peak = 0;
    for (let row = 0; row < rows; row += 1) peak = Math.max(peak, Math.abs(values[row * width + i]));
    return peak;
  });
  const shown = peaks.map((_, i) => i).sort((a, b) => peaks[b] - peaks[a]).slice(0, SHOWN_INNER).sort((a, b) => a - b);
  const each = (form) => Array.from({ length: rows }, (_, row) => form(cells(row)));
  return {
    inner: each((row) => shown.map((i) => significant(row[i]))),
    inner_width: width,
    active: each((row) => row.filter((value) => Math.abs(value) > 1e-6).length / width),
  };
}

/** The text so far, the attention to the source, and candidates for the next token. */
function written(model, { next, capture }, stack) {
  const { writer, reading, scores, logits } = next;
  const best = bestTokens(scores, CANDIDATES);
  const facts = writer
    ? { predicts: "next", from: reading[stack].ids.length - 1, written: next.text, read: reading.decoder.pieces, ended: next.ended }
    : { predicts: "hidden", from: next.row, written: "", read: [], ended: false };
  return {
    ...facts,
    cross: crossOfLast(model, capture),
    candidates: best.map((id) => ({
      id,
      piece: writer ? writer.nameOf(id) : model.source.shown[id],
      word: id === writer?.end ? "" : strip(model.target.decode([id])),
      logit: logits[id],
      probability: Math.exp(scores[id]),
      end: id === (writer?.end ?? null),
    })),
    others: Math.max(0, 1 - best.reduce((sum, id) => sum + Math.exp(scores[id]), 0)),
  };
}

/** Attention of the last token to the source, in the last block that has any, and back to what is written. */
function crossOfLast(model, capture) {
  const layer = model.translates ? model.stacks.decoder.blocks.length - 1 : -1;
  const last = (part) => {
    const weights = capture.get(`decoder.${layer}.${part}.weights`);
    if (!weights) return null;
    const { shape: [rows, columns], values } = meanOverHeads(weights);
    return Array.from(values.subarray((rows - 1) * columns), significant);
  };
  const weights = last("cross");
  const names = { incoming: layer ? `${layer - 1}.output` : "embedding", self: `${layer}.self.output`, cross: `${layer}.cross.output`, feedforward: `${layer}.feedforward.output`, output: `${layer}.output` };
  const stream = Object.entries(names).flatMap(([name, place]) => {
    const tensor = capture.get(`decoder.${place}`);
    return tensor ? [[name, firstChannels(tensor).at(-1)]] : [];
  });
  return weights && { layer, weights, back: last("self"), stream: Object.fromEntries(stream) };
}
