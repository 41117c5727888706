// A model of a model directory: translator, language model, masked language model or vision Transformer.

import { ACTIVATIONS, GATED, linear, normalize, rowOf } from "./arithmetic.js";
import { FieldTokenizer } from "./field_tokenizer.js";
import { Refusal } from "./refusal.js";
import { readTensors } from "./safetensors.js";
import { seenWords } from "./seen_words.js";
import { Stack, copyBeam } from "./stack.js";
import { Tokenizer } from "./tokenizer.js";
import { KNOWN as OF_VISION, VisionModel } from "./vision.js";

const KINDS = { translator: ["encoder", "decoder"], causal_lm: ["decoder"], encoder: ["encoder"], vision: ["encoder"] };

/**
 * Load a model.
 * @param files contents by the names in a model directory: `config.json` and `tokenizer.json` parsed,
 *   `model.safetensors` as an ArrayBuffer; `target_tokenizer.json` and `reading.json` where it has them;
 *   of a translator `target_words.json` and `names.json`, which `names.js` reads, where it has them;
 *   of a model of images `pictures.json`, rows of pixels of its examples by their names
 */
export function loadModel(files) {
  const spec = files["config.json"].model;
  refuseOthers(spec);
  const tensors = readTensors(files["model.safetensors"]);
  if (spec.kind === "vision") return new VisionModel(spec, tensors, files["pictures.json"]);
  const content = files["tokenizer.json"];
  const source = content.kind === "fields" ? new FieldTokenizer(content) : new Tokenizer(content);
  const target = files["target_tokenizer.json"] ? new Tokenizer(files["target_tokenizer.json"]) : source;
  const reading = { split: "sentences", language: "en", letterless: 0, ...files["reading.json"] };
  const [words, names] = [files["target_words.json"], files["names.json"]];
  const known = words && names ? { names, seen: seenWords(words), encode: (word) => source.encode(word) } : null;
  return new Model(spec, tensors, { source, target, reading, names: known });
}

class Model {
  /**
   * @param spec `model` of config.json
   * @param tensors weights by name
   * @param texts {source, target: tokenizers, reading: content of reading.json, names: what knows names, or null}
   */
  constructor(spec, tensors, { source, target, reading, names }) {
    Object.assign(this, { spec, tensors, source, target, reading, names });
    this.translates = spec.kind === "translator";
    this.generates = spec.kind !== "encoder";
    this.stacks = Object.fromEntries(KINDS[spec.kind].map((name) => [name, new Stack(name, spec[name], tensors, spec.width)]));
    const table = tensors.get(this.translates ? "target_embedding.weight" : "embedding.weight");
    this.tables = { decoder: table, encoder: this.translates ? tensors.get("source_embedding.weight") ?? table : table };
    this.outputTable = tensors.get("output_projection.weight") ?? table;
    this.vocabulary = this.outputTable.shape[0];
    this.positionsTable = Object.fromEntries(Object.keys(this.stacks).map((name) => {
      const input = this.translates ? { encoder: "source_input", decoder: "target_input" }[name] : "input";
      const table = tensors.get(`${input}.positions.weight`);
      return [name, spec.embedding.positions.kind === "axes" ? tableOfAxes(table, spec.embedding.positions.axes) : table];
    }));
  }

  /** The stack whose output predicts tokens. */
  get lastStack() {
    return this.generates ? "decoder" : "encoder";
  }

  /** Number of learned positions; Infinity without a table. */
  get numPositions() {
    const { kind, max_length: most } = this.spec.embedding.positions;
    return ["learned", "axes"].includes(kind) ? most : Infinity;
  }

  /** Most tokens of a text that a language model reads in one pass. */
  get longest() {
    return Math.min(this.spec.max_length ?? Infinity, this.numPositions);
  }

  /** What a stack adds to its tokens at positions, [L, D]; null for nothing. */
  positionVectors(name, positions) {
    const { kind, layout, unused_rows: unused = 0 } = this.spec.embedding.positions;
    const { width } = this.spec;
    if (kind === "none") return null;
    const result = new Float32Array(positions.length * width);
    positions.forEach((position, row) => {
      if (kind !== "sinusoidal") result.set(rowOf(this.positionsTable[name], position + unused), row * width);
      else result.set(sinusoid(position, width, layout), row * width);
    });
    return result;
  }

