// The same words in two orders: what self-attention gives them without positions, and with.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { figure, h, number, section, table } from "./dom.js";
import { largest, strip } from "./draw/strip.js";

export const orderDefaults = { words: "dog bites man", order: "reversed" };

const SAYS = {
  without: ["Without positions", "Each word has the same output in both orders: attention cannot tell them apart."],
  with: ["With positions (sinusoids added to the words)", "The outputs of a word differ: now the order counts."],
};

/** The section. */
export function wordOrder(state) {
  const body = h("div", { class: "order" });
  const ask = live(body, (signal) => call("positions", "shuffled", { text: state.values.words, order: state.values.order }, signal), (found) => {
    const { words, order } = found;
    const most = largest(...["without", "with"].flatMap((name) => [...found[name].first, ...found[name].second]));
    // A word's two outputs stand one above the other, wherever the word stands in the second order.
    const moved = ({ second }) => words.map((_, i) => second[order.indexOf(i)]);
    const gaps = (each) => each.first.map((vector, i) => vector.map((value, j) => value - moved(each)[i][j]));
    const widest = largest(...gaps(found.without), ...gaps(found.with));
    const strips = (vectors, scale = most) => vectors.map((each) => strip(each, scale));
    body.replaceChildren(...Object.entries(SAYS).map(([name, [title, effect]]) => {
      const picture = figure(title);
      picture.host.append(table(title, ["output of", ...words], [
        [words.join(" "), ...strips(found[name].first)], [order.map((i) => words[i]).join(" "), ...strips(moved(found[name]))],
        ["change", ...strips(gaps(found[name]), widest)]]));
      picture.words.append(`${effect} Largest change: `, h("span", { "data-fact": `order-${name}` }, number(round(found[name].difference), 3)), ".");
      return picture.element;
    }));
  });
  state.watch((_, changed) => {
    if (changed.includes("words") || changed.includes("order")) ask();
  });
  ask();
  return section("The same words in another order",
    h("div", { class: "row walk" }, text(state, "words", { label: "Words, two to eight" }),
      choice(state, "order", { label: "Second row", options: [["reversed", "backwards"], ["shuffled", "shuffled"]] })),
    body, h("p", { class: "note" }, "One head of self-attention with random weights; what it shows holds for all weights. Changes have a scale of colours of their own."));
}

const round = (value) => (value < 1e-5 ? 0 : value); // float32's rounding is no difference
