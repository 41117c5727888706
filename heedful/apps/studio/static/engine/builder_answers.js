// Answers of the page Builder: parameters, operations and memory of models whose blocks attend.
//
// Legend: D width, E width of a head, V vocabulary.

import { GATED } from "./arithmetic.js";
import { fraction, thousands } from "./forms.js";
import { Refusal } from "./refusal.js";

const LENGTHS = Array.from({ length: 14 }, (_, power) => 2 ** (power + 1)); // for which costs are drawn
const BYTES = 4; // of a float32
const LOGITS = 2 ** 22; // of a chunk of the fused loss
const LANES = 8; // numbers that kernels of most processors compute at once (AVX2)
const MOST = { width: 16384, encoder_layers: 256, decoder_layers: 256, feedforward: 131072 };

/** Options of a shape in the order of a settings file; undefined ones are unset. */
const SHAPE = {
  width: 512, encoder_layers: 6, decoder_layers: 6, mixer: "attention", encoder_mixer: "attention", network: "feedforward", num_heads: 8, num_kv_heads: undefined,
  feedforward: 2048, num_experts: undefined, experts_per_token: 2, activation: "relu", norm: "layer", norm_placement: "post", residual: true, attention_scale: undefined,
  positions: "sinusoidal", rotary_scaling: "none", rotary_factor: 1, window: undefined, relative_distance: 16, share_embeddings: "all", dropout: 0.1,
  attention_dropout: 0, feedforward_dropout: 0, bias: true, max_length: 256,
};
const FIXED = ["mixer", "encoder_mixer", "network", "rotary_scaling", "rotary_factor", "relative_distance", "attention_dropout", "feedforward_dropout"];
const REAL = ["rotary_factor", "attention_scale", "dropout", "attention_dropout", "feedforward_dropout"];
const ATTENTION = { kind: "attention", name: "Attention", about: "Multi-head attention; fewer key/value heads make it grouped-query or multi-query." };

const FARTHEST = 16; // distance with a key of its own in relative_keys
const BUCKETS = 32; // of T5's bias
const none = { parameters: () => 0, work: () => 0 };
/** Of each kind of positions: parameters of a layer's bias, and operations of a head for queries that attend to keys. */
const POSITIONS = {
  sinusoidal: none, learned: none, none, rotary: none, alibi: none, t5: none,
  kerple: { parameters: ({ num_heads }) => 2 * num_heads, work: () => 0 },
  relative_keys: {
    parameters: ({ head }) => (2 * FARTHEST + 1) * head,
    work: ({ head }, queries, keys) => 2 * head * queries * Math.min(2 * FARTHEST + 1, queries > 1 ? queries + keys - 1 : Infinity),
  },
  transformer_xl: {
    parameters: ({ num_heads, head, width }) => num_heads * head * (2 + width),
    work: ({ head, width }, queries, keys) => 2 * (queries > 1 ? head * ((queries + keys - 1) * (queries + width) + keys) : head * (width + keys) + width * keys),
  },
};

/** Parameters, operations, memory and settings file of a model; undefined where its layers do not attend. */
export function build({ task = "translation", model = {}, vocabulary = 37000, tokens = 25, beam = 4, batch_tokens = 4096 }) {
  const shape = { ...SHAPE, ...model };
  if (Object.keys(model).some((name) => !(name in SHAPE)) || FIXED.some((name) => shape[name] !== SHAPE[name]) || !POSITIONS[shape.positions]) return undefined;
  refuse(shape);
  const sizes = sizesOf(shape, { vocabulary, tokens, beam, batch_tokens });
  const stacks = { translation: ["encoder", "decoder"], causal_lm: ["decoder"], masked_lm: ["encoder"] }[task];
  const mixers = stacks.map((stack) => ({ stack, ...ATTENTION, layers: shape[`${stack}_layers`], inner_layers: [], ...mixerCosts(sizes, stack === "decoder", tokens) }));
  return { ...(task === "translation" ? translator : other)(sizes, task), mixers, compared: [], toml: settingsFile(task, shape, sizes) };
}

