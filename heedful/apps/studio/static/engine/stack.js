// A stack of blocks: whole sequences and single tokens of several beams by the same pass.

import { ACTIVATIONS, GATED, linear, normalize } from "./arithmetic.js";

/** Address of a sub-layer in a capture: `self`, `cross` or `feedforward`. */
const addressOf = (sublayer) => sublayer.name.replace(/_attention$/, "");

/** The distance from which on a query of a mask sees no key. */
const reachOf = ({ kind, size }) => (kind === "window" ? size : Infinity);

const list = (mask) => (mask.kind === "all_of" ? mask.parts.flatMap(list) : [mask.kind]);

/** Whether a query sees only the keys up to its own position. */
export const isCausal = (mask) => list(mask).includes("causal");

export class Stack {
  /**
   * @param name `encoder` or `decoder`
   * @param spec its part of config.json
   * @param tensors weights by name
   * @param width model width D
   */
  constructor(name, spec, tensors, width) {
    Object.assign(this, { name, spec, width });
    const norm = (settings, at) => settings && {
      ...settings, weight: tensors.get(`${at}.weight`), bias: tensors.get(`${at}.bias`) ?? null,
    };
    const map = (at) => tensors.has(`${at}.weight`) ? { weight: tensors.get(`${at}.weight`), bias: tensors.get(`${at}.bias`) ?? null } : null;
    this.blocks = Array.from({ length: spec.num_layers }, (_, number) => {
      const { sublayers } = spec.pattern[number % spec.pattern.length];
      return sublayers.map((each) => {
        const at = `${name}.blocks.${number}.${each.name}`;
        const { part } = each;
        const names = part.kind === "attention" ? ["query", "key", "value", "output"] : ["up", "gate", "down"];
        const placement = each.norm_placement;
        return {
          ...each,
          address: addressOf(each),
          part: part.kind === "attention" ? completed(part, width) : part,
          maps: Object.fromEntries(names.map((role) => [role, map(`${at}.${role}`)])),
          before: placement === "before" ? norm(each.norm, `${at}_norm`) : null,
          after: placement === "after" ? norm(each.norm, `${at}_norm`) : null,
        };
      });
    });
    this.finalNorm = norm(spec.final_norm, `${name}.final_norm`);
  }

  /** The sub-layers of all blocks, in the order of a pass, with their block's number. */
  get places() {
    return this.blocks.flatMap((block, number) => block.map((sublayer) => ({ number, sublayer })));
  }

  /** The same stack whose heads with these addresses add nothing. */
  without(addresses) {
    const off = (at, heads) => new Set(Array.from({ length: heads }, (_, head) => head).filter((head) => addresses.includes(`${at}.head.${head}`)));
    const blocks = this.blocks.map((block, number) => block.map((each) => ({ ...each, off: off(`${this.name}.${number}.${each.address}`, each.part.num_heads ?? 0) })));
    return Object.assign(Object.create(Stack.prototype), this, { blocks });
  }

  /**
   * Keys and values of cross-attention over an encoder's output [S, D], once for all steps.
   * @param silent set of rows that nothing attends to
   */
  read(memory, rows, silent = null) {
    return this.blocks.map((block) => block.map(({ part, maps }) => part.over === "memory" ? {
      keys: hidden(cut(linear(memory, rows, maps.key.weight, maps.key.bias), rows), silent),
      values: cut(linear(memory, rows, maps.value.weight, maps.value.bias), rows),
    } : null));
  }

  /** The self-attention of a block by itself, of its own input [L, D]: the output [L, D]. */
  mix(number, input) {
    const sublayer = this.blocks[number].find(({ part }) => part.over === "input");
    const positions = Array.from({ length: input.length / this.width }, (_, i) => i);
    const state = { keys: [], values: [] };
    return attention(input, positions.length, sublayer, positions.map(() => state), { positions, silent: null, keep: null });
  }

  /** The state of a beam before its first token: no keys and values yet. */
  begin() {
    return this.blocks.map((block) => block.map(() => ({ keys: [], values: [] })));
  }

