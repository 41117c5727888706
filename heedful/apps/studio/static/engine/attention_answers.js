// Answers of the page Attention: weights of heads, their thumbnails, one query in numbers.

import { lengthOf } from "./arithmetic.js";
import { wordNumbers } from "./alignment.js";
import { at, base64, encoded } from "./forms.js";
import { attentionLayers, choose, mixersOf, numHeads, partsOf, passOf, rowsAndColumns, stackOf } from "./passes.js";
import { Refusal } from "./refusal.js";

const MOST_WEIGHTS = 1 << 22; // of an answer: 16 MiB
const MOST_THUMBNAIL = 48; // rows and columns; weights of longer texts are averaged
const MOST_SILENT = 128; // tokens of a text, as the mixer is computed once for each
const ROUNDING = 1e-6; // relative changes below this come from the order of sums
const MOST_KEYS = 24; // in the neuron view: those with the largest weights

/** Kind of attention and the index of a layer that a request means. */
function chosenLayer(model, { part = "", layer = -1 }) {
  const name = part || partsOf(model)[0];
  const layers = attentionLayers(model, name);
  return { name, layers, layer: layer < 0 ? layers.length - 1 : choose(layer, layers.length, "layer") };
}

/** Weights of a layer's heads with the tokens, and the kinds of attention. */
export function show(model, request) {
  const pass = passOf(model, request);
  const { name, layers, layer } = chosenLayer(model, request);
  const [rows, columns] = rowsAndColumns(pass.reading, name);
  const weights = pass.capture.get(`${layers[layer].address}.weights`);
  const [count] = weights.shape;
  const most = Math.max(1, Math.floor(MOST_WEIGHTS / (rows.ids.length * columns.ids.length)));
  const heads = (request.heads ?? Array.from({ length: Math.min(most, numHeads(layers)) }, (_, i) => i)).map((head) => choose(head, count, "head"));
  const size = weights.values.length / count;
  const chosen = new Float32Array(heads.length * size);
  heads.forEach((head, i) => chosen.set(at(weights, head).values, i * size));
  const side = (tokenizer, tokens) => ({ pieces: tokens.pieces, special: tokens.special, words: wordNumbers(tokenizer, tokens) });
  return {
    kind: model.spec.kind,
    target: pass.reading.target,
    parts: partsOf(model).map((part) => {
      const own = attentionLayers(model, part);
      return { part, blocks: own.map(({ number }) => number), heads: numHeads(own) };
    }),
    mixers: mixersOf(Object.values(model.stacks)),
    part: name,
    layer,
    address: layers[layer].address,
    heads,
    rows: side(name === "encoder" ? model.source : model.target, rows),
    columns: side(name === "decoder" ? model.target : model.source, columns),
    weights: encoded({ shape: [heads.length, ...weights.shape.slice(1)], values: chosen }),
  };
}

/** A thumbnail of every head of a part, with weights from 0 to 255. */
export function overview(model, request) {
  const { capture } = passOf(model, request);
  const { name, layers } = chosenLayer(model, request);
  const pictures = layers.flatMap(({ address }) => {
    const weights = capture.get(`${address}.weights`);
    return Array.from({ length: weights.shape[0] }, (_, head) => shrunk(at(weights, head)));
  });
  const [{ shape: [rows, columns] }] = pictures;
  const shades = new Uint8Array(pictures.length * rows * columns);
  pictures.forEach(({ values }, i) => shades.set(values.map((weight) => Math.round(255 * weight)), i * rows * columns));
  return { part: name, shape: [layers.length, pictures.length / layers.length, rows, columns], shades: base64(shades) };
}

/** Average weights [Lq, Lk] to at most `MOST_THUMBNAIL` rows and columns. */
function shrunk({ shape: [rows, columns], values }) {
  const ranges = (length) => Array.from({ length: Math.min(length, MOST_THUMBNAIL) }, (_, i, count = Math.min(length, MOST_THUMBNAIL)) =>
    [Math.floor((i * length) / count), Math.floor(((i + 1) * length) / count)]);
  const [down, across] = [ranges(rows), ranges(columns)];
  const result = new Float32Array(down.length * across.length);
  down.forEach(([top, bottom], i) => across.forEach(([left, right], j) => {
    let sum = 0;
    for (let row = top; row < bottom; row += 1) for (let column = left; column < right; column += 1) sum += values[row * columns + column];
    result[i * across.length + j] = sum / (bottom - top) / (right - left);
  }));
  return { shape: [down.length, across.length], values: result };
}

