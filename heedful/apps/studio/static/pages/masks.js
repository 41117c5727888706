import { call, live } from "../api.js";
import { button, panel, slider, text } from "../controls.js";
import { figure, folded, h, number } from "../dom.js";
import { heatMap } from "../draw/heat.js";
import { scoreCell, shareCell, softmax, wordShares } from "../word_shares.js";

/** The word whose row is shown where none is chosen: one for which the mask changes something. */
const followed = (mask) => (mask === PREFIXED ? "The" : "it");
const PREFIXED = "causal | prefix(5)"; // "it" sees the beginning anyway

export const wide = true;

export const defaults = () => ({
  mask: "causal", length: 17, padding: 0, segments: 1, bias: "none", heads: 8, head: 1, max_distance: 16, row: -1,
});

const EXAMPLES = [
  ["causal", "Words before (decoder)"],
  ["everything", "All words (encoder)"],
  ["window(3)", "Near words"],
  ["causal & window(4)", "The last four"],
  [PREFIXED, "A beginning that all see"],
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
  ["alibi", "ALiBi: far counts less"],
  ["t5", "T5: by distance"],
  ["relative_keys", "Relative keys (Shaw)"],
];
const SHARES = [0, 0.1, 0.25, 0.5, 1];
const PACKED = "causal & segment";

