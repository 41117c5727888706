// What reaches the last token of an untrained network: gradients by distance, for the page Paths.
//
// Weights have the distribution of the package's, not its numbers: the mean of several draws is
// alike, a single one is not. P directions of the output are differentiated at once.

import { lengthOf, linear } from "./arithmetic.js";
import { sinusoid } from "./model.js";
import { Generator } from "./random.js";
import { back, throughStack } from "./slopes.js";
import { Stack } from "./stack.js";

const HEADS = 4;
const DIRECTIONS = { fewest: 4, most: 16, numbers: 2 ** 16 }; // numbers of tokens × channels × directions
const EPSILON = 1e-5; // of a norm
const GAIN = Math.SQRT1_2; // of maps to queries, keys and values

/** A source of random numbers: uniform from −1 to 1, and normal. */
function randomOf(seed) {
  const source = new Generator(seed);
  const next = () => source.word() / 2 ** 32;
  return { uniform: () => 2 * next() - 1, normal: () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()) };
}

const numbers = (count, draw) => Float64Array.from({ length: count }, draw);
const matrix = (outputs, inputs, values) => ({ shape: [outputs, inputs], values, scale: null });

/** A Xavier-uniform matrix (Glorot 2010). */
function xavier(random, outputs, inputs, gain = 1) {
  const bound = gain * Math.sqrt(6 / (inputs + outputs));
  return matrix(outputs, inputs, numbers(outputs * inputs, () => bound * random.uniform()));
}

/** Random orthonormal rows [count, D] (Gram-Schmidt). */
function orthonormal(random, count, width) {
  const rows = [];
  while (rows.length < count) {
    const row = numbers(width, random.normal);
    for (const other of rows) {
      const product = row.reduce((sum, value, i) => sum + value * other[i], 0);
      for (let i = 0; i < width; i += 1) row[i] -= product * other[i];
    }
    const length = lengthOf(row);
    rows.push(row.map((value) => value / length));
  }
  return rows;
}

const flat = (rows) => Float64Array.from(rows.flatMap((row) => [...row]));
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/**
 * One channel of each recurrent cell: the state {h, c} from the sums of the input's maps `a` and of
 * the state's maps `u`, and the slopes by them from those by h and c: {a, u: a where unset, h, c}.
 * `keeps` is the gate whose bias keeps the state.
 */
const CELLS = {
  rnn: {
    gates: 1,
    step: ([a], [u]) => ({ h: Math.tanh(a + u) }),
    slopes: ({ h }, byH) => ({ a: [byH * (1 - h * h)], h: 0 }),
  },
  lstm: {
    gates: 4,
    keeps: 1,
    step(a, u, _, before) {
      const [i, f, o] = [0, 1, 3].map((gate) => sigmoid(a[gate] + u[gate]));
      const g = Math.tanh(a[2] + u[2]);
      const c = f * before + i * g;
      return { h: o * Math.tanh(c), c, before, i, f, g, o };
    },
    slopes({ c, before, i, f, g, o }, byH, later) {
      const t = Math.tanh(c);
      const byC = later + byH * o * (1 - t * t);
      return { a: [byC * g * i * (1 - i), byC * before * f * (1 - f), byC * i * (1 - g * g), byH * t * o * (1 - o)], h: 0, c: byC * f };
    },
  },
  gru: {
    gates: 3,
    keeps: 1,
    step(a, u, before) {
      const [r, z] = [0, 1].map((gate) => sigmoid(a[gate] + u[gate]));
      const n = Math.tanh(a[2] + r * u[2]);
      return { h: (1 - z) * n + z * before, before, r, z, n, mapped: u[2] };
    },
    slopes({ before, r, z, n, mapped }, byH) {
      const byN = byH * (1 - z) * (1 - n * n);
      const gates = [byN * mapped * r * (1 - r), byH * (before - n) * z * (1 - z)];
      return { a: [...gates, byN], u: [...gates, byN * r], h: byH * z };
    },
  },
};

