// One word in several sentences: its vector after each block, as points of a plane.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { figure, folded, foldedSection, h, number } from "./dom.js";
import { facts } from "./draw/facts.js";
import { scatterChart } from "./draw/scatter.js";
import { placesOf } from "./subject.js";

const KINDS = ["encoder", "translator", "causal_lm"]; // an encoder first: it sees both sides of the word
// The word stands at the same place in all of them, so that its embedding is the same.
const SENTENCES = [
  "He took the money to the bank.", "I opened an account at the bank.", "She got the loan from the bank.", "They closed the account at the bank.",
  "", // parts the groups, which have colours of their own
  "There are trees on the river bank.", "The boat came to the river bank.", "We sat down on the river bank.", "They walked along the river bank.",
];

export const contextDefaults = (studio) => ({
  cword: "bank", csentences: SENTENCES.join("\n"), cmodel: KINDS.flatMap((kind) => placesOf(studio, [kind]))[0]?.name ?? "", cdepth: -1,
});

const NARROW = 520; // pixels: less has no room for eight sentences

/** The words of a sentence that at most one other has. */
function ownWords(sentences, i) {
  const [words, others] = [sentences[i].split(" "), sentences.map((each) => new Set(each.split(" ")))];
  return words.filter((word) => others.filter((each) => each.has(word)).length <= 2).join(" ") || sentences[i];
}

/** The number of each sentence's group: a blank line parts them. */
const groupsOf = (lines) => lines.trim().split(/\n\s*\n/).flatMap((group, i) => group.split("\n").filter((line) => line.trim()).map(() => i));

/** The section, which asks when it is opened; its settings begin with c, so that they stand beside those of its page. */
export function contexts(state, studio) {
  const fold = foldedSection("One word in several sentences: attention brings in its neighbours", () => opened(state, studio));
  fold.open = state.differs(["cword", "csentences", "cmodel", "cdepth"]);
  return fold;
}

function opened(state, studio) {
  const models = placesOf(studio, KINDS);
  const picture = figure("Vectors of the word, one for each sentence",
    "Along the two directions in which they differ most. Before the first block the word has one vector in all sentences; attention brings in its neighbours, and may part the two senses.");
  const depth = choice(state, "cdepth", { label: "Vectors", options: [[-1, "after the last block"]] });
  const numbers = h("div", {});
  const body = h("div", {}, numbers, picture.element);
  let shown = null;
  function draw() {
    if (!shown) return;
    const last = shown.depths.length - 1;
    const at = state.values.cdepth < 0 ? last : Math.min(state.values.cdepth, last);
    const { points, cosines } = shown.depths[at];
    const mean = (rows) => rows.reduce((sum, row) => sum + row, 0) / rows.length;
    const groups = groupsOf(state.values.csentences);
    const pairs = (wanted) => cosines.flatMap((row, i) => row.filter((_, j) => j > i && wanted(groups[i] === groups[j])));
    const cosine = (words, values, name) => [`cosine of ${words}`, values.length ? number(mean(values), 3) : "–", name];
    numbers.replaceChildren(facts([...new Set(groups).size > 1 ? [cosine("two of one colour", pairs((same) => same), "context-same"), cosine("two of different colours", pairs((same) => !same), "context-other")]
      : [cosine("two of them, mean", pairs(() => true), "context-cosine")], ["after block", `${at} of ${last}`, "context-depth"]]));
    const narrow = picture.host.clientWidth < NARROW;
    scatterChart(picture.host, {
      points: points.map(([x, y], i) => ({ group: groups[i], ...(narrow ? { short: [ownWords(shown.sentences, i)] } : {}), name: shown.sentences[i].length > 48 ? `${shown.sentences[i].slice(0, 47)}…` : shown.sentences[i], x, y })),
      x: { label: "first direction" }, y: { label: "second direction" },
      describe: `Vectors of the word “${state.values.cword}” in ${points.length} sentences, after block ${at} of ${last}.`,
    });
  }
  const ask = live(body, (signal) => {
    const { cmodel, cword, csentences } = state.values;
    return call("block", "contexts", { model: cmodel, word: cword, text: csentences }, signal);
  }, (found) => {
    shown = found;
    depth.fill([[-1, "after the last block"], [0, "of the embedding"], ...found.depths.slice(2).map((_, i) => [i + 1, `after block ${i + 1}`])]);
    draw();
  });
  state.watch((_, changed) => {
    if (changed.some((name) => ["cmodel", "cword", "csentences"].includes(name))) ask();
    else if (changed.includes("cdepth")) draw();
  });
  ask();
  return h("div", {}, body, folded("Choose the word, its sentences and the block", h("div", { class: "panel" },
    models.length > 1 ? choice(state, "cmodel", { label: "Model for this picture", options: models.map((place) => place.name) }) : null,
    text(state, "cword", { label: "Word" }), depth,
    text(state, "csentences", { label: "Sentences with it", rows: 9, hint: "3 to 16, a line each. A blank line begins a group with a colour of its own." }))));
}
