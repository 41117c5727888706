// A text's pass through a model, kept for the calls of a page about the same text.

import { Refusal } from "./refusal.js";
import { checkLength, read } from "./readings.js";

const LONGEST = 4000; // characters of a text
const MOST_TOKENS = 512; // along one side of a chart

const lastPass = new WeakMap();

/** The reading of a request's text, and all tensors of its pass: {reading, capture, states}. */
export function passOf(model, { text, second = "", given = "" }) {
  checkLength(text, LONGEST, "text");
  checkLength(second, LONGEST, "second");
  return kept(model, JSON.stringify(["read", text, second, given]), () => {
    const reading = read(model, { text, second, given });
    const length = Math.max(reading.encoder?.ids.length ?? 0, reading.decoder?.ids.length ?? 0);
    if (length > MOST_TOKENS) {
      throw new Refusal({ what: `${length} tokens are more than the ${MOST_TOKENS} that can be drawn`, where: "text", remedy: "Shorten it" });
    }
    return { reading, ...model.capture(reading) };
  });
}

/** The result of a function, made anew only where the key is another one than last time. */
export function kept(model, key, make) {
  // One pass: the calls of a page follow each other, and tensors of a long text are megabytes.
  if (lastPass.get(model)?.key !== key) lastPass.set(model, { key, value: make() });
  return lastPass.get(model).value;
}

/** The kinds of attention of a model, cross-attention last. */
export function partsOf(model) {
  return ["encoder", "decoder", "cross"].filter((part) => layersOf(model, part).length);
}

/** The attention of each layer, in their order: {address, number of the block, sublayer}. */
export function attentionLayers(model, part) {
  const layers = layersOf(model, part);
  if (!layers.length) {
    throw new Refusal({ what: `The model has no ${part} attention`, remedy: `It has: ${partsOf(model).join(", ") || "none at all"}` });
  }
  return layers;
}

function layersOf(model, part) {
  // Cross-attention belongs to the blocks of the decoder; the encoder only gives keys and values.
  const name = part === "cross" ? "decoder" : part;
  const over = part === "cross" ? "memory" : "input";
  return (model.stacks[name]?.places ?? [])
    .filter(({ sublayer }) => sublayer.part.kind === "attention" && sublayer.part.over === over)
    .map(({ number, sublayer }) => ({ address: `${name}.${number}.${sublayer.address}`, number, sublayer }));
}

/** The largest number of heads among layers. */
export const numHeads = (layers) => Math.max(0, ...layers.map(({ sublayer }) => sublayer.part.num_heads));

/** Names of the kinds of mixers in stacks, each once. */
export function mixersOf(stacks) {
  const kinds = stacks.flatMap((stack) => stack.places.filter(({ sublayer }) => sublayer.part.kind !== "feedforward").map(({ sublayer }) => sublayer.part.kind));
  return [...new Set(kinds)];
}

/** The tokens of the queries, and those of the keys. */
export function rowsAndColumns(reading, part) {
  // A query of cross-attention is named by the token that it predicts.
  return part === "cross" ? [reading.predicted, reading.encoder] : [reading[part], reading[part]];
}

/** An index that there is. */
export function choose(index, count, name) {
  if (!(index >= 0 && index < count)) {
    throw new Refusal({ what: `There is no ${name} with index ${index}`, remedy: `Indices go from 0 to ${count - 1}` });
  }
  return index;
}

/** The stack of a request, by default the first one: a text is read before it is written. */
export function stackOf(model, name) {
  const chosen = name || Object.keys(model.stacks)[0];
  if (!model.stacks[chosen]) {
    throw new Refusal({ what: `The model has no ${chosen}`, remedy: `Look at its ${Object.keys(model.stacks)[0]}` });
  }
  return model.stacks[chosen];
}