/** A layer of a cell over x [L, D]: its states, and the slopes of P directions by x from those by the states. */
function recurrentLayer(cell, random, width, keepBias) {
  const { gates, keeps, step, slopes } = CELLS[cell];
  const all = (make) => matrix(gates * width, width, flat(Array.from({ length: gates }, make)));
  const ofInput = all(() => xavier(random, width, width).values);
  const ofState = all(() => flat(orthonormal(random, width, width)));
  const bias = { values: Float64Array.from({ length: gates * width }, (_, i) => (Math.floor(i / width) === keeps ? keepBias : 0)) };
  const kept = []; // of each token and channel
  return {
    pass(x) {
      const length = x.length / width;
      const mapped = linear(x, length, ofInput, bias);
      const states = new Float64Array(x.length);
      for (let token = 0; token < length; token += 1) {
        const u = linear(states.subarray((token - 1) * width, token * width), 1, ofState);
        kept.push(Array.from({ length: width }, (_, i) => {
          const sums = (of, from) => Array.from({ length: gates }, (__, gate) => of[from + gate * width + i]);
          const { h = 0, c = 0 } = kept[token - 1]?.[i] ?? {};
          return step(sums(mapped, token * gates * width), sums(u, 0), h, c);
        }));
        kept[token].forEach(({ h }, i) => {
          states[token * width + i] = h;
        });
      }
      return states;
    },
    /** @param slopes of each token's state [P, D]; undefined for none */
    through(byStates, count) {
      let [byH, byC] = [new Float64Array(count * width), new Float64Array(count * width)];
      const result = [];
      for (let token = kept.length - 1; token >= 0; token -= 1) {
        byStates[token]?.forEach((value, i) => {
          byH[i] += value;
        });
        const [byA, byU] = [new Float64Array(count * gates * width), new Float64Array(count * gates * width)];
        const direct = new Float64Array(count * width);
        for (let at = 0; at < count * width; at += 1) {
          const i = at % width;
          const { a, u = a, h, c = 0 } = slopes(kept[token][i], byH[at], byC[at]);
          const from = ((at - i) / width) * gates * width + i;
          for (let gate = 0; gate < gates; gate += 1) [byA[from + gate * width], byU[from + gate * width]] = [a[gate], u[gate]];
          [direct[at], byC[at]] = [h, c];
        }
        result[token] = back(byA, count, ofInput);
        byH = back(byU, count, ofState).map((value, i) => value + direct[i]);
      }
      return result;
    },
  };
}

/** Slopes [L] of [P, D] by each token of a recurrent network. */
function throughRecurrent(cell, random, x, directions, { width, num_layers, keep_bias }) {
  const layers = Array.from({ length: num_layers }, () => recurrentLayer(cell, random, width, keep_bias));
  layers.reduce((states, layer) => layer.pass(states), x);
  const byStates = [];
  byStates[x.length / width - 1] = flat(directions);
  return layers.reduceRight((slopes, layer) => layer.through(slopes, directions.length), byStates);
}

/** Slopes [P] of [L, D] by the tokens of an encoder of the Transformer. */
function throughTransformer(network, random, x, directions, { width, num_layers, window, norm_placement }) {
  const norm = { kind: "layer", epsilon: EPSILON };
  const common = { norm, norm_placement: { post: "after", pre: "before" }[norm_placement] };
  const mask = network === "window" ? { kind: "window", size: window } : { kind: "everything" };
  const sublayers = [
    { name: "self_attention", part: { kind: "attention", over: "input", num_heads: HEADS, mask }, ...common },
    { name: "feedforward", part: { kind: "feedforward", width: 4 * width, activation: "relu" }, ...common },
  ];
  const tensors = new Map();
  const put = (name, tensor) => tensors.set(`encoder.${name}.weight`, tensor);
  const ones = () => ({ values: new Float64Array(width).fill(1) });
  for (let number = 0; number < num_layers; number += 1) {
    const at = (name) => `blocks.${number}.${name}`;
    for (const role of ["query", "key", "value"]) put(at(`self_attention.${role}`), xavier(random, width, width, GAIN));
    put(at("self_attention.output"), xavier(random, width, width));
    put(at("feedforward.up"), xavier(random, 4 * width, width));
    put(at("feedforward.down"), xavier(random, width, 4 * width));
    for (const { name } of sublayers) put(at(`${name}_norm`), ones());
  }
  put("final_norm", ones());
  const spec = { num_layers, pattern: [{ sublayers }], final_norm: norm_placement === "pre" ? norm : null };
  const stack = new Stack("encoder", spec, tensors, width);
  const positions = Array.from({ length: x.length / width }, (_, i) => i);
  const embedded = Float32Array.from(x);
  positions.forEach((position) => sinusoid(position, width, "pairs").forEach((value, i) => {
    embedded[position * width + i] += value;
  }));
  const beam = stack.begin();
  const capture = new Map();
  stack.pass(embedded, positions.map(() => beam), positions, { capture });
  return directions.map((direction) => {
    const top = new Float64Array(x.length);
    top.set(direction, x.length - width);
    return throughStack(stack, capture, top, null, {});
  });
}

/** Norms of the Jacobian of the last token's output by the tokens, by their distance, of a new network. */
export function measure({ network = "transformer", length = 64, width = 64, num_layers = 2, window = 4, keep_bias = 1, norm_placement = "post", seed = 1 }) {
  const { fewest, most, numbers: all } = DIRECTIONS;
  const count = Math.min(width, Math.max(fewest, Math.min(most, Math.floor(all / (length * width)))));
  const directions = orthonormal(randomOf(-1), count, width); // the same in every call
  const random = randomOf(seed);
  const x = numbers(length * width, random.normal);
  const settings = { width, num_layers, window, keep_bias, norm_placement };
  const squares = new Float64Array(length);
  const add = (slopes, token) => {
    for (const slope of slopes) squares[length - 1 - token] += slope * slope;
  };
  if (CELLS[network]) throughRecurrent(network, random, x, directions, settings).forEach(add);
  else throughTransformer(network, random, x, directions, settings).forEach((slopes) => x.forEach((_, i) => add(slopes.subarray(i, i + 1), Math.floor(i / width))));
  const mean = Array.from(squares, (square) => Math.sqrt((square * width) / count));
  return { name: CELLS[network] ? network : "transformer", samples: 1, mean, relative: mean.map((value) => value / mean[0]) };
}
