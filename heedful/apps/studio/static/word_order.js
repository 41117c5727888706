// The same words in two orders, and farther back in a text: what self-attention gives them without positions, and with.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { figure, h, number, table } from "./dom.js";
import { largest, strip } from "./draw/strip.js";

export const orderDefaults = { words: "dog bites man", order: "reversed" };

const HOW = {
  sinusoidal: "With sinusoids added to the words", learned: "With a learned vector added for each position", rotary: "With queries and keys rotated by their positions",
  alibi: "With ALiBi: the farther, the lower the score", t5: "With a learned number for each distance", relative: "With a learned vector for each distance",
};
const SAYS = {
  without: ["", "Each word has the same output in both: attention cannot tell the orders apart."],
  with: ["A word's output depends on where the others stand.", "The scheme says how far two words are apart, and not which comes first."],
  later: ["The same words later in the text change too: each place has a vector of its own.", "The same words later in the text do not change: only distances count."],
};

/** The pictures, and the controls that stand beside them. */
export function wordOrder(state) {
  const body = h("div", { class: "order" });
  const ask = live(body, (signal) => call("positions", "shuffled", { text: state.values.words, order: state.values.order, scheme: state.values.scheme }, signal), (found) => {
    const { words, order } = found;
    const same = words.map((_, i) => i);
    // A word's two outputs stand one above the other, wherever the word stands in the second order.
    const second = (name) => (name === "later" ? same : order.map((_, i) => order.indexOf(i))).map((place) => found[name].second[place]);
    const gaps = (name) => found[name].first.map((vector, i) => vector.map((value, j) => value - second(name)[i][j]));
    const names = Object.keys(SAYS);
    const most = largest(...names.flatMap((name) => [...found[name].first, ...found[name].second]));
    const widest = largest(...names.flatMap(gaps));
    const strips = (vectors, scale = most) => vectors.map((each) => strip(each, scale));
    const both = (name, title) => [[title, ...strips(second(name))], ["change", ...gaps(name).map((gap) => (round(largest(gap)) ? strip(gap, widest) : "none"))]];
    const said = (name) => {
      const change = round(found[name].difference);
      return [`${SAYS[name][change ? 0 : 1]} Largest change: `, h("span", { "data-fact": `order-${name}` }, number(change, 3)), ". "];
    };
    const [first, other] = [words.join(" "), order.map((i) => words[i]).join(" ")];
    const drawn = (title, name, rows, ...told) => {
      const picture = figure(title);
      picture.host.append(table(title, ["output of", ...words], [[first, ...strips(found[name].first)], ...rows]));
      picture.words.append(...told.flat());
      return picture.element;
    };
    body.replaceChildren(
      drawn(`Without positions: “${first}” is the same as “${other}”`, "without", both("without", other), said("without")),
      drawn(`${HOW[state.values.scheme]}: ${round(found.with.difference) ? "the order counts" : "still the same"}`, "with", [...both("with", other), ...both("later", `${first}, ${found.later_by} places later`)], said("with"), said("later")));
  });
  state.watch((_, changed) => {
    if (["words", "order", "scheme"].some((name) => changed.includes(name))) ask();
  });
  ask();
  return { body: h("section", {}, body, h("p", { class: "note" }, "One head of self-attention with random weights; what it shows holds for all weights.")),
    controls: [text(state, "words", { label: "Words, two to eight" }), choice(state, "order", { label: "Second row", options: [["reversed", "backwards"], ["shuffled", "shuffled"]] })] };
}

const round = (value) => (value < 1e-5 ? 0 : value); // float32's rounding is no difference