  /**
   * Pass tokens through every block.
   * @param x embedded tokens [R, D]
   * @param beams state of each token's beam: all tokens of one sequence have the same one. Their
   *   keys and values are added to it.
   * @param positions position of each token in its sequence
   * @param read result of `read`, for a decoder with a memory
   * @param capture Map that receives every tensor by its address, {shape, values}; it needs a whole
   *   sequence in which nothing is silent
   * @param silent set of positions that nothing attends to
   */
  pass(x, beams, positions, { read = null, capture = null, silent = null } = {}) {
    const rows = positions.length;
    const keep = (at, values, shape = [rows, values.length / rows]) => capture?.set(`${this.name}.${at}`, { shape, values });
    keep("embedding", x);
    this.blocks.forEach((block, number) => {
      block.forEach((sublayer, index) => {
        const at = `${number}.${sublayer.address}`;
        const here = (name, ...tensor) => keep(`${at}.${name}`, ...tensor);
        const input = sublayer.before ? normalize(x, rows, sublayer.before) : x;
        here("input", input);
        const states = read?.[number][index] ?? beams.map((beam) => beam[number][index]);
        const output = sublayer.part.kind === "attention"
          ? attention(input, rows, sublayer, states, { positions, silent, keep: capture && here })
          : feedforward(input, rows, sublayer, here);
        here("output", output);
        x = sum(x, output, sublayer);
        here("residual", x);
        if (sublayer.after) x = normalize(x, rows, sublayer.after);
        here("stream", x);
      });
      keep(`${number}.output`, x);
    });
    if (this.finalNorm) x = normalize(x, rows, this.finalNorm);
    keep("output", x);
    return x;
  }
}

/** A beam's state that can be continued on its own; its rows are shared with the first one. */
export function copyBeam(beam) {
  return beam.map((block) => block.map(({ keys, values }) => ({ keys: [...keys], values: [...values] })));
}

/** Settings of attention with the numbers that follow from the width of the model. */
function completed(part, width) {
  const headWidth = part.head_width ?? width / part.num_heads;
  return {
    ...part,
    num_kv_heads: part.num_kv_heads ?? part.num_heads,
    head_width: headWidth,
    scale: part.scale ?? headWidth ** -0.5,
  };
}

function sum(x, output, { residual = true, residual_scale: factor = 1 }) {
  return residual ? x.map((value, i) => (value + output[i]) * factor) : output.map((value) => value * factor);
}

/** Cut [rows, D] into its rows. */
function cut(x, rows) {
  const width = x.length / rows;
  return Array.from({ length: rows }, (_, row) => x.subarray(row * width, (row + 1) * width));
}

/** Keys with null in silent places, which no query sees. */
const hidden = (keys, silent) => (silent ? keys.map((key, row) => (silent.has(row) ? null : key)) : keys);

function feedforward(x, rows, { part, maps }, keep) {
  const gated = GATED[part.activation];
  const activation = ACTIVATIONS[gated ?? part.activation];
  const up = linear(x, rows, maps.up.weight, maps.up.bias);
  let inner;
  if (gated) {
    inner = linear(x, rows, maps.gate.weight, maps.gate.bias);
    for (let i = 0; i < inner.length; i += 1) inner[i] = activation(inner[i]) * up[i];
  } else {
    inner = up.map(activation);
  }
  keep("inner", inner);
  return linear(inner, rows, maps.down.weight, maps.down.bias);
}

/**
 * Attention of tokens [R, D] to the keys of their states, to which self-attention adds their own.
 * @param states {keys, values} of each token's beam; one for all tokens in cross-attention
 * @param settings {positions, silent: positions that nothing attends to, keep: receives the tensors
 *   of the heads; null for none}
 */
function attention(x, rows, { part, maps, off = null }, states, { positions, silent, keep }) {
  const project = ({ weight, bias }) => linear(x, rows, weight, bias);
  const { num_heads: heads, head_width: width } = part;
  const query = project(maps.query);
  if (part.rotary) rotate(query, rows, part, heads, positions);
  const own = part.over === "input";
  if (own) {
    const key = project(maps.key);
    if (part.rotary) rotate(key, rows, part, part.num_kv_heads, positions);
    const values = cut(project(maps.value), rows);
    // Sequences are all there before anybody looks: an encoder's token sees those after it.
    cut(key, rows).forEach((each, row) => {
      states[row].keys.push(silent?.has(positions[row]) ? null : each);
      states[row].values.push(values[row]);
    });
  }
  const context = new Float32Array(rows * heads * width);
  const causal = own && isCausal(part.mask);
  const captured = keep && headTensors(part, rows, (own ? states[0] : states).keys.length);
  for (let row = 0; row < rows; row += 1) {
    const { keys, values } = own ? states[row] : states;
    const seen = causal ? positions[row] + 1 : keys.length;
    for (let head = 0; head < heads; head += 1) {
      if (!off?.has(head)) attendRow(part, head, row, query, keys, values, seen, context, captured, positions[row]);
    }
  }
  if (keep) keepHeads(keep, part, rows, query, own ? states[0] : states, context, captured);
  return linear(context, rows, maps.output.weight, maps.output.bias);
}

