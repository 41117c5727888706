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

export const leftOut = (values) => Object.keys(TOGGLES).filter((name) => !TOGGLES[name].has(values));

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
    until: "Attention replaces each vector by a mix of others, so a word forgets what it was." },
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

/** The steps for a kind of model; the one of a language model has masked attention. */
export const steps = (task) => ORDER[task].map((key) => ({ key, ...ALL[key],
  ...(key === "attention" && task === "causal_lm" ? { name: "Masked self-attention", does: ALL.masked.does } : {}) }));

/** What stands there after some steps: what the last one does, and what is missing. */
export function told(task, count) {
  const all = steps(task);
  const last = all[count - 1];
  const next = all[count];
  return {
    title: last ? last.name : "A sentence",
    does: last ? last.does : "Text goes in. Everything else you add part by part.",
    missing: next ? `Missing next: ${next.name.toLowerCase()}. ${next.until}` : DONE,
  };
}

/** The names of all boxes that are there after some steps. */
export const present = (task, count) => new Set(steps(task).slice(0, count).flatMap((each) => each.adds));

/** The part that comes next, and whether it stands in the decoder of a translator; null at the end. */
export function upcoming(task, count) {
  const next = steps(task)[count];
  return next ? { name: next.name, decoder: task === "translation" && count >= ENCODER.length } : null;
}
