// Label smoothing: the target that a model learns, and the loss by what it gives the right word.

import { choice, slider } from "./controls.js";
import { figure, h, number } from "./dom.js";
import { barChart, facts } from "./draw/bars.js";
import { lineChart } from "./draw/lines.js";

export const smoothingDefaults = { smoothing: 0.1, vocabulary: 8 };

const WORDS = 8; // of the vocabulary that are drawn; the first is the right one
const POINTS = 200;

/** Cross-entropy with the smoothed target, when the right word has probability p and the others share the rest. */
export function smoothedLoss(p, smoothing, vocabulary) {
  const target = 1 - smoothing + smoothing / vocabulary;
  const rest = (smoothing * (vocabulary - 1)) / vocabulary;
  return -target * Math.log(p) - (rest > 0 ? rest * Math.log((1 - p) / (vocabulary - 1)) : 0);
}

/** The section. */
export function labelSmoothing(state) {
  const target = figure("The target", "What the loss compares with, for the right word and seven others.");
  const loss = figure("Loss by the probability of the right word", "The other words share the rest evenly. Without smoothing the loss falls all the way to 1, and a model pushes its logits apart without end; with it the best answer is below 1.");
  const numbers = h("div", {});
  function draw() {
    const { smoothing, vocabulary } = state.values;
    const right = 1 - smoothing + smoothing / vocabulary;
    // A model that is certain would have infinite logits: shown is how far the right one is above.
    const apart = smoothing > 0 ? Math.log((right * (vocabulary - 1)) / (1 - right)) : null;
    numbers.replaceChildren(facts([["lowest loss at a probability of", number(right, 4), "smoothing-best"], ["loss there", number(smoothedLoss(Math.min(right, 1 - 1e-12), smoothing, vocabulary), 3), "smoothing-loss"],
      ["logit of the right word above the others", apart === null ? "without bound" : number(apart, 3), "smoothing-logit"]]));
    barChart(target.host, { values: Array.from({ length: WORDS }, (_, i) => (i ? smoothing / vocabulary : right)), most: 1, names: ["right", ..."234567".split(""), "8"], label: "word",
      describe: `The target: ${number(right)} for the right word, ${number(smoothing / vocabulary)} for each other one.` });
    const curve = (amount) => Array.from({ length: POINTS }, (_, i) => (i + 0.5) / POINTS).map((p) => [p, smoothedLoss(p, amount, vocabulary)]);
    lineChart(loss.host, { series: [{ name: "without smoothing", points: curve(0), colour: 1, dashed: true }, { name: `smoothing ${smoothing}`, points: curve(smoothing), colour: 0 }],
      x: { label: "probability of the right word" }, y: { label: "loss", zero: true }, describe: "The loss by the probability of the right word, without smoothing and with it." });
  }
  state.watch((_, changed) => {
    if (changed.includes("smoothing") || changed.includes("vocabulary")) draw();
  });
  draw();
  return h("div", {},
    h("p", {}, "The paper trains on targets that are not quite certain (ε = 0.1): perplexity gets worse, translations get better."),
    h("div", { class: "panel" }, slider(state, "smoothing", { label: "Smoothing ε", stops: [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3] }),
      choice(state, "vocabulary", { label: "Vocabulary", options: [[8, "8 words"], [100, "100 words"], [8000, "8,000 pieces"], [37000, "37,000 pieces"]] })),
    numbers, h("div", { class: "columns" }, target.element, loss.element));
}