/** Weights of one query of one head, and the mean of the values by them, into `context`. */
function attendRow(part, head, row, query, keys, values, seen, context, captured, position) {
  const reach = reachOf(part.mask);
  const { num_heads: heads, head_width: width } = part;
  const from = (row * heads + head) * width;
  // Consecutive query heads share a key/value head (Ainslie 2023).
  const at = Math.floor(head / (heads / part.num_kv_heads)) * width;
  const weights = new Float64Array(seen);
  let most = -Infinity;
  for (let key = 0; key < seen; key += 1) {
    const vector = keys[key];
    if (vector === null || Math.abs(key - position) >= reach) {
      weights[key] = -Infinity;
      continue;
    }
    let score = 0;
    for (let i = 0; i < width; i += 1) score += query[from + i] * vector[at + i];
    weights[key] = score * part.scale;
    if (weights[key] > most) most = weights[key];
  }
  if (most === -Infinity) return; // all that it could see is silent: nothing comes of it
  captured?.scores.set(weights, (head * captured.rows + row) * captured.keys);
  let total = 0;
  for (let key = 0; key < seen; key += 1) {
    weights[key] = Math.exp(weights[key] - most);
    total += weights[key];
  }
  for (let key = 0; key < seen; key += 1) {
    weights[key] /= total;
    const vector = values[key];
    for (let i = 0; i < width; i += 1) context[from + i] += weights[key] * vector[at + i];
  }
  captured?.weights.set(weights, (head * captured.rows + row) * captured.keys);
}

/** Room for scores and weights [H, Lq, Lk]; keys that a query does not see stay −∞ and 0. */
function headTensors({ num_heads: heads }, rows, keys) {
  const size = heads * rows * keys;
  return { rows, keys, scores: new Float32Array(size).fill(-Infinity), weights: new Float32Array(size) };
}

function keepHeads(keep, part, rows, query, { keys, values }, context, captured) {
  const { num_heads: heads, num_kv_heads: shared, head_width: width } = part;
  const byHead = (vectors, count) => {
    const result = new Float32Array(vectors.length * count * width);
    vectors.forEach((vector, row) => {
      for (let head = 0; head < count; head += 1) {
        result.set(vector.subarray(head * width, (head + 1) * width), (head * vectors.length + row) * width);
      }
    });
    return result;
  };
  keep("query", byHead(cut(query, rows), heads), [heads, rows, width]);
  keep("key", byHead(keys, shared), [shared, keys.length, width]);
  keep("value", byHead(values, shared), [shared, keys.length, width]);
  keep("scores", captured.scores, [heads, rows, keys.length]);
  keep("weights", captured.weights, [heads, rows, keys.length]);
  keep("context", byHead(cut(context, rows), heads), [heads, rows, width]);
}

/** Rotate queries or keys [R, H · E] by angles proportional to their positions (Su 2021), in place. */
export function rotate(x, rows, { rotary, head_width: width }, heads, positions) {
  const rotated = rotary.width ?? width;
  const half = rotated / 2;
  for (let pair = 0; pair < half; pair += 1) {
    const frequency = Math.fround((rotary.base ?? 10000) ** ((-2 * pair) / rotated));
    const [first, second] = rotary.layout === "pairs" ? [2 * pair, 2 * pair + 1] : [pair, pair + half];
    for (let row = 0; row < rows; row += 1) {
      // Rounded to float32 like the package's angles, which differ from exact ones past position 100.
      const angle = Math.fround(positions[row] * frequency);
      const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
      for (let head = 0, at = row * heads * width; head < heads; head += 1, at += width) {
        const [a, b] = [x[at + first], x[at + second]];
        x[at + first] = a * cosine - b * sine;
        x[at + second] = b * cosine + a * sine;
      }
    }
  }
}