/** Refuse what Python refuses, in the order in which a model is put together. */
function refuse({ width, num_heads, num_kv_heads = num_heads, num_experts, experts_per_token, window, positions, max_length, ...shape }) {
  const refused = (what, where = "model", remedy = "Change one of these settings") => {
    throw new Refusal({ what, where, remedy });
  };
  for (const [name, most] of Object.entries(MOST)) if ({ width, ...shape }[name] > most) refused(`model.${name} is at most ${thousands(most)} here`, null, null);
  if (num_experts && !shape.feedforward) refused("model: num_experts needs feedforward above 0: experts are such networks", null, null);
  if (num_heads % num_kv_heads) refused("num_heads must be a multiple of num_kv_heads");
  if (experts_per_token > num_experts) refused(`per_token ${experts_per_token} exceeds num_experts ${num_experts}`);
  if (positions === "learned" && window > max_length + 1) {
    refused(`the mask of self_attention reaches over ${window} positions, and a text has at most ${max_length + 1}: make it smaller, or leave it out`);
  }
  if (width % num_heads) refused(`width ${width} is not a multiple of num_heads ${num_heads}`);
  const head = width / num_heads;
  if (positions === "rotary" && head % 2) {
    refused(`A head of width ${head} cannot be rotated in ${head} channels`, null, "Use an even rotary width, at most the width of a head");
  }
}

/** Parameters of each part, and elements of its matrices, which each take a multiply-add for a token. */
function sizesOf(shape, asked) {
  const { width, num_heads, num_kv_heads = num_heads, feedforward: inner, num_experts: experts, experts_per_token, bias, positions } = shape;
  const head = width / num_heads;
  const [own, shared] = [num_heads * head, num_kv_heads * head];
  const add = Number(bias);
  const gated = GATED[shape.activation] !== undefined;
  const ups = gated ? 2 : 1;
  const network = (ups + 1) * width * inner;
  const expert = network + add * (ups * inner + width);
  const { parameters, work } = POSITIONS[positions];
  const norm = (shape.norm === "rms" ? 1 : 2) * width;
  return {
    ...shape, ...asked, head, own, shared, gated, norm,
    attention: 2 * width * (own + shared) + add * (own + 2 * shared + width),
    queries: 2 * width * own, // matrices of queries and outputs
    keys: 2 * width * shared, // matrices of keys and values
    network: inner ? { parameters: experts ? experts * expert + experts * width : expert, products: experts ? experts_per_token * network + experts * width : network } : null,
    position: parameters({ num_heads, head, width }),
    pairs: (queries, keys) => num_heads * (4 * head * queries * keys + work({ head, width }, queries, keys)),
    table: asked.vocabulary * width,
    perLayer: (parts) => parts - (inner ? 0 : 1), // sub-layers, where the network may be left out
  };
}

/** Operations of new tokens in the layers of a stack; a memory of an encoder's tokens has been read already. */
function stackWork(sizes, stack, queries, keys, memory = null) {
  const { queries: maps, keys: keyMaps, network, head, num_heads } = sizes;
  const self = 2 * queries * (maps + keyMaps) + sizes.pairs(queries, keys);
  const cross = memory === null ? 0 : 2 * queries * maps + 4 * num_heads * head * queries * memory;
  return sizes[`${stack}_layers`] * (self + cross + 2 * queries * (network?.products ?? 0));
}

/** Parameters, operations and state of one layer of attention, by the length of a text. */
function mixerCosts(sizes, keeps, here) {
  const operations = (tokens) => {
    const queries = keeps ? 1 : tokens;
    return (2 * queries * (sizes.queries + sizes.keys) + sizes.pairs(queries, tokens)) / queries;
  };
  const state = (tokens) => 2 * sizes.shared * tokens * BYTES;
  return {
    parameters: sizes.attention + sizes.position,
    operations_here: operations(here),
    state_here: keeps ? state(here) : null,
    operations: LENGTHS.map((each) => [each, operations(each)]),
    state: keeps ? LENGTHS.map((each) => [each, state(each)]) : [],
  };
}

