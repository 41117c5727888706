// Samples of every kind enter the same block: the tokens that a model has read, its blocks, and what comes out.

import { h, number, percent, s } from "./dom.js";

const [READ, LETTERS] = [5, 30]; // tokens in sight, and their letters
const ROW = 7; // cards of models at most in one row
const HIGH = 22; // of the lines from the models to the block

const MARGIN = 2; // letters that the frame of a token takes
const lettersOf = (pieces) => pieces.reduce((sum, piece) => sum + (piece.textContent ?? piece).length + MARGIN, 0);

/**
 * The picture below the cards of models.
 * @param count of models, side by side
 */
export function sameBlock(count) {
  const ways = Array.from({ length: count }, (_, i) => s("path", { d: `M${2 * i + 1} 0C${2 * i + 1} ${HIGH * 0.7} ${count} ${HIGH * 0.3} ${count} ${HIGH}` }));
  const lines = s("svg", { class: "same-ways", height: HIGH, viewBox: `0 0 ${2 * count} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" }, ways);
  const input = h("div", { class: "same-read" });
  const work = h("span", {});
  const output = h("div", { class: "same-made" });
  const element = h("div", { class: "same-block" }, count > ROW ? "" : lines, input, h("div", { class: "same-core" }, h("strong", {}, "The same block"), work), output);
  return {
    element,
    /** Mark the way of the chosen model. */
    choose(index) {
      ways.forEach((each, i) => each.classList.toggle("chosen", i === index));
    },
    /**
     * Show what goes in and out.
     * @param sample {pieces: what stands at the tokens that go in, tokens: how many there are, layers, answer: {title, label, probability} or null}
     */
    show({ pieces, tokens, layers, answer }) {
      const all = pieces.slice(-READ);
      while (all.length > 1 && lettersOf(all) > LETTERS) all.shift();
      input.replaceChildren(h("span", {}, pieces.length > all.length ? "… " : "", all.map((piece) => h("span", { class: "token" }, piece))), h("small", {}, `${number(tokens)} tokens become vectors`));
      work.textContent = `${layers} times: attention mixes the tokens, a network works on each`;
      output.replaceChildren(...(answer ? [h("small", {}, answer.title), h("span", {}, h("strong", {}, answer.label), ` ${percent(answer.probability, 3)}`)] : []));
    },
  };
}
