// Answers of the page Block: the tensors of a block, and what each sub-layer adds to the stream.

import { lengthOf, spread } from "./arithmetic.js";
import { significant, thousands } from "./forms.js";
import { describeMask } from "./masks.js";
import { choose, passOf, stackOf } from "./passes.js";

const AXES = {
  inner: ["batch", "tokens", "inner channels"],
  query: ["batch", "heads", "tokens", "channels of a head"],
  context: ["batch", "heads", "tokens", "channels of a head"],
  key: ["batch", "key heads", "tokens", "channels of a head"],
  value: ["batch", "key heads", "tokens", "channels of a head"],
  scores: ["batch", "heads", "queries", "keys"],
  weights: ["batch", "heads", "queries", "keys"],
};

const CHANNELS = 32; // of a vector, which are drawn
const MOST_STRIPS = 40; // tokens

/** The tensors of a block with their inputs, shapes and sizes. */
export function flow(model, { stack: name = "", layer = -1, ...request }) {
  const { reading, capture } = passOf(model, request);
  const stack = stackOf(model, name);
  const number = layer === -1 ? stack.blocks.length - 1 : choose(layer, stack.blocks.length, "layer");
  const plan = new Plan(stack, number);
  const tokens = reading[stack.name].pieces;
  return {
    stacks: Object.fromEntries(Object.values(model.stacks).map((each) => [each.name, each.blocks.length])),
    target: reading.target,
    stack: stack.name,
    layer: number,
    norm_first: stack.blocks[number].every(({ norm_placement: placement }) => placement === "before"),
    parts: plan.steps.map((step) => flowPart(step, capture.get(step.address), step.ofMemory ? reading.encoder.pieces : tokens)),
  };
}

const normName = ({ kind }) => (kind === "layer" ? "Layer norm" : "Root-mean-square norm");
const labelOf = ({ name }) => (name === "feedforward" ? "the feed-forward network" : name.replaceAll("_", "-"));

/** The tensors of a block in the order of a pass, each after its inputs. */
class Plan {
  constructor(stack, number) {
    Object.assign(this, { steps: [], place: `${stack.name}.${number}` });
    const [before, origin] = number > 0 ? [`${number - 1}.output`, `the output of block ${number - 1}`] : ["embedding", "the embedded tokens"];
    this.stream = this.onStream("input", "stream", `${stack.name}.${before}`, [], `The stream before the block: ${origin}.`);
    for (const sublayer of stack.blocks[number]) {
      const { address: name, part } = sublayer;
      const source = this.enter(sublayer);
      const [inner, about] = part.kind === "attention" ? this.attention(sublayer, source) : this.feedforward(sublayer, source);
      this.add(`${name}.output`, "output", [inner], about);
      this.leave(sublayer);
    }
    const last = number === stack.blocks.length - 1;
    this.onStream("output", "stream", `${this.place}.output`, [this.stream], `The stream after the ${last ? "last " : ""}block.`);
    if (last && stack.finalNorm) {
      this.onStream("final.norm", "norm", `${stack.name}.output`, ["output"], `${normName(stack.finalNorm)} of the stream, after the last block.`);
    }
  }

  add(key, role, reads, about, more = {}) {
    this.steps.push({ key, role, address: `${this.place}.${key}`, reads, about, onStream: false, ofMemory: false, ...more });
    return key;
  }

  onStream(key, role, address, reads, about) {
    return this.add(key, role, reads, about, { address, onStream: true });
  }

  enter(sublayer) {
    if (!sublayer.before) return this.stream;
    const about = `${normName(sublayer.before)} of the stream, for ${labelOf(sublayer)} alone: the stream itself stays as it is.`;
    return this.add(`${sublayer.address}.norm`, "norm", [this.stream], about, { address: `${this.place}.${sublayer.address}.input` });
  }