const row = (part, component, each, count = 1, note = "") => ({ part, component, each, count, note, total: each * count });
const sum = (values) => values.reduce((all, value) => all + value, 0);

function translator(sizes) {
  const { width, positions, share_embeddings: share, table, tokens, beam } = sizes;
  const rows = (share === "all" ? ["source and target pieces"] : ["source pieces", "target pieces"]).map((name) => row("embeddings", name, table));
  if (positions === "sinusoidal") rows.push(row("embeddings", "sinusoidal positions", 0, 2, "fixed"));
  if (positions === "learned") rows.push(row("embeddings", "learned positions", (sizes.max_length + 1) * width, 2));
  for (const stack of ["encoder", "decoder"]) rows.push(...stackRows(sizes, stack));
  rows.push(share === "none" ? row("output", "output projection", table) : row("output", "output projection", table, 0, "the target embedding's tensor"));
  const total = sum(rows.map((each) => each.total));
  const output = (queries) => 2 * table * queries;
  const reading = stackWork(sizes, "encoder", tokens, tokens);
  const memory = 2 * tokens * sizes.decoder_layers * sizes.keys; // keys and values of the source
  const step = (number) => beam * (stackWork(sizes, "decoder", 1, number * beam, tokens) + output(1));
  const [first, last] = [step(1), step(tokens)];
  // Python halves the work of weights, of attention and of the output apart, each an even number.
  const operations = {
    "learning from a pair": 3 * (reading + memory + stackWork(sizes, "decoder", tokens, tokens, tokens) + output(tokens)),
    "reading the source": reading + memory,
    "first word, all hypotheses": first,
    "last word, all hypotheses": last,
    "translating a sentence": reading + memory + ((first + last) * tokens) / 2,
  };
  const cache = 2 * sizes.shared * sizes.decoder_layers * tokens * BYTES;
  return {
    total,
    rows,
    operations,
    memory: {
      training: { ...kept(total), "activations (estimate)": activations(sizes), loss: lossBytes(sizes) },
      translating: { weights: total * BYTES, "kept of the source": cache, "kept of the beam": cache * beam },
    },
  };
}

const kept = (total) => ({ weights: total * BYTES, gradients: total * BYTES, "Adam's moments": 2 * total * BYTES });

function stackRows(sizes, stack) {
  const layers = sizes[`${stack}_layers`];
  const sublayers = sizes.perLayer(stack === "decoder" ? 3 : 2);
  return [
    row(stack, "self-attention", sizes.attention, layers),
    row(stack, "position bias", sizes.position, layers),
    row(stack, "cross-attention", stack === "decoder" ? sizes.attention : 0, layers),
    row(stack, "feed-forward", sizes.network?.parameters ?? 0, layers),
    row(stack, "norms", sizes.norm_placement === "none" ? 0 : sizes.norm, sublayers * layers),
    row(stack, "final norm", sizes.norm_placement === "pre" ? sizes.norm : 0),
    row(stack, "position bias of all layers", sizes.positions === "t5" ? BUCKETS * sizes.num_heads : 0),
  ].filter(({ each }) => each);
}

