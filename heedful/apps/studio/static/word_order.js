// The same words in two orders: what self-attention gives them without positions, and with.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { h, number, section } from "./dom.js";
import { facts } from "./draw/facts.js";
import { largest, strip } from "./draw/strip.js";

export const orderDefaults = { words: "dog bites man", order: "reversed" };

/** The section. */
export function wordOrder(state) {
  const body = h("div", {});
  const ask = live(body, (signal) => call("positions", "shuffled", { text: state.values.words, order: state.values.order }, signal), (found) => {
    const { words, order } = found;
    const most = largest(...["without", "with"].flatMap((name) => [...found[name].first, ...found[name].second]));
    const row = (name, vectors, names) => h("tr", {}, h("th", { scope: "row" }, name),
      names.map((word, i) => h("td", { class: "words" }, h("span", { class: "word" }, word), h("br"), strip(vectors[i], most))));
    const tables = [["without", "Without positions"], ["with", "With positions"]].map(([name, title]) => h("figure", {}, h("h3", {}, title),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title },
        h("table", { class: "figures" }, h("tbody", {}, row("as typed", found[name].first, words), row("changed", found[name].second, order.map((i) => words[i]))))),
      h("figcaption", {}, name === "without" ? "Each word has the same strip in both rows: the layer cannot tell who bites whom." : "The strips of a word differ: now the order counts.")));
    body.replaceChildren(
      facts([["largest difference of a word, without positions", number(round(found.without.difference), 3), "order-without"], ["with positions", number(round(found.with.difference), 3), "order-with"]]),
      ...tables,
      h("p", { class: "note" }, "One head of self-attention with random weights, 24 channels of each word's output; what it shows holds for all weights."));
  });
  state.watch((_, changed) => {
    if (changed.includes("words") || changed.includes("order")) ask();
  });
  ask();
  return section("The same words in another order",
    h("div", { class: "panel" }, text(state, "words", { label: "Words", hint: "Two to eight." }),
      choice(state, "order", { label: "Second row", options: [["reversed", "backwards"], ["shuffled", "shuffled"]] })),
    body);
}

const round = (value) => (value < 1e-5 ? 0 : value); // float32's rounding is no difference
