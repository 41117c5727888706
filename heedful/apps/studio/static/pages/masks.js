import { call, live } from "../api.js";
import { button, panel, slider, text } from "../controls.js";
import { figure, folded, h, number } from "../dom.js";
import { facts } from "../draw/facts.js";
import { heatMap } from "../draw/heat.js";
import { renewWords } from "../words.js";

const ROW = 7; // the word that is followed: "it"

export const defaults = () => ({
  mask: "causal", length: 16, padding: 0, segments: 1, bias: "none", heads: 8, head: 1, max_distance: 16, row: ROW,
});

const EXAMPLES = [
  ["causal", "Only words before: a decoder"],
  ["everything", "All words: an encoder"],
  ["window(3)", "Near words on both sides"],
  ["causal & window(4)", "Only the last four words"],
  ["causal | prefix(5)", "A beginning that all see"],
];
const MORE = [
  ["window(3) | prefix(2)", "Near words and the first two"],
  ["causal & segment", "Several texts in one row"],
  ["causal & strided(4)", "Near words and every fourth (strided)"],
  ["causal & fixed(4, 1)", "Blocks of four and their last words (fixed)"],
  ["dilated(3, 2)", "Every second word nearby (dilated)"],
  ["window(2) | global(1)", "Near words and one for all (global)"],
  ["window(2) | global(1) | random(2, 1, 16, 1)", "The same with random pairs"],
  ["window_2d(4, 2, 2)", "Near patches of a picture, 4 in a row"],
];
const BIASES = [
  ["none", "None"],
  ["alibi", "ALiBi: far words count less"],
  ["t5", "T5: a number for each distance"],
  ["relative_keys", "Relative keys (Shaw)"],
];
const SHARES = [0, 0.1, 0.25, 0.5, 1];
const WHY = "In training the whole text is there at once: without the mask a word could copy the next one, which it is to predict.";
const PACKED = "causal & segment";
const SENTENCE = "The cat sat on the mat because it was tired and the sun was so warm".split(" ");

export async function mount({ root, side, state }) {
  const known = call("masks", "words");
  const words = folded("All words of masks", () => {
    const list = h("ul", { class: "note" });
    known.then((found) => list.append(...found.words.map(({ name, settings, about }) =>
      h("li", {}, h("code", {}, settings.length ? `${name}(${settings.join(", ")})` : name), ` ${about}`))));
    return list;
  });
  const group = (label, all, setting, also = () => ({})) => h("div", { class: "field examples", role: "group", "aria-label": label }, h("span", { class: "label" }, label), all.map(([value, name]) => {
    const made = button(name, () => state.set({ [setting]: value, ...also(value) }, { step: true }), { quiet: true });
    made.dataset[setting] = value;
    return made;
  }));
  const packed = (mask) => ({ segments: mask === PACKED ? 3 : 1 });
  const biasControls = [
    slider(state, "head", { label: "Head", min: 1, max: state.values.heads }),
    slider(state, "max_distance", { label: "Distance where the last bucket begins", min: 1, max: 64 }),
  ];
  const pictures = h("div", {});
  const others = folded("More masks",
    group("Masks of long texts", MORE, "mask", packed),
    text(state, "mask", { label: "Mask: combine with & and |", code: true }),
    words,
    slider(state, "padding", { label: "Padding at the end", min: 0, max: 16 }),
    slider(state, "segments", { label: "Texts packed into the row", min: 1, max: 8 }));
  side.append(
    panel(
      group("Who may look at whom", EXAMPLES, "mask", packed),
      group("Bias: what distance adds to a score", BIASES, "bias"),
      ...biasControls,
      slider(state, "length", { label: "Tokens", min: 2, max: 64 }),
      others));
  root.append(pictures);
  const show = drawn(pictures, state);
  const ask = live(root, (signal) => {
    const { row, ...asked } = state.values;
    return call("masks", "draw", asked, signal);
  }, show);
  const arrange = ({ mask, bias }) => {
    for (const each of side.querySelectorAll("[data-mask], [data-bias]")) each.setAttribute("aria-pressed", String(each.dataset.mask === mask || each.dataset.bias === bias));
    others.open ||= !EXAMPLES.some(([own]) => own === mask);
    biasControls[0].hidden = bias === "none";
    biasControls[1].hidden = bias !== "t5" && bias !== "relative_keys";
  };
  state.watch((values, changed) => {
    arrange(values);
    if (changed.every((name) => name === "row")) show();
    else ask();
  });
  arrange(state.values);
  ask();
  await known;
}

