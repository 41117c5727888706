// The same words in two orders, and later in a text: what self-attention gives them without positions, and with.

import { call, live } from "./api.js";
import { choice, panel, text } from "./controls.js";
import { figure, folded, h, number, table } from "./dom.js";
import { largest, strip } from "./draw/strip.js";

export const orderDefaults = { words: "dog bites man", order: "reversed" };

const WITH = {
  sinusoidal: "with sinusoids", learned: "with learned", rotary: "with rotation", alibi: "with ALiBi", t5: "with T5", relative: "with Shaw's",
};
const SAYS = {
  with: ["With positions the order counts.", "ALiBi says how far two words are apart, and not which comes first."],
  later: ["The same words later in the text change too: each place has a vector of its own.", "The same words later in the text do not change: only distances count."],
};

/** The picture, and in a fold the controls and what it is made of. */
export function wordOrder(state) {
  const title = h("h2", {});
  const body = h("div", { class: "order" });
  const controls = panel(text(state, "words", { label: "Words, two to eight" }), choice(state, "order", { label: "Second row", options: [["reversed", "backwards"], ["shuffled", "shuffled"]] }));
  const outputs = h("div", { class: "order" });
  const ask = live(body, (signal) => call("positions", "shuffled", { text: state.values.words, order: state.values.order, scheme: state.values.scheme }, signal), (found) => {
    const { words, order } = found;
    const same = words.map((_, i) => i);
    // A word's two outputs stand one above the other, wherever the word stands in the second order.
    const second = (name) => (name === "later" ? same : order.map((_, i) => order.indexOf(i))).map((place) => found[name].second[place]);
    const gaps = (name) => found[name].first.map((vector, i) => vector.map((value, j) => value - second(name)[i][j]));
    const names = ["without", ...Object.keys(SAYS)];
    const most = largest(...names.flatMap((name) => [...found[name].first, ...found[name].second]));
    const widest = largest(...names.flatMap(gaps));
    const strips = (vectors, scale = most) => vectors.map((each) => strip(each, scale));
    const [first, other] = [words.join(" "), order.map((i) => words[i]).join(" ")];
    const later = `${first}, ${found.later_by} places later`;
    title.textContent = `“${first}” or “${other}”? Without positions attention cannot tell`;
    const summary = figure("How the output of each word changes from one to the other");
    summary.host.append(table("Change of each word's output", ["", ...words, "largest change of a number"],
      [["without", "no positions"], ["with", WITH[state.values.scheme]], ["later", `${found.later_by} later`]].map(([name, title]) => [title,
        ...gaps(name).map((gap) => (round(largest(gap)) ? strip(gap, widest) : "the same")), h("span", { "data-fact": `order-${name}` }, number(round(found[name].difference), 3))])));
    summary.words.append(Object.keys(SAYS).map((name) => SAYS[name][round(found[name].difference) ? 0 : 1]).join(" "));
    const rowsOf = (caption, name, ...rows) => table(caption, ["output of", ...words], [[first, ...strips(found[name].first)], ...rows.map(([said, which]) => [said, ...strips(second(which))])]);
    outputs.replaceChildren(rowsOf("Without positions", "without", [other, "without"]), rowsOf(WITH[state.values.scheme], "with", [other, "with"], [later, "later"]),
      h("p", { class: "note" }, "One head of self-attention with random weights; what it shows holds for all weights."));
    body.replaceChildren(summary.element);
  });
  state.watch((_, changed) => {
    if (["words", "order", "scheme"].some((name) => changed.includes(name))) ask();
  });
  ask();
  const fold = folded("Other words, and the outputs themselves", controls, outputs);
  fold.open = state.differs(Object.keys(orderDefaults));
  return h("section", { class: "told-first" }, title, body, fold);
}

const round = (value) => (value < 1e-5 ? 0 : value); // float32's rounding is no difference