  leave(sublayer) {
    const { address: name, residual = true } = sublayer;
    const at = `${this.place}.${name}`;
    this.stream = residual
      ? this.onStream(`${name}.sum`, "sum", `${at}.residual`, [this.stream, `${name}.output`], `The residual connection: ${labelOf(sublayer)} is added to the stream.`)
      : this.onStream(`${name}.sum`, "sum", `${at}.residual`, [`${name}.output`], `There is no residual connection: ${labelOf(sublayer)} replaces the stream.`);
    if (sublayer.after) {
      this.stream = this.onStream(`${name}.norm`, "norm", `${at}.stream`, [this.stream], `${normName(sublayer.after)} of the sum: from here on, this is the stream.`);
    }
  }

  attention({ address: name, part }, source) {
    const cross = part.over === "memory";
    const memory = cross
      ? this.add(`${name}.memory`, "memory", [], "The encoder's output, which is the same for all blocks of the decoder.", { address: "encoder.output", ofMemory: true })
      : source;
    const rotated = part.rotary ? ", rotated by its position" : "";
    const query = this.add(`${name}.query`, "query", [source], `The query of each token, head by head${rotated}: what it looks for.`);
    const ofMemory = { ofMemory: cross };
    const key = this.add(`${name}.key`, "key", [memory], `The key of each token${cross ? " of the source" : ""}${rotated}: what queries are compared with.`, ofMemory);
    const value = this.add(`${name}.value`, "value", [memory], "The value of each token: what the tokens that attend to it receive.", ofMemory);
    const scores = this.add(`${name}.scores`, "scores", [query, key], `Query times key, times ${Number(part.scale.toPrecision(4))}: how well the two agree.`);
    const weights = this.add(`${name}.weights`, "weights", [scores], `Softmax of each row of scores. A query sees ${describeMask(part.mask)}.`);
    const context = this.add(`${name}.context`, "context", [weights, value], "The mean of the values for each token, by its weights, head by head.");
    return [context, "All heads side by side through one matrix: the output of attention."];
  }

  feedforward({ address: name, part }, source) {
    const inner = this.add(`${name}.inner`, "inner", [source], `Each token by itself, on ${thousands(part.width)} channels: ${part.activation}.`);
    return [inner, "Back to the width of the stream: the output of the feed-forward network."];
  }
}

/** Complete a step by the shape and the figures of its tensor. */
function flowPart({ key, role, address, reads, about, onStream }, { shape, values }, tokens) {
  let [sizes, figures] = [null, {}];
  if (role === "scores") {
    const seen = values.filter(Number.isFinite); // scores of hidden keys are −∞
    figures = { lowest: seen.reduce((a, b) => Math.min(a, b)), highest: seen.reduce((a, b) => Math.max(a, b)) };
  } else if (role === "weights") {
    const maxima = rowsOf({ shape, values }).map((row) => row.reduce((a, b) => Math.max(a, b)));
    figures = { "mean of the largest": mean(maxima) };
  } else {
    const lengths = rowsOf({ shape, values }).map(lengthOf);
    const heads = lengths.length / tokens.length;
    sizes = tokens.map((_, token) => mean(Array.from({ length: heads }, (__, head) => lengths[head * tokens.length + token])));
    figures = { "mean length": mean(lengths) };
  }
  return {
    key,
    role,
    place: key.includes(".") ? key.split(".")[0] : "",
    on_stream: onStream,
    address,
    reads,
    shape: [1, ...shape],
    axes: AXES[role] ?? ["batch", "tokens", "channels"],
    tokens,
    sizes,
    figures,
    about,
    channels: channelsOf(role, rowsOf({ shape, values }).slice(0, tokens.length)),
  };
}

