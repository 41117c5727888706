// A vision Transformer of a model directory, and its answers on the pages Image and Everywhere.

import { linear, logSumExp, rowOf } from "./arithmetic.js";
import { at, base64, meanOverHeads, rounded } from "./forms.js";
import { choose } from "./passes.js";
import { Refusal } from "./refusal.js";
import { Stack } from "./stack.js";

const PARTS = { attention: "self-attention", feedforward: "the feed-forward network" };
const LARGEST_CANVAS = 32;
const MOST_CLASSES = 10; // labels of an answer
const MOST_PATCHES = 64; // of a picture that is read without each of them in turn
const MOST_ERASED = 8; // patches that are erased together

/** Settings of a model whose patches are all its states, of which the mean is classified. */
export const KNOWN = ["kind", "width", "image_size", "patch_size", "channels", "encoder", "pooling", "labels", "dropout", "pixels"];

export class VisionModel {
  /** @param pictures rows of the example pictures, by name */
  constructor(spec, tensors, pictures) {
    Object.assign(this, { spec, tensors, pictures });
    this.stacks = { encoder: new Stack("encoder", spec.encoder, tensors, spec.width) };
    this.count = spec.image_size / spec.patch_size; // patches on a side
  }

  /** The patches [n, p·p] of a picture, as bytes, in reading order. */
  cut(rows) {
    const { patch_size: size } = this.spec;
    return Uint8Array.from({ length: rows.length ** 2 }, (_, i) => {
      const [patch, inside] = [Math.floor(i / size ** 2), i % size ** 2];
      return rows[Math.floor(patch / this.count) * size + Math.floor(inside / size)][(patch % this.count) * size + (inside % size)];
    });
  }

  /** All tensors of a pass over patches, and its probabilities. */
  read(patches) {
    const { pixels: { rescale, mean: [mean], std: [deviation] } } = this.spec;
    const get = (name) => this.tensors.get(name) ?? null;
    const count = this.count ** 2;
    const x = linear(Float32Array.from(patches, (value) => (value * rescale - mean) / deviation), count, get("patches.projection.weight"), get("patches.projection.bias"));
    const table = get("positions.weight");
    const { width } = this.spec;
    for (let row = 0; row < count; row += 1) rowOf(table, row).forEach((value, i) => { x[row * width + i] += value; });
    const capture = new Map();
    const positions = Array.from({ length: count }, (_, i) => i);
    const beam = this.stacks.encoder.begin();
    const states = this.stacks.encoder.pass(x, positions.map(() => beam), positions, { capture });
    const pooled = Float32Array.from({ length: width }, (_, i) => positions.reduce((sum, row) => sum + states[row * width + i], 0) / count);
    const logits = linear(pooled, 1, get("classifier.output.weight"), get("classifier.output.bias"));
    const normalizer = logSumExp(logits);
    const labels = Array.from(logits, (logit, i) => ({ label: this.spec.labels[i], probability: Math.exp(logit - normalizer) })).sort((a, b) => b.probability - a.probability);
    return { capture, labels };
  }
}

/** The rows of an example or of a drawing in the model's size; undefined for other pictures, which are not read here. */
function drawn({ spec, pictures }, { drawing, example = "" }) {
  const rows = drawing ?? pictures[example];
  const fits = rows?.length === spec.image_size && rows.every((row) => row.length === spec.image_size);
  return fits ? rows : undefined;
}

const sizesOf = ({ spec }, patches) => ({ side: spec.image_size, channels: spec.channels, patch: spec.patch_size, patches: base64(patches) });

