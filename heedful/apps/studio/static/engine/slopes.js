// Slopes of a prediction, backwards through a pass: what each head brings to it, and each embedding.

import { ACTIVATIONS, GATED, linear, logSumExp, spread } from "./arithmetic.js";
import { rotate } from "./stack.js";

/** Derivatives of the activations. */
const RISES = {
  relu: (x) => Number(x > 0),
  gelu: (x) => (x === 0 ? 0.5 : ACTIVATIONS.gelu(x) / x) + (x * Math.exp(-x * x / 2)) / Math.sqrt(2 * Math.PI),
  gelu_tanh: (x) => {
    const t = Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * x * x);
  },
  silu: (x) => {
    const s = 1 / (1 + Math.exp(-x));
    return s * (1 + x * (1 - s));
  },
};

/**
 * Slopes of the value of a prediction after the last token.
 * @param capture tensors of the pass, from `Model.capture`
 * @param token whose log-probability is the value; with `against`, its logit less that one's
 * @returns {heads: by address, what the value would lose without each, to first order; embeddings:
 *   slopes [L, D] by the embeddings of each stack}
 */
export function slopesOf(model, { reading, capture, states }, token, against) {
  const { width } = model.spec;
  const last = states.subarray(-width);
  const byLogit = new Float64Array(model.vocabulary);
  if (against === null) {
    const logits = model.logits(last);
    const normalizer = logSumExp(logits);
    logits.forEach((logit, id) => {
      byLogit[id] = -Math.exp(logit - normalizer);
    });
  } else {
    byLogit[against] -= 1;
  }
  byLogit[token] += 1;
  const top = new Float64Array(states.length);
  top.set(back(byLogit, 1, model.outputTable), states.length - width);
  const memory = reading.encoder && new Float64Array(reading.encoder.ids.length * width);
  const heads = {};
  const decoder = throughStack(model.stacks.decoder, capture, top, memory, heads);
  const encoder = reading.encoder && throughStack(model.stacks.encoder, capture, memory, null, heads);
  return { heads, embeddings: encoder ? { encoder, decoder } : { decoder } };
}

/**
 * Slopes [R, I] by the input of a linear map without its bias, from those by its output [R, O].
 *
 * A sum is read and written once for four outputs: one at a time takes twice as long.
 */
export function back(slopes, rows, { shape: [outputs, inputs], values, scale }) {
  const result = new Float64Array(rows * inputs);
  const slopeAt = (row, output) => (output < outputs ? slopes[row * outputs + output] * (scale === null ? 1 : scale[output]) : 0);
  for (let output = 0; output < outputs; output += 4) {
    const from = output * inputs;
    const [second, third, fourth] = [1, 2, 3].map((i) => (output + i < outputs ? from + i * inputs : from));
    for (let row = 0; row < rows; row += 1) {
      const [a, b, c, d] = [slopeAt(row, output), slopeAt(row, output + 1), slopeAt(row, output + 2), slopeAt(row, output + 3)];
      if (a === 0 && b === 0 && c === 0 && d === 0) continue; // rows that a causal model's last token does not see
      const to = row * inputs;
      for (let i = 0; i < inputs; i += 1) {
        result[to + i] += a * values[from + i] + b * values[second + i] + c * values[third + i] + d * values[fourth + i];
      }
    }
  }
  return result;
}

/** Slopes by the embedding of a stack from those by its output; those by its memory are added to `memory`. */
export function throughStack(stack, capture, slopes, memory, heads) {
  const tensor = (name) => capture.get(`${stack.name}.${name}`).values;
  const { places } = stack;
  const streams = ["embedding", ...places.map(({ number, sublayer }) => `${number}.${sublayer.address}.stream`)];
  if (stack.finalNorm) slopes = throughNorm(stack.finalNorm, tensor(streams.at(-1)), slopes);
  for (let i = places.length - 1; i >= 0; i -= 1) {
    const { number, sublayer } = places[i];
    const at = `${number}.${sublayer.address}`;
    const here = (name) => tensor(`${at}.${name}`);
    if (sublayer.after) slopes = throughNorm(sublayer.after, here("residual"), slopes);
    slopes = slopes.map((each) => each * (sublayer.residual_scale ?? 1));
    const rows = slopes.length / stack.width;
    let inner = sublayer.part.kind === "attention"
      ? throughAttention(sublayer, here, slopes, rows, { memory, told: (head, effect) => (heads[`${stack.name}.${at}.head.${head}`] = effect) })
      : throughFeedforward(sublayer, here, slopes, rows);
    if (sublayer.before) inner = throughNorm(sublayer.before, tensor(streams[i]), inner);
    slopes = sublayer.residual === false ? inner : added(slopes, inner);
  }
  return slopes;
}

