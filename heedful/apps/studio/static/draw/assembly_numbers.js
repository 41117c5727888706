// What a small translator of the drawn parts computes for the drawn sentence: vectors of each word, weights, the next word.

import { call } from "../api.js";
import { s } from "../dom.js";
import { css, diverging } from "./colours.js";
import { largest } from "./strip.js";

export const SENTENCE = ["I", "love", "cats"];
export const WRITTEN = ["⟨s⟩", "Ich", "liebe"];
const FINDS = 1; // of the decoder's blocks the one in which each word looks at the word of the source that comes next
const CHANNELS = 12; // of a vector: more would be too narrow to tell apart
/** The tensor that leaves a part, by the part's name. */
const AFTER = { self: "self.output", self_sum: "self.sum", cross: "cross.output", cross_sum: "cross.sum", ff: "feedforward.output", ff_sum: "feedforward.sum" };

/** Ask a model: {vectors: of three words after each part, weights: of the parts in which words meet, words: [{label, probability}]}. */
export async function passOf(model, signal) {
  const text = `${SENTENCE.join(" ")}.`;
  const flow = (stack, layer) => call("block", "flow", { model, text, stack, layer }, signal);
  const [walk, encoder, begun, decoder, next] = await Promise.all([call("tour", "walk", { model, text }, signal), flow("encoder", 0), flow("decoder", 0), flow("decoder", FINDS),
    call("translate", "alternatives", { model, line: text, before: WRITTEN.slice(1).join(" "), count: 3 }, signal)]);
  const three = (rows) => rows.slice(0, SENTENCE.length).map((row) => row.slice(0, CHANNELS));
  const found = { vectors: { embedding: three(walk.tokens) }, weights: {}, words: next.alternatives.map(({ word, probability }) => ({ label: word.replace(/\.$/, ""), probability })) };
  const channels = ({ parts }, key) => parts.find((each) => each.key === key)?.channels;
  for (const [prefix, block, first] of [["", encoder, encoder], ["d_", decoder, begun]]) {
    const rows = (key) => channels(block, key);
    const keep = (name, key) => rows(key) && Object.assign(found.vectors, { [name]: three(rows(key)) });
    found.vectors[`${prefix}positions`] = three(channels(first, "input"));
    for (const [name, key] of Object.entries(AFTER)) keep(name.startsWith("cross") ? name : `${prefix}${name}`, key);
    for (const [name, key] of [[`${prefix}self`, "self.weights"], ["cross", "cross.weights"]]) if (rows(key)) found.weights[name] = rows(key);
  }
  return found;
}

/** The vectors of the words as strips on their lanes: blue above zero, ochre below. */
export function strips(vectors, lanes, { y, width, height, key }) {
  const most = largest(...vectors);
  return s("g", { class: "asm-strip", "data-strip": key }, vectors.map((values, i) => {
    const cell = width / values.length;
    return values.map((value, j) => s("rect", { x: (lanes[i] - width / 2 + j * cell).toFixed(2), y, width: cell + 0.2, height, fill: css(diverging(value / most)) }));
  }).flat(), s("title", {}, `The first ${CHANNELS} numbers of each word's vector here`));
}