/** The patches, the attention to them, and the most probable labels. */
export function look(model, request) {
  const rows = drawn(model, request);
  if (!rows) return undefined;
  const { patch: row = null, layer: asked = null, head = null, rollout = false } = request;
  const patches = model.cut(rows);
  const { capture, labels } = model.read(patches);
  const depth = model.stacks.encoder.blocks.length;
  const layer = choose(asked ?? depth - 1, depth, "layer");
  const every = Array.from({ length: depth }, (_, i) => capture.get(`encoder.${i}.self.weights`));
  const mean = ({ shape: [, count], values }) => Array.from({ length: count }, (_, j) => {
    let sum = 0;
    for (let i = 0; i < count; i += 1) sum += values[i * count + j];
    return sum / count;
  });
  if (row !== null && row >= model.count ** 2) throw new Refusal({ what: `There is no patch ${row}`, where: "patch" });
  const query = (weights) => (row === null ? mean(weights) : Array.from(at(weights, row).values));
  const chosen = rollout ? rolledOut(every.slice(0, layer + 1)) : head === null ? meanOverHeads(every[layer]) : at(every[layer], choose(head, every[layer].shape[0], "head"));
  const thumbnails = every.flatMap((weights) => Array.from({ length: weights.shape[0] }, (_, i) => query(at(weights, i))));
  const most = Math.max(...thumbnails.flat());
  return {
    ...sizesOf(model, patches),
    labels: labels.slice(0, MOST_CLASSES),
    classes: labels.length,
    shares: query(chosen),
    whole: null, // no state but those of the patches
    heads: {
      shape: [depth, thumbnails.length / depth, model.count, model.count],
      shades: base64(Uint8Array.from(thumbnails.flat(), (weight) => Math.round((255 * weight) / most))),
      most,
    },
  };
}

/** Rollout: the product of (attention + identity) / 2 of the layers, the newest on the left (Abnar 2020). */
function rolledOut(layers) {
  return layers.map(meanOverHeads).reduce((below, { shape, values }) => {
    const [count] = shape;
    const mixing = values.map((weight, i) => (weight + (Math.floor(i / count) === i % count ? 1 : 0)) / 2);
    if (!below) return { shape, values: mixing };
    const product = new Float32Array(count * count);
    for (let i = 0; i < count; i += 1) for (let k = 0; k < count; k += 1) for (let j = 0; j < count; j += 1) product[i * count + j] += mixing[i * count + k] * below.values[k * count + j];
    return { shape, values: product };
  }, null);
}

/** Patches without which the picture has another label: each time the one that the label misses most. */
export function erase(model, request) {
  const rows = drawn(model, request);
  if (!rows) return undefined;
  const erased = [];
  const none = (label = null, probability = null) => ({ patches: erased, label, probability });
  if (model.count ** 2 > MOST_PATCHES) return none();
  const size = model.spec.patch_size ** 2;
  let patches = model.cut(rows);
  const [{ label: own }] = model.read(patches).labels;
  for (let round = 0; round < MOST_ERASED; round += 1) {
    let best = null;
    for (let patch = 0; patch < model.count ** 2; patch += 1) {
      if (patches.subarray(patch * size, (patch + 1) * size).every((value) => value === 0)) continue;
      const without = patches.slice().fill(0, patch * size, (patch + 1) * size);
      const { labels } = model.read(without);
      const left = labels.find(({ label }) => label === own).probability;
      if (!best || left < best.left) best = { patch, left, without, first: labels[0] };
    }
    if (!best) break;
    erased.push(best.patch);
    patches = best.without;
    if (best.first.label !== own) return none(best.first.label, best.first.probability);
  }
  return none();
}

/** The patches and the vectors that enter the first block. */
export function entering(model, request) {
  const rows = drawn(model, request);
  if (!rows) return undefined;
  const patches = model.cut(rows);
  const { capture, labels } = model.read(patches);
  return { ...sizesOf(model, patches), first: 0, canvas: Math.min(model.spec.image_size, LARGEST_CANVAS), examples: Object.keys(model.pictures), label: labels[0].label, ...vectorsOf(capture, model.stacks.encoder) };
}

/** The vectors that enter the first block of a stack, and the parts of its blocks. */
export function vectorsOf(capture, stack) {
  const { shape: [count, width], values } = capture.get(`${stack.name}.embedding`);
  return {
    vectors: Array.from({ length: count }, (_, row) => Array.from(values.subarray(row * width, (row + 1) * width), (value) => rounded(value, 3))),
    width,
    layers: stack.blocks.length,
    parts: stack.blocks[0].filter(({ address }) => address !== "cross").map(({ part }) => PARTS[part.kind]),
  };
}
