// Answers of the page Attention: weights of heads, their thumbnails, one query in numbers.

import { wordNumbers } from "./alignment.js";
import { at, base64, encoded } from "./forms.js";
import { attentionLayers, choose, mixersOf, numHeads, partsOf, passOf, rowsAndColumns } from "./passes.js";

const MOST_WEIGHTS = 1 << 22; // of an answer: 16 MiB
const MOST_THUMBNAIL = 48; // rows and columns; weights of longer texts are averaged
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

/** A query, the keys with the largest weights, and their products by channel. */
export function neurons(model, request) {
  const { reading, capture } = passOf(model, request);
  const { name, layers, layer } = chosenLayer(model, request);
  const { address, sublayer: { part } } = layers[layer];
  const [rows, columns] = rowsAndColumns(reading, name);
  const head = choose(request.head ?? 0, part.num_heads, "head");
  const row = choose(request.row ?? 0, rows.ids.length, "row");
  const vectors = (tensor, index = head) => at(capture.get(`${address}.${tensor}`), index);
  const shared = Math.floor(head / (part.num_heads / part.num_kv_heads));
  const query = Array.from(at(vectors("query"), row).values);
  const [scores, weights] = ["scores", "weights"].map((tensor) => Array.from(at(vectors(tensor), row).values));
  const order = weights.map((_, key) => key).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_KEYS);
  return {
    word: rows.pieces[row],
    left_out: weights.length - order.length,
    factor: part.scale,
    query,
    keys: order.sort((a, b) => a - b).map((key) => {
      const vector = Array.from(at(vectors("key", shared), key).values);
      return {
        piece: columns.pieces[key],
        visible: scores[key] > -Infinity,
        key: vector,
        products: vector.map((value, i) => value * query[i]),
        score: scores[key] > -Infinity ? scores[key] : null,
        weight: weights[key],
        value: Array.from(at(vectors("value", shared), key).values),
      };
    }),
    context: Array.from(at(vectors("context"), row).values),
  };
}
