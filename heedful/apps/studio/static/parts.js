// The parts of a Transformer in the order in which the paper introduces them, and their words.

/** What each toggle leaves out: its state, the recorded run, and what then happens. */
export const TOGGLES = {
  residual: {
    label: "Residual connections", variant: "residual", has: (v) => v.residual, set: (on) => ({ residual: on }),
    lost: "Without residual connections each sub-layer replaces the vectors instead of adding to them. What a word was is soon forgotten, and gradients hardly reach the lower layers.",
  },
  norm: {
    label: "Norms", variant: "norm", has: (v) => v.norm_placement !== "none", set: (on) => ({ norm_placement: on ? "post" : "none" }),
    lost: "Without norms nothing keeps the vectors at one size. A model of few layers can bear that; in a deep one, training becomes unstable.",
  },
  positions: {
    label: "Positions", variant: "positions", has: (v) => v.positions !== "none", set: (on) => ({ positions: on ? "sinusoidal" : "none" }),
    lost: "Without positions the encoder sees a bag of words: “I love cats” and “cats love I” are the same to it.",
  },
  feedforward: {
    label: "Feed-forward network", variant: "feedforward", has: (v) => v.network, set: (on) => ({ network: on }),
    lost: "Without the feed-forward network words are only mixed, never changed one by one. Two thirds of an encoder block's parameters are gone.",
  },
  scale: {
    label: "Scaling by 1/√dₖ", variant: "scale", has: (v) => v.scale, set: (on) => ({ scale: on }),
    lost: "Without 1/√dₖ the scores grow with the width of a head. The softmax then gives nearly all weight to one key, and its gradient becomes too small to learn from.",
  },
  heads: {
    label: "Several heads", variant: "heads", has: (v) => v.num_heads > 1, set: (on) => ({ num_heads: on ? 8 : 1 }),
    lost: "With a single head every word has one set of weights: it cannot look at two places for two reasons.",
  },
};

export const leftOut = (values) => (values.family === "blocks" ? Object.keys(TOGGLES).filter((name) => !TOGGLES[name].has(values)) : []);

/** What a layer may be made of. */
export const FAMILIES = [["blocks", "blocks: a mixer of tokens and a network"], ["recurrent", "recurrent layers (before 2017)"], ["convolution", "gated convolutions (2017)"]];

/** How tokens of a block exchange information: labels by name, which the server tells. */
const labels = { recurrent: "Recurrent layer", convolution: "Gated convolution" };

/** Choices of a mixer, from the server's list. */
export function mixerChoices(mixers) {
  for (const { name, label } of mixers) labels[name] = label;
  return mixers.map(({ name, label, writes }) => [name, writes ? label : `${label} (encoders)`]);
}

/** The label of a mixer inside a sentence. */
export const mixerInText = (name) => labels[name].replace(/^[A-Z](?=[a-z]+ )/, (letter) => letter.toLowerCase());

export const FEATURES = [["elu", "elu(x) + 1"], ["cosine", "cosines of positions (cosFormer)"], ["random", "random features (Performer)"]];

/** The mixer of a stack, by the name of its setting. */
export const mixerOf = (values, decoder) => (values.family === "blocks" ? (decoder ? values.mixer : values.encoder_mixer) : values.family);

/** The positions of a model: recurrent layers need none, as they read word after word. */
export const positionsOf = ({ family, positions }) => (family === "recurrent" ? "none" : positions);

/** Whether a model is a Transformer: no part of its blocks is another one. */
export const isTransformer = (values) => [false, true].every((decoder) => mixerOf(values, decoder) === "attention") && !values.channel_mix;

/** The name of a mixer, as a title. */
export function mixerTitle(values, decoder) {
  const mixer = mixerOf(values, decoder);
  if (mixer === "recurrent") return `${values.cell.toUpperCase()} layer`;
  if (mixer === "linear_attention" && values.features !== "elu") return values.features === "cosine" ? "cosFormer" : "Performer";
  return labels[mixer];
}

const DONE = "Nothing is missing: the model is complete.";