export async function mount({ root, side, state }) {
  const known = call("masks", "words");
  const words = folded("All words of masks", () => {
    const list = h("ul", { class: "note" });
    known.then((found) => list.append(...found.words.map(({ name, settings, about }) =>
      h("li", {}, h("code", {}, settings.length ? `${name}(${settings.join(", ")})` : name), ` ${about}`))));
    return list;
  });
  const group = (label, all, setting, also = () => ({})) => h("div", { class: "field examples whole-line", role: "group", "aria-label": label }, h("span", { class: "label" }, label), all.map(([value, name]) => {
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
    slider(state, "length", { label: "Tokens", min: 2, max: 64 }),
    slider(state, "padding", { label: "Padding at the end", min: 0, max: 16 }),
    slider(state, "segments", { label: "Texts packed into the row", min: 1, max: 8 }));
  side.append(
    panel(
      group("Who sees whom", EXAMPLES, "mask", packed),
      group("Bias by distance", BIASES, "bias"),
      others,
      ...biasControls));
  root.append(pictures);
  const show = drawn(pictures, state);
  const reading = call("masks", "head");
  const ask = live(root, async (signal) => {
    const { row, ...asked } = state.values;
    return attending(await call("masks", "draw", asked, signal), await reading);
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

/** What training learns by distance, and how it begins. */
const UNTRAINED = {
  t5: "T5 learns a number for each distance. Before training, as here, they are random. ",
  relative_keys: "Shaw’s keys are a learned vector for each distance. Before training, as here, they are random. ",
};

/** The attention of a head at work, with mask and bias, and without the bias, or the mask where there is none, if its sentence has as many tokens as are drawn. */
function attending(found, { words, scores, ...head }) {
  const length = found.visible.length;
  if (found.segments || length > words.length) return found;
  const known = { ...found, words: words.slice(0, length) };
  if (!scores) return known;
  const own = scores.slice(0, length).map((row) => row.slice(0, length));
  const weights = (sees, added) => own.map((row, i) => softmax(row.map((score, j) => (sees(i, j) ? score + (added?.[i][j] ?? 0) : -Infinity))));
  const seen = (i, j) => found.visible[i][j];
  const real = (i) => found.positions[i] >= 0; // padding is hidden from all, with a mask and without
  return { ...known, head, scores: own, weights: weights(seen, found.added), without: weights(found.added ? seen : (i, j) => real(i) && real(j)) };
}

/** The row of a word in numbers: its scores, what mask and bias do to them, its attention with and without. */
function rowOf(host, { found, word, hidden: all, choose }) {
  const [weights, without, hidden] = [found.weights[word], found.without?.[word], all[word]];
  const most = Math.max(...weights, ...without ?? []);
  const out = (content = "") => ({ content, kind: "out" });
  const rows = [[found.added ? "with bias" : "with mask", weights.map((weight, i) => (hidden[i] ? out() : shareCell(weight, most)))]];
  if (found.scores) {
    rows.unshift(["score", found.scores[word].map(scoreCell)],
      [found.added ? "mask, bias" : "mask", hidden.map((is, i) => (is ? out("−∞") : { content: `+${number(found.added?.[word][i] ?? 0, 2)}`.replace("+−", "−") }))]);
  }
  if (without) rows.push([found.added ? "no bias" : "without", without.map((weight, i) => (hidden[i] && found.added ? out() : shareCell(weight, most, hidden[i] ? "bar lost" : found.added ? "bar undivided" : "bar")))]);
  wordShares(host, { words: found.words, chosen: word, choose, hidden, rows });
}

/** A row in a sentence: where the word looks, and what the mask keeps from it. */
function toldOf({ found, word, hidden, mask, bias }) {
  const names = found.words;
  const weights = found.weights[word];
  const seen = weights.filter((_, i) => !hidden[word][i]);
  if (!seen.length) return [`“${names[word]}” sees nothing.`];
  const most = Math.max(...weights);
  const strong = (share) => h("strong", {}, `${number(100 * share, 3)} %`);
  const best = names[weights.indexOf(most)];
  const says = seen.every((weight) => Math.abs(weight - most) < 1e-4) && seen.length > 1 ? ["each gets ", strong(most), " of its attention. "] : [most > 0.5 ? "most of its attention is on " : "the largest share of its attention is on ", `“${best}”, `, strong(most), ". "];
  const without = found.without?.[word];
  const lost = without?.reduce((sum, weight, i) => sum + (hidden[word][i] ? weight : 0), 0) ?? 0;
  const other = without?.indexOf(Math.max(...without));
  return [UNTRAINED[bias] ? `${UNTRAINED[bias]}“${names[word]}”: ` : `“${names[word]}” may look at ${seen.length} of ${names.length} tokens: `, ...says,
    ...(found.added && without ? [`Without the bias “${names[other]}” gets `, strong(without[other]), ".", ...(bias === "alibi" ? [` This head of ${found.head.model} was trained without ALiBi; trained with it, it would score otherwise.`] : [])] : []),
    ...(lost > 0.005 ? ["Without the mask ", strong(lost), mask === "causal" ? " would go to words that are not written yet, and that it has to predict." : " would go to words that the mask hides."] : [])];
}

/** What is added to the scores: nothing or −∞ by the mask, and the bias; without a bias the scores themselves, if there are any. */
function addedPicture({ host, words, element }, { found, hidden, sides, state }) {
  const { bias, head } = state.values;
  const title = element.querySelector("h3");
  if (found.added) {
    title.textContent = "Mask and bias";
    words.textContent = `Hatched: hidden by the mask. Colours: what head ${head} adds to the score. ${bias === "alibi" ? "The farther, the lower." : "One colour, one distance: pairs that share what is learned."}`;
    heatMap(host, { values: found.added, kind: "diverging", hidden, ...sides, describe: `The number that head ${head} adds to each score.` });
  } else if (found.scores) {
    title.textContent = "Scores";
    words.textContent = `How well each word fits the one that looks: layer ${found.head.layer}, head ${found.head.head} of ${found.head.model}.`;
    heatMap(host, { values: found.scores, kind: "diverging", ...sides, describe: "The score of every pair of words, before the mask." });
  } else {
    title.textContent = "Who sees whom";
    words.textContent = "Filled: the row’s word sees the column’s. Hatched: hidden by the mask.";
    heatMap(host, {
      values: found.visible, kind: "share", binary: true, hidden, ...sides, describe: `${hidden.length} queries by ${hidden.length} keys. ${found.sentence}`,
      readout: (i, j, seen) => `query ${sides.rows.names[i]} ${seen ? "sees" : "does not see"} key ${sides.columns.names[j]}`,
    });
  }
}

function drawn(host, state) {
  const added = figure("Who sees whom");
  const left = figure("");
  const without = figure("");
  const told = h("p", { class: "sentence", "data-fact": "row" });
  const row = h("div", {});
  const pairs = h("p", { class: "note" });
  host.append(told, row, h("div", { class: "columns two" }, added.element, left.element, without.element), pairs);
  let found = null;
  return (answer = found) => {
    found = answer;
    const length = found.visible.length;
    const hidden = found.visible.map((each) => each.map((seen) => !seen));
    // Words of a sentence stand for the positions while there are enough.
    const names = found.positions.map((position, i) => (position < 0 ? "–" : found.words?.[position] ?? (found.segments ? `${"abcdefgh"[found.segments[i]]}${position}` : position)));
    const chosen = state.values.row < 0 ? found.words?.indexOf(followed(state.values.mask)) ?? 0 : state.values.row;
    const word = Math.max(0, Math.min(chosen, length - 1));
    const choose = (to) => state.set({ row: to }, { step: true });
    const sides = { rows: { label: "query", names }, columns: { label: "key", names }, marked: { side: "row", index: word }, choose };
    told.hidden = !found.words;
    if (!found.words) row.replaceChildren();
    else {
      const own = { found: { ...found, words: names }, word, hidden, choose, mask: state.values.mask, bias: state.values.bias };
      rowOf(row, own);
      told.replaceChildren(...toldOf(own));
    }
    pairs.replaceChildren(`${found.sentence} Pairs that see each other: `, h("strong", { "data-fact": "seen" }, `${number(found.seen)} of ${number(found.pairs)}`), ", ", h("span", { "data-fact": "share" }, `${number((100 * found.seen) / found.pairs, 3)} %`), ".");
    addedPicture(added, { found, hidden, sides, state });
    const shares = { kind: "sequence", shade: Math.sqrt, ticks: SHARES, ...sides };
    heatMap(left.host, { ...shares, values: found.weights, hidden, describe: found.scores ? "Weights with the mask." : "Weights when all scores are equal." });
    left.words.textContent = found.scores ? "Each row adds up to 1: what is hidden leaves its share to the others." : "The attention if all words fit equally well, so that nothing else decides.";
    const [what, rest] = found.added ? ["bias", { hidden }] : ["mask", { apart: hidden }];
    left.element.querySelector("h3").textContent = `Attention with the ${what}`;
    without.element.querySelector("h3").textContent = `Without the ${what}`;
    without.words.textContent = found.added ? "The same scores, the same mask." : "The same scores. Ochre: attention to what the mask hides.";
    without.element.hidden = !found.without;
    if (found.without) heatMap(without.host, { ...shares, values: found.without, ...rest, describe: `Weights of the same scores without the ${what}.` });
  };
}