/** The first channels of each token's vector in the first head; of scores and weights whole rows, with null for what is hidden. */
function channelsOf(role, rows) {
  if (rows.length > MOST_STRIPS) return null;
  if (role !== "scores" && role !== "weights") return rows.map((row) => Array.from(row.subarray(0, (role === "inner" ? 4 : 1) * CHANNELS), significant));
  return rows[0].length > MOST_STRIPS ? null : rows.map((row) => Array.from(row, (value) => (Number.isFinite(value) ? significant(value) : null)));
}

const mean = (numbers) => numbers.reduce((sum, each) => sum + each, 0) / numbers.length;

/** The vectors of a tensor along its last axis. */
function rowsOf({ shape, values }) {
  const width = shape.at(-1);
  return Array.from({ length: values.length / width }, (_, row) => values.subarray(row * width, (row + 1) * width));
}

/** Each sub-layer's addition to the stream, and its share in the output. */
export function stream(model, { stack: name = "", ...request }) {
  const { reading, capture } = passOf(model, request);
  const stack = stackOf(model, name);
  const tensor = (address) => capture.get(`${stack.name}.${address}`);
  const places = stack.places.map(({ number, sublayer }) => ({ place: `${number}.${sublayer.address}`, sublayer }));
  const added = places.map(({ place }) => rowsOf(tensor(`${place}.output`)));
  // The stream before a sub-layer is the stream after the sub-layer below.
  const before = ["embedding", ...places.slice(0, -1).map(({ place }) => `${place}.stream`)].map((address) => rowsOf(tensor(address)));
  const each = (make) => added.map((rows, i) => rows.map((row, j) => significant(make(row, before[i][j]))));
  return {
    rows: reading[stack.name].pieces,
    sublayers: places.map(({ place }) => place),
    parts: ["embedding", ...places.map(({ place }) => place), "norms"],
    added: each((row) => lengthOf(row)),
    stream: each((_, row) => lengthOf(row)),
    cosine: each((a, b) => dot(a, b) / Math.max(lengthOf(a) * lengthOf(b), 1e-8)),
    shares: shares(stack, places, tensor),
  };
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

/**
 * Shares of the parts of the output in its squared length, [parts, rows]. A norm is the linear map
 * that it was in this pass: its mean and deviation are constants, its bias is a part of its own.
 */
function shares(stack, places, tensor) {
  const embedding = tensor("embedding");
  const parts = Array.from({ length: places.length + 2 }, () => new Float64Array(embedding.values.length));
  parts[0].set(embedding.values);
  let stream_ = embedding;
  places.forEach(({ place, sublayer }, i) => {
    if (sublayer.residual === false) parts.forEach((part) => part.fill(0)); // the output replaces the stream
    parts[i + 1].set(tensor(`${place}.output`).values);
    stream_ = tensor(`${place}.stream`);
    if (sublayer.after) linearNorm(sublayer.after, tensor(`${place}.residual`), parts);
  });
  if (stack.finalNorm) linearNorm(stack.finalNorm, stream_, parts);
  const width = embedding.shape[1];
  const whole = new Float64Array(embedding.values.length);
  for (const part of parts) for (let i = 0; i < whole.length; i += 1) whole[i] += part[i];
  const rows = (values) => rowsOf({ shape: [width], values });
  return parts.map((part) => rows(part).map((row, i) => significant(dot(row, rows(whole)[i]) / dot(rows(whole)[i], rows(whole)[i]))));
}

/** Apply a norm to parts with the sum `input`, in place; the last part takes the norm's bias. */
function linearNorm({ kind, epsilon, weight, bias }, input, parts) {
  rowsOf(input).forEach((row, number) => {
    const { deviation } = spread(row, kind, epsilon);
    parts.forEach((part, index) => {
      const own = part.subarray(number * row.length, (number + 1) * row.length);
      const center = kind === "layer" ? mean(own) : 0;
      for (let i = 0; i < own.length; i += 1) {
        own[i] = ((own[i] - center) / deviation) * weight.values[i];
        if (bias && index === parts.length - 1) own[i] += bias.values[i];
      }
    });
  });
}