/** The steps of building: what one adds, what it does, and what is wrong while it is missing. */
const ALL = {
  embedding: { name: "Embedding", adds: ["embedding"], does: "Each piece of the sentence becomes a vector, looked up in a table.",
    until: "The sentence is text. A network needs vectors." },
  positions: { name: "Positions", adds: ["positions"], does: "A vector for each place is added, so that order counts.",
    until: "“I love cats” and “cats love I” are still the same set of vectors." },
  attention: { name: "Self-attention", adds: ["self"], does: "Every word looks at every other one and takes a weighted mix of their values.",
    until: "Each word is alone: “bank” cannot know of the river beside it." },
  first_sum: { name: "Residual + norm", adds: ["self_sum"], does: "What attention found is added to what was there, and the sum is brought to one size.",
    until: "With attention alone a word forgets itself." },
  network: { name: "Feed-forward", adds: ["ff"], does: "Every vector alone goes through two linear layers with an activation between.",
    until: "Vectors are mixed, but nothing is computed from a mix." },
  second_sum: { name: "Residual + norm", adds: ["ff_sum"], does: "The second sum and norm complete the block.",
    until: "The network's output replaces what attention gathered." },
  repeat: { name: "Repeat", adds: ["repeat"], does: "More blocks of the same kind, each with its own weights, build on what the one before found.",
    until: "One block sees pairs of words. Relations between relations need more of them." },
  written: { name: "Decoder: embedding", adds: ["d_embedding", "d_positions"], does: "What was written so far becomes vectors too, with their positions.",
    until: "The sentence is understood, but nothing writes." },
  masked: { name: "Masked self-attention", adds: ["d_self", "d_self_sum"], does: "Each written word looks at itself and those before it. The mask hides what comes later.",
    until: "The words of the translation do not know each other." },
  cross: { name: "Cross-attention", adds: ["cross", "cross_sum"], does: "Queries of the decoder look at keys and values of the encoder's output: here the two languages meet.",
    until: "The decoder writes without having read the source." },
  d_network: { name: "Feed-forward", adds: ["d_ff", "d_ff_sum"], does: "As in the encoder: each vector alone.",
    until: "The decoder gathers, but does not compute." },
  d_repeat: { name: "Repeat", adds: ["d_repeat"], does: "More decoder blocks, all of which read the same encoder output.",
    until: "One decoder block has to do everything at once." },
  output: { name: "Output projection", adds: ["output"], does: "The last vector is compared with every piece of the vocabulary: a logit for each.",
    until: "There is a vector at the end, and no word." },
  softmax: { name: "Softmax", adds: ["softmax"], does: "Logits become probabilities. A model that writes takes the likeliest piece and runs again for the next one.",
    until: "Logits are no probabilities yet." },
};

const ENCODER = ["embedding", "positions", "attention", "first_sum", "network", "second_sum", "repeat"];
const ORDER = {
  translation: [...ENCODER, "written", "masked", "cross", "d_network", "d_repeat", "output", "softmax"],
  causal_lm: [...ENCODER, "output", "softmax"],
  masked_lm: [...ENCODER, "output", "softmax"],
};

/** The steps that a family of layers has none of. */
const LACKS = {
  blocks: [], recurrent: ["positions", "first_sum", "network", "second_sum", "d_network"], convolution: ["network", "second_sum", "d_network"],
};

const READS = {
  state: "Every word meets what was remembered of the words before it, changes it, and passes it on.",
  all: "Every word meets all others, not pair by pair but through sums over the text, which cost less.",
  near: "Every output is made of a few neighbouring words, behind a gate.",
};

/** The step in which words exchange information, by other means than attention. */
function mixing(values, decoder) {
  const mixer = mixerOf(values, decoder);
  if (mixer === "attention") return decoder ? { name: ALL.masked.name, does: ALL.masked.does } : {};
  const bothWays = !decoder && (mixer === "linear_attention" || mixer === "linformer");
  return { name: mixerTitle(values, decoder), does: READS[mixer === "convolution" ? "near" : bothWays ? "all" : "state"] };
}

const CROSSING = {
  none: { name: "One vector", does: "All that the decoder knows of the text is the encoder's last state: a vector of fixed length." },
  additive: { name: "Additive attention", does: "The decoder's state is compared with every state of the encoder by a small network (Bahdanau 2015)." },
  general: { name: "Multiplicative attention", does: "The decoder's state is multiplied with every state of the encoder (Luong 2015)." },
};

/** The steps for a model. */
export function steps(values) {
  const { task, family } = values;
  return ORDER[task].filter((key) => !LACKS[family].includes(key)).map((key) => {
    const own = { key, ...ALL[key] };
    if (key === "attention") Object.assign(own, mixing(values, task === "causal_lm"));
    if (key === "masked") Object.assign(own, mixing(values, true));
    if (values.channel_mix && key === (task === "causal_lm" ? "network" : "d_network")) Object.assign(own, { name: "Channel mix", does: "Each vector, together with the one before it, goes through a squared ReLU behind a gate." });
    if (key === "first_sum" && family === "convolution") Object.assign(own, { name: "Residual", does: "The output is added to what was there, and the sum is scaled so that it does not grow." });
    if (key === "cross" && family === "recurrent") Object.assign(own, CROSSING[values.attends]);
    return own;
  });
}

/** What stands there after some steps: what the last one does, and what is missing. */
export function told(values, count) {
  const all = steps(values);
  const last = all[count - 1];
  const next = all[count];
  return {
    title: last ? last.name : "A sentence",
    does: last ? last.does : "Text goes in. Click the marked part to add it, and so on up to the next word.",
    missing: next ? next.until : DONE,
  };
}

/** The names of all boxes that are there after some steps. */
export const present = (values, count) => new Set(steps(values).slice(0, count).flatMap((each) => each.adds));

/** The part that comes next: its name and the boxes that it adds; null at the end. */
export function upcoming(values, count) {
  const next = steps(values)[count];
  return next ? { name: next.name, adds: next.adds } : null;
}
