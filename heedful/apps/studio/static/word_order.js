// The same words in two orders, and farther back in a text: what self-attention gives them without positions, and with.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { figure, folded, h, number, table } from "./dom.js";
import { largest, strip } from "./draw/strip.js";

export const orderDefaults = { words: "dog bites man", order: "reversed" };

const WITH = {
  sinusoidal: "with sinusoids", learned: "with learned", rotary: "with rotation", alibi: "with ALiBi", t5: "with T5", relative: "with Shaw's",
};
const SAYS = {
  without: ["", "Without positions the order is lost."],
  with: ["With them it counts.", "ALiBi says how far two words are apart, and not which comes first."],
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
    const [first, other] = [words.join(" "), order.map((i) => words[i]).join(" ")];
    const later = `${first}, ${found.later_by} places later`;
    const summary = figure(`“${first}” → “${other}”: change of each output`);
    summary.host.append(table("Change of each word's output", ["", ...words, "most"],
      [["without", "no positions"], ["with", WITH[state.values.scheme]], ["later", `${found.later_by} later`]].map(([name, title]) => [title,
        ...gaps(name).map((gap) => (round(largest(gap)) ? strip(gap, widest) : "none")), h("span", { "data-fact": `order-${name}` }, number(round(found[name].difference), 3))])));
    summary.words.append(names.map((name) => SAYS[name][round(found[name].difference) ? 0 : 1]).join(" "));
    const outputs = (title, name, ...rows) => table(title, ["output of", ...words], [[first, ...strips(found[name].first)], ...rows.map(([said, which]) => [said, ...strips(second(which))])]);
    const fold = folded("The outputs themselves", outputs("Without positions", "without", [other, "without"]), outputs(WITH[state.values.scheme], "with", [other, "with"], [later, "later"]),
      h("p", { class: "note" }, "One head of self-attention with random weights; what it shows holds for all weights."));
    fold.open = body.querySelector("details")?.open ?? false;
    body.replaceChildren(summary.element, fold);
  });
  state.watch((_, changed) => {
    if (["words", "order", "scheme"].some((name) => changed.includes(name))) ask();
  });
  ask();
  return { body: h("section", {}, body),
    controls: [text(state, "words", { label: "Words, two to eight" }), choice(state, "order", { label: "Second row", options: [["reversed", "backwards"], ["shuffled", "shuffled"]] })] };
}

const round = (value) => (value < 1e-5 ? 0 : value); // float32's rounding is no difference