/** One query of a head, as a request names it: its layer, head and row, the tokens, and `of`, which gives a tensor of a head. */
export function queryOf(model, request) {
  const { reading, capture } = passOf(model, request);
  const { name, layers, layer } = chosenLayer(model, request);
  const { address, sublayer: { part } } = layers[layer];
  const [rows, columns] = rowsAndColumns(reading, name);
  const head = choose(request.head ?? 0, part.num_heads, "head");
  const row = choose(request.row ?? 0, rows.ids.length, "row");
  const tensor = (index) => (kind) => at(capture.get(`${address}.${kind}`), index);
  // Consecutive query heads share a key/value head (Ainslie 2023).
  const [of, shared] = [tensor(head), tensor(Math.floor(head / (part.num_heads / part.num_kv_heads)))];
  return {
    reading, name, layers, layer, address, part, rows, columns, row,
    /** The query's row of a tensor of its head. */
    own: (kind) => Array.from(at(of(kind), row).values),
    /** The vector of a key of its head. */
    ofKey: (kind, key) => Array.from(at(shared(kind), key).values),
  };
}

/** A query, the keys with the largest weights, and their products by channel. */
export function neurons(model, request) {
  const { part, rows, columns, row, own, ofKey } = queryOf(model, request);
  const [query, scores, weights] = ["query", "scores", "weights"].map(own);
  const order = weights.map((_, key) => key).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_KEYS);
  return {
    word: rows.pieces[row],
    left_out: weights.length - order.length,
    factor: part.scale,
    query,
    keys: order.sort((a, b) => a - b).map((key) => {
      const vector = ofKey("key", key);
      return {
        piece: columns.pieces[key],
        visible: scores[key] > -Infinity,
        key: vector,
        products: vector.map((value, i) => value * query[i]),
        score: scores[key] > -Infinity ? scores[key] : null,
        weight: weights[key],
        value: ofKey("value", key),
      };
    }),
    context: own("context"),
  };
}

/** How much each token's output of a block's self-attention changes while another token is silent. */
export function influence(model, request) {
  const { reading, capture } = passOf(model, request);
  const stack = stackOf(model, request.stack || model.lastStack);
  const tokens = reading[stack.name];
  const count = tokens.ids.length;
  if (count > MOST_SILENT) {
    throw new Refusal({ what: `${count} tokens are more than the ${MOST_SILENT} that can be left out one by one`, where: "text", remedy: "Shorten it, or call heedful.inspect.influence" });
  }
  const { block: wanted = -1 } = request;
  const block = wanted < 0 ? stack.blocks.length - 1 : choose(wanted, stack.blocks.length, "layer");
  const address = `${stack.name}.${block}.self`;
  const input = capture.get(`${address}.input`).values;
  const whole = stack.mix(block, input);
  const { width } = stack;
  const rowOf = (values, row) => values.subarray(row * width, (row + 1) * width);
  const lengths = tokens.ids.map((_, row) => Math.max(1e-30, lengthOf(rowOf(whole, row))));
  const changes = tokens.ids.map(() => new Array(count));
  for (let silent = 0; silent < count; silent += 1) {
    const output = stack.mix(block, input.slice().fill(0, silent * width, (silent + 1) * width));
    lengths.forEach((length, row) => {
      const change = lengthOf(rowOf(output, row).map((value, i) => value - whole[row * width + i])) / length;
      changes[row][silent] = change < ROUNDING ? 0 : change;
    });
  }
  const byDistance = (of) => tokens.ids.map((_, far) => Array.from({ length: count - far }, (_, i) => of(i, i + far)).reduce((sum, value) => sum + value, 0) / (count - far));
  const { shape: [heads], values: weights } = capture.get(`${address}.weights`);
  const size = count * count;
  return {
    stacks: Object.fromEntries(Object.entries(model.stacks).map(([name, each]) => [name, each.blocks.length])),
    stack: stack.name,
    block,
    address,
    kind: "attention",
    about: "Multi-head attention; fewer key/value heads make it grouped-query or multi-query.",
    pieces: tokens.pieces,
    changes,
    before: byDistance((early, late) => changes[late][early]),
    after: byDistance((early, late) => changes[early][late]),
    weights: tokens.ids.map((_, row) => tokens.ids.map((_, column) => {
      let sum = 0;
      for (let head = 0; head < heads; head += 1) sum += weights[head * size + row * count + column];
      return sum / heads;
    })),
  };
}