  /** Embed ids at positions as vectors [L, D]. */
  embed(name, ids, positions) {
    const { width, embedding: { scale } } = this.spec;
    const factor = scale ? Math.sqrt(width) : 1;
    const x = this.positionVectors(name, positions) ?? new Float32Array(ids.length * width);
    ids.forEach((id, row) => {
      const vector = rowOf(this.tables[name], id);
      for (let i = 0; i < width; i += 1) x[row * width + i] += vector[i] * factor;
    });
    return x;
  }

  /** The same model whose heads with these addresses add nothing. */
  without(addresses) {
    const stacks = Object.fromEntries(Object.entries(this.stacks).map(([name, stack]) => [name, stack.without(addresses)]));
    return Object.assign(Object.create(Model.prototype), this, { stacks });
  }

  /** Run a stack over a whole sequence of ids, or its embedding, with options of `Stack.pass`: output [L, D]. */
  run(name, ids, { embedded = null, ...options } = {}) {
    const stack = this.stacks[name];
    const positions = ids.map((_, i) => i);
    const beam = stack.begin();
    return stack.pass(embedded ?? this.embed(name, ids, positions), ids.map(() => beam), positions, options);
  }

  /**
   * Run the model over a reading, and keep all tensors: {states of the last stack, capture}.
   * @param embedded embeddings of stacks, by name, in place of those of the ids
   */
  capture(reading, embedded = {}) {
    const capture = new Map();
    let [states, read] = [null, null];
    if (reading.encoder) {
      states = this.run("encoder", reading.encoder.ids, { capture, embedded: embedded.encoder });
      if (reading.decoder) read = this.stacks.decoder.read(states, reading.encoder.ids.length);
    }
    if (reading.decoder) states = this.run("decoder", reading.decoder.ids, { read, capture, embedded: embedded.decoder });
    return { states, capture };
  }

  /** Project rows of states [R, D] to logits [R, V]. */
  logits(states) {
    return linear(states, states.length / this.spec.width, this.outputTable, this.tensors.get("output_bias") ?? null);
  }

  /** Logits of the token at a state [D] of a masked language model. */
  maskedLogits(state) {
    const [head] = this.spec.heads;
    const at = "heads.masked_lm";
    const part = (name) => this.tensors.get(`${at}.${name}`) ?? null;
    const inner = linear(state, 1, part("dense.weight"), part("dense.bias")).map(ACTIVATIONS[head.activation]);
    const features = normalize(inner, 1, { ...head.norm, weight: part("norm.weight"), bias: part("norm.bias") });
    return linear(features, 1, part("projection.weight") ?? this.tables.encoder, { values: part("bias").values });
  }

  /**
   * State of one beam before the first token.
   * @param source ids that were read before, special tokens included; null for none
   * @param silent set of places in the source that nothing attends to
   */
  start(source = null, silent = null) {
    let read = null;
    if (source) read = this.stacks.decoder.read(this.run("encoder", source, { silent }), source.length, silent);
    return { beams: [this.stacks.decoder.begin()], read, length: 0 };
  }

  /** Append tokens, some of them silent, to a state's only beam: logits [V] after the last. */
  append(state, ids, silent = null) {
    const positions = ids.map((_, i) => state.length + i);
    const x = this.embed("decoder", ids, positions);
    const states = this.stacks.decoder.pass(x, ids.map(() => state.beams[0]), positions, { read: state.read, silent });
    state.length += ids.length;
    return this.logits(states.subarray(-this.spec.width));
  }

  /** Append one token to every beam: logits [V] of each beam's next token. */
  step(state, tokens) {
    const positions = tokens.map(() => state.length);
    const states = this.stacks.decoder.pass(this.embed("decoder", tokens, positions), state.beams, positions, { read: state.read });
    state.length += 1;
    const logits = this.logits(states);
    return tokens.map((_, row) => logits.subarray(row * this.vocabulary, (row + 1) * this.vocabulary));
  }

  /** State whose beams continue those with these numbers. */
  reorder(state, parents) {
    const taken = new Set();
    // A beam's first heir takes it over; only further ones need a copy.
    const beams = parents.map((parent) => {
      const beam = taken.has(parent) ? copyBeam(state.beams[parent]) : state.beams[parent];
      taken.add(parent);
      return beam;
    });
    return { ...state, beams };
  }
}

/** The vector of each place in fields of some axes: the sum of one for each of its coordinates (Parmar 2018). */
function tableOfAxes(table, axes) {
  const width = table.shape[1];
  let first = 0;
  const rows = axes.flatMap((sizes) => {
    let field = [new Float32Array(width)];
    for (const size of sizes) {
      const own = Array.from({ length: size }, (_, i) => rowOf(table, first + i));
      first += size;
      field = field.flatMap((before) => own.map((row) => before.map((value, i) => value + row[i])));
    }
    return field;
  });
  return { shape: [rows.length, width], values: Float32Array.from(rows.flatMap((row) => [...row])), scale: null };
}