const added = (a, b) => a.map((each, i) => each + b[i]);

/** Slopes by the input x [R, D] of a norm. */
function throughNorm({ kind, epsilon, weight: { values } }, x, slopes) {
  const width = values.length;
  const result = new Float64Array(x.length);
  for (let from = 0; from < x.length; from += width) {
    const { mean, deviation } = spread(x.subarray(from, from + width), kind, epsilon);
    let [sum, product] = [0, 0];
    for (let i = 0; i < width; i += 1) {
      const slope = slopes[from + i] * values[i];
      sum += slope;
      product += (slope * (x[from + i] - mean)) / deviation;
    }
    if (kind !== "layer") sum = 0; // no mean was subtracted
    for (let i = 0; i < width; i += 1) {
      result[from + i] = (slopes[from + i] * values[i] - sum / width - (((x[from + i] - mean) / deviation) * product) / width) / deviation;
    }
  }
  return result;
}

function throughFeedforward({ part, maps }, here, slopes, rows) {
  const gated = GATED[part.activation];
  const [activation, rise] = [ACTIVATIONS, RISES].map((table) => table[gated ?? part.activation]);
  const project = ({ weight, bias }) => linear(here("input"), rows, weight, bias);
  const inner = back(slopes, rows, maps.down.weight);
  const up = project(maps.up);
  if (!gated) return back(inner.map((each, i) => each * rise(up[i])), rows, maps.up.weight);
  const gate = project(maps.gate);
  return added(back(inner.map((each, i) => each * up[i] * rise(gate[i])), rows, maps.gate.weight),
    back(inner.map((each, i) => each * activation(gate[i])), rows, maps.up.weight));
}

/** Slopes by the input of attention; `told` hears what each head brings. */
function throughAttention({ part, maps }, here, slopes, rows, { memory, told }) {
  const { num_heads: heads, num_kv_heads: shared, head_width: width } = part;
  const [query, key, value, weights, context] = ["query", "key", "value", "weights", "context"].map(here);
  const byContext = back(slopes, rows, maps.output.weight);
  const keys = key.length / shared / width;
  const byQuery = new Float64Array(query.length);
  const [byKey, byValue] = [new Float64Array(key.length), new Float64Array(key.length)];
  const rises = new Float64Array(keys);
  for (let head = 0; head < heads; head += 1) {
    const from = Math.floor(head / (heads / shared)); // of the key/value head
    let brings = 0;
    for (let row = 0; row < rows; row += 1) {
      const [place, at] = [(row * heads + head) * width, (head * rows + row) * width];
      const share = (head * rows + row) * keys;
      let mean = 0;
      for (let i = 0; i < width; i += 1) brings += context[at + i] * byContext[place + i];
      for (let k = 0; k < keys; k += 1) {
        let rise = 0;
        for (let i = 0; i < width; i += 1) rise += byContext[place + i] * value[(from * keys + k) * width + i];
        rises[k] = rise;
        mean += rise * weights[share + k];
      }
      for (let k = 0; k < keys; k += 1) {
        const weight = weights[share + k];
        const score = weight * (rises[k] - mean) * part.scale;
        const [there, to] = [(from * keys + k) * width, (k * shared + from) * width];
        for (let i = 0; i < width; i += 1) {
          byValue[to + i] += weight * byContext[place + i];
          byQuery[place + i] += score * key[there + i];
          byKey[to + i] += score * query[at + i];
        }
      }
    }
    told(head, brings);
  }
  // A rotation is undone by the opposite one.
  if (part.rotary) rotate(byQuery, rows, part, heads, Array.from({ length: rows }, (_, i) => -i));
  if (part.rotary) rotate(byKey, keys, part, shared, Array.from({ length: keys }, (_, i) => -i));
  const byInput = back(byQuery, rows, maps.query.weight);
  const bySource = added(back(byKey, keys, maps.key.weight), back(byValue, keys, maps.value.weight));
  if (part.over === "input") return added(byInput, bySource);
  bySource.forEach((each, i) => {
    memory[i] += each;
  });
  return byInput;
}