/** A row as the sentence that its word sees: what is hidden is struck out, what has more attention is darker. */
function sentenceOf(host, { found, names, word, choose }) {
  const words = h("div", { class: "weighed" });
  const told = h("p", { class: "note", "data-fact": "row" });
  renewWords(words, { pieces: names.map(String), chosen: word, choose, label: "The word that looks" });
  const weights = found.weights[word];
  const most = Math.max(...weights);
  [...words.querySelectorAll("button")].forEach((button, i) => {
    const seen = found.visible[word][i];
    button.classList.toggle("unseen-word", !seen);
    button.style.setProperty("--weight", seen ? weights[i] / most : 0);
    button.title = seen ? `${number(100 * weights[i], 3)} % of the attention` : "hidden by the mask";
  });
  const seen = weights.filter((_, i) => found.visible[word][i]);
  const best = seen.every((weight) => Math.abs(weight - most) < 1e-4) ? `each gets ${number(100 * most, 3)} % of its attention` : `most of its attention is on “${names[weights.indexOf(most)]}”, ${number(100 * most, 3)} %`;
  told.textContent = seen.length ? `“${names[word]}” may look at ${seen.length} of ${names.length} words: ${best}. Click any word.` : `“${names[word]}” sees nothing.`;
  host.replaceChildren(words, told);
}

/** What is added to the scores: nothing or −∞ by the mask, and the bias. */
function addedPicture({ host, words, element }, { found, hidden, sides, names, state }) {
  const { bias, head } = state.values;
  element.querySelector("h3").textContent = found.added ? "Mask and bias" : "Who sees whom";
  if (!found.added) {
    words.textContent = "Filled: the row’s word sees the column’s. Hatched: hidden by the mask.";
    heatMap(host, {
      values: found.visible, kind: "share", binary: true, hidden, ...sides, describe: `${names.length} queries by ${names.length} keys. ${found.sentence}`,
      readout: (i, j, seen) => `query ${names[i]} ${seen ? "sees" : "does not see"} key ${names[j]}`,
    });
    return;
  }
  words.textContent = `Hatched: hidden by the mask. Colours: what head ${head} adds to the score. ${bias === "alibi" ? "The farther, the lower." : "Training learns these numbers; here they are random, to show which pairs share one."}`;
  heatMap(host, { values: found.added, kind: "diverging", hidden, ...sides, describe: `The number that head ${head} adds to each score.` });
}

function drawn(host, state) {
  const added = figure("Who sees whom");
  const left = figure("Weights that remain", "The attention if all words fit equally well, so that nothing else decides.");
  const sentence = h("p", { class: "sentence" });
  const numbers = h("div", {});
  const row = h("div", {});
  host.append(sentence, row, h("div", { class: "columns" }, added.element, left.element), numbers);
  let found = null;
  return (answer = found) => {
    found = answer;
    const length = found.visible.length;
    const hidden = found.visible.map((row) => row.map((seen) => !seen));
    const spoken = !found.segments && length <= SENTENCE.length; // then words of a sentence stand for the positions
    const names = found.positions.map((position, i) => (position < 0 ? "–" : spoken ? SENTENCE[position] : found.segments ? `${"abcdefgh"[found.segments[i]]}${position}` : position));
    const word = Math.min(state.values.row, length - 1);
    const choose = (to) => state.set({ row: to }, { step: true });
    const sides = { rows: { label: "query", names }, columns: { label: "key", names }, marked: { side: "row", index: word }, choose };
    if (spoken) sentenceOf(row, { found, names, word, choose });
    row.hidden = !spoken;
    sentence.textContent = state.values.mask === "causal" ? `${found.sentence} ${WHY}` : found.sentence;
    numbers.replaceChildren(facts([
      ["visible pairs", `${number(found.seen)} of ${number(found.pairs)}`, "seen"],
      ["share", `${number((100 * found.seen) / found.pairs, 3)} %`, "share"],
    ]));
    addedPicture(added, { found, hidden, sides, names, state });
    heatMap(left.host, { values: found.weights, kind: "sequence", shade: Math.sqrt, ticks: SHARES, hidden, ...sides, describe: "Weights when all raw scores are equal." });
  };
}
