// A second model beside the one of the page: what it makes of the same text, and where the two differ.

import { call, live } from "./api.js";
import { choice } from "./controls.js";
import { h, number, section } from "./dom.js";

/** A word as it is compared: without its punctuation, whatever its case. */
const bare = (word) => word.toLowerCase().replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "");

/** The words of a text; those that the other text has less often are marked. */
function against(text, other) {
  const left = new Map();
  for (const word of other.split(/\s+/).map(bare)) left.set(word, (left.get(word) ?? 0) + 1);
  return text.split(/(\s+)/).map((word) => {
    const key = bare(word);
    if (!key) return word;
    left.set(key, (left.get(key) ?? 0) - 1);
    return left.get(key) < 0 ? h("mark", { class: "new-word" }, word) : word;
  });
}

const scored = ({ score, pieces }) => `${number(score)}, a token ${number(score / Math.max(1, pieces.length), 3)}`;

/**
 * The control and the section of a second translator.
 * @param places all translators
 * @param state settings with `model`, `text`, `beam`, `penalty` and `beside`
 */
export function secondModel(state, places) {
  const host = h("div", {});
  const element = h("div", { hidden: true }, section("Two models side by side", h("p", { class: "note" }, "Words that the other translation does not have are marked."), host));
  const field = places.length > 1 ? choice(state, "beside", { label: "Another model beside it", options: [["", "none"], ...places.map((place) => place.name)] }) : null;
  const ask = live(host, async (signal) => {
    const { model, beside, text, beam, penalty } = state.values;
    element.hidden = !beside || text.trim() === "";
    if (element.hidden) return null;
    const asked = { text, beam, n_best: 1, length_penalty: penalty };
    return Promise.all([model, beside].map(async (name) => [name, await call("translate", "text", { model: name, ...asked }, signal)]));
  }, (found) => {
    if (!found) return;
    const best = found.map(([, { translations }]) => translations[0]);
    host.replaceChildren(h("div", { class: "columns pair" }, found.map(([name, { checks = [] }], i) => h("div", { "data-model": name }, h("h3", {}, name),
      h("p", { class: "text", dir: "auto" }, against(best[i].text, best[1 - i].text)),
      h("p", { class: "note" }, `log-probability ${scored(best[i])}${checks.length ? `; in doubt: ${checks.map((each) => each.name.replaceAll("_", " ")).join(", ")}` : ""}`)))));
  });
  return { field, element, ask };
}