/** Bytes that the forward pass keeps for the gradients, where kernels in C serve the widths that they can. */
function activations(sizes) {
  const { width, own, shared, head, dropout, norm, norm_placement: placement, positions, encoder_layers, decoder_layers, gated } = sizes;
  const served = (size) => size % LANES === 0;
  const normed = norm === width ? 2 * width : width; // an RMS norm also keeps its unscaled result
  const mask = dropout ? width : 0; // a byte each
  // Kernels keep no mask of dropout, and of a norm its input only.
  const around = BYTES * (width + (placement === "none" ? 0 : served(width) ? width : normed)) + (served(width) ? 0 : mask);
  const rotated = positions === "rotary" && served(head) ? own + shared : 0; // copies beside those that attention keeps
  const self = BYTES * (2 * own + 2 * shared + rotated) + around;
  const cross = BYTES * (2 * own + 2 * shared) + around;
  // ReLU's derivative is read off its result; other activations keep their input as well.
  const copies = ((GATED[sizes.activation] ?? sizes.activation) === "relu" ? 1 : 2) + (gated ? 2 : 0);
  const network = sizes.network ? BYTES * copies * sizes.feedforward + around : 0;
  const ends = 2 * (mask + (placement === "pre" ? BYTES * normed : 0));
  return sizes.batch_tokens * (ends + encoder_layers * (self + network) + decoder_layers * (self + cross + network));
}

/** Bytes of the loss: chunks of logits, states with their gradients, and gradients of the projection. */
function lossBytes({ vocabulary, batch_tokens, width, table }) {
  const rows = Math.min(batch_tokens, Math.max(1, Math.floor(LOGITS / vocabulary)));
  return BYTES * (2 * rows * vocabulary + 2 * batch_tokens * width + 3 * table);
}

/** Parameters of a language model, and its training memory before any batch. */
function other(sizes, task) {
  const { width, positions, table, tokens, vocabulary } = sizes;
  const writes = task === "causal_lm";
  const stack = writes ? "decoder" : "encoder";
  const layers = sizes[`${stack}_layers`];
  const norm = sizes.norm_placement === "none" ? 0 : layers * sizes.norm;
  const network = layers * (sizes.network?.parameters ?? 0);
  const rows = [
    row("embedding", "embedding", table),
    row("output_projection", "output_projection", writes && sizes.share_embeddings === "none" ? table : 0),
    row("input", "positions", positions === "learned" ? (sizes.max_length + 1) * width : 0),
    row(stack, "blocks.self_attention", layers * (sizes.attention + sizes.position)),
    row(stack, "blocks.self_attention_norm", norm),
    row(stack, "blocks.feedforward", network),
    row(stack, "blocks.feedforward_norm", network && norm),
    row(stack, "final_norm", sizes.norm_placement === "pre" ? sizes.norm : 0),
    row(stack, "position_bias", positions === "t5" ? BUCKETS * sizes.num_heads : 0),
    // The head of masked words has the table of the pieces as its output.
    ...(writes ? [] : [row("heads", "masked_lm", vocabulary), row("heads", "masked_lm.dense", width * (width + 1)), row("heads", "masked_lm.norm", 2 * width)]),
  ].filter(({ each }) => each);
  const total = sum(rows.map((each) => each.total));
  const reading = stackWork(sizes, stack, tokens, tokens);
  return {
    total,
    rows,
    operations: writes
      ? { "reading a text": reading + 2 * table * tokens, "writing one more token": stackWork(sizes, stack, 1, tokens + 1) + 2 * table }
      : { "reading a text": reading },
    memory: {
      "training, before any batch": kept(total),
      ...(writes ? { writing: { weights: total * BYTES, "kept of the text": 2 * sizes.shared * layers * tokens * BYTES } } : {}),
    },
  };
}

/** The TOML by which the model is trained. */
function settingsFile(task, shape, { vocabulary, batch_tokens }) {
  const written = (name, value) => (REAL.includes(name) ? fraction(value) : JSON.stringify(value));
  const lines = Object.keys(SHAPE).filter((name) => shape[name] !== undefined).map((name) => `${name} = ${written(name, shape[name])}`);
  return [
    `task = "${task}"`, "", "[model]", ...lines, "", "[tokenizer]", `vocabulary_size = ${vocabulary}`, "",
    "[data]", `batch_tokens = ${batch_tokens}`, `max_length = ${shape.max_length}`, "",
  ].join("\n");
}