/** Sines and cosines of a position in wavelengths of a geometric progression (Vaswani 2017). */
export function sinusoid(position, width, layout) {
  const vector = new Float32Array(width + (width % 2));
  const pairs = vector.length / 2;
  for (let pair = 0; pair < pairs; pair += 1) {
    const angle = position * Math.exp((2 * pair * -Math.log(10000)) / width);
    const [sine, cosine] = layout === "halves" ? [pair, pairs + pair] : [2 * pair, 2 * pair + 1];
    [vector[sine], vector[cosine]] = [Math.sin(angle), Math.cos(angle)];
  }
  return vector.subarray(0, width);
}

const KNOWN = {
  vision: OF_VISION,
  attention: ["kind", "over", "num_heads", "num_kv_heads", "head_width", "bias", "output_bias", "scale", "dropout", "mask", "rotary", "query_key_norm_over"],
  feedforward: ["kind", "width", "activation", "bias", "dropout"],
  sublayer: ["name", "part", "norm", "norm_placement", "dropout", "residual", "residual_scale"],
  stack: ["num_layers", "pattern", "final_norm", "final_dropout"],
  embedding: ["scale", "positions", "dropout"],
  positions: ["kind", "max_length", "unused_rows", "layout", "axes"],
  norm: ["kind", "epsilon", "unit_offset", "bias"],
  rotary: ["base", "layout", "width", "scaling", "factor", "beta_fast", "beta_slow"],
  model: ["kind", "width", "vocabulary", "source_vocabulary", "target_vocabulary", "share_embeddings", "embedding",
    "encoder", "decoder", "output_bias", "max_length", "tied", "pooler", "heads"],
};
const PLACEMENTS = ["before", "after", "none"];
const MASKS = ["everything", "causal", "segment", "all_of"];

/** Refuse a model with a setting that is not computed here, rather than compute another model. */
function refuseOthers(spec) {
  const refuse = (where) => {
    throw new Refusal({ what: "This model has a part that cannot be computed here", where, remedy: "Look at it in the studio on your machine" });
  };
  const check = (value, kind, where) => {
    // An unset option is null or false: it changes nothing.
    for (const [name, each] of Object.entries(value)) if (each && !KNOWN[kind].includes(name)) refuse(`${where}.${name}`);
  };
  const masks = (mask, where) => {
    if (!MASKS.includes(mask.kind)) refuse(where);
    (mask.parts ?? []).forEach((part) => masks(part, where));
  };
  const norm = (value, where) => {
    if (value) check(value, "norm", where);
    if (value?.unit_offset) refuse(`${where}.unit_offset`);
  };
  if (!KINDS[spec.kind]) refuse("model.kind");
  const sees = spec.kind === "vision";
  check(spec, sees ? "vision" : "model", "model");
  if (sees && (spec.pooling !== "mean" || spec.channels !== 1 || !spec.labels?.length || spec.pixels.shorter_side)) refuse("model");
  if (spec.kind === "encoder" && (spec.pooler || spec.heads?.[0]?.kind !== "masked_lm")) refuse("model.heads");
  check(spec.embedding ?? {}, "embedding", "embedding");
  check(spec.embedding?.positions ?? {}, "positions", "embedding.positions");
  if (spec.embedding?.scale === "rounded") refuse("embedding");
  for (const name of KINDS[spec.kind]) {
    check(spec[name], "stack", name);
    norm(spec[name].final_norm, `${name}.final_norm`);
    for (const sublayer of spec[name].pattern.flatMap((block) => block.sublayers)) {
      const where = `${name}.${sublayer.name}`;
      const { part } = sublayer;
      check(sublayer, "sublayer", where);
      norm(sublayer.norm, `${where}.norm`);
      if (!PLACEMENTS.includes(sublayer.norm_placement)) refuse(`${where}.norm_placement`);
      if (!["attention", "feedforward"].includes(part.kind)) refuse(`${where}.kind`);
      check(part, part.kind, where);
      if (part.mask) masks(part.mask, `${where}.mask`);
      if (part.rotary) check(part.rotary, "rotary", `${where}.rotary`);
      if ((part.rotary?.scaling ?? "none") !== "none") refuse(`${where}.rotary.scaling`);
      if (part.kind === "feedforward" && !ACTIVATIONS[GATED[part.activation] ?? part.activation]) refuse(`${where}.activation`);
    }
  }
}
