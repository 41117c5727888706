// The heads of cross-attention that align words best, and the links of words that they give.

import { gathered, tokenWords } from "./alignment.js";
import { at } from "./forms.js";
import { numHeads } from "./passes.js";
import { Refusal } from "./refusal.js";

const MOST_HEADS = 8; // whose mean is a candidate
const ROWS = [0, 1]; // a target token is predicted at a query, and is the input of the next one

/**
 * Link each target word of a corpus to the source word that it attends to most, by the heads whose
 * links predict words best.
 * @param passes one of each sentence: {reading, of}
 * @returns for each sentence a function of a query and a key: true for tokens of linked words
 */
export function chooseLinks(model, layers, passes) {
  const sentences = Array.from(passes, (pass) => betweenWords(model, layers, pass));
  const parted = sentences.filter(({ source, target }) => source.length && target.length);
  if (!parted.length) throw new Refusal({ what: "There are no words to choose heads on" });
  const singles = layers.flatMap((_, layer) => Array.from({ length: numHeads(layers) }, (__, head) => [layer, head]));
  const means = layers.map((_, layer) => singles.filter(([each]) => each === layer));
  const scored = ([heads, row]) => ({ heads, row, score: bits(parted, heads, row) });
  const candidates = [...singles.map((head) => [head]), ...means].flatMap((heads) => ROWS.map((row) => scored([heads, row])));
  const first = (all) => all.reduce((most, each) => (each.score > most.score ? each : most));
  let best = first(candidates);
  for (const row of ROWS) {
    // Greedy by single scores: the best k heads for each k, not all subsets.
    const ranked = candidates.slice(0, 2 * singles.length).filter((each) => each.row === row).sort((a, b) => b.score - a.score).slice(0, MOST_HEADS);
    for (let count = 2; count <= ranked.length; count += 1) best = first([best, scored([ranked.slice(0, count).map(({ heads: [head] }) => head), row])]);
  }
  return sentences.map((sentence) => {
    const linked = linksOf(sentence, best.heads, best.row);
    const before = model.source.first.length;
    return (query, key) => {
      const word = sentence.targetOf[query];
      return word !== undefined && linked[word] !== undefined && linked[word] === sentence.sourceOf[key - before];
    };
  });
}

/** The words of a sentence and of its tokens, and the attention between them: weights[layer][head][row]. */
function betweenWords({ source, target }, layers, { reading, of }) {
  const inner = reading.encoder.ids.slice(source.first.length, reading.encoder.ids.length - source.last.length);
  const from = tokenWords(source, inner, reading.text);
  const to = tokenWords(target, reading.predicted.ids.slice(0, -1), reading.target); // the last one is the end
  const weights = layers.map(({ address }) => {
    const all = of(address, "weights");
    return Array.from({ length: all.shape[0] }, (_, head) => {
      const { shape: [count, width], values } = at(all, head);
      const rows = Array.from({ length: count }, (__, row) => values.subarray(row * width, (row + 1) * width));
      return ROWS.map((row) => gathered(rows.slice(row), from, to, source.first.length));
    });
  });
  return { source: from.words, target: to.words, sourceOf: from.wordOf, targetOf: to.wordOf, weights };
}

/** The source word that each target word is linked to by the mean of some heads; undefined where nothing is attended to. */
function linksOf({ source, target, weights }, heads, row) {
  return target.map((_, to) => {
    const sums = source.map((__, from) => heads.reduce((sum, [layer, head]) => sum + weights[layer][head][row][to][from], 0));
    const best = sums.indexOf(Math.max(...sums));
    return sums[best] > 0 ? best : undefined;
  });
}

/**
 * How well linked source words predict target words: mutual information in bits, counted on the
 * other half of the sentences, as links of random pairs would predict their own pairs perfectly.
 */
function bits(sentences, heads, row) {
  const halves = [[], []];
  sentences.forEach((sentence, i) => linksOf(sentence, heads, row).forEach((from, to) => {
    // Small letters join the counts of a word at the beginning and inside of sentences.
    if (from !== undefined) halves[i % 2].push([sentence.source[from], sentence.target[to]].map((word) => word.toLowerCase()));
  }));
  let total = 0;
  for (const [train, test] of [halves, [...halves].reverse()]) {
    const [pairs, sources, targets] = [new Map(), new Map(), new Map()];
    const count = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
    for (const [from, to] of train) [[pairs, `${from} ${to}`], [sources, from], [targets, to]].forEach((each) => count(...each));
    const kinds = targets.size + 1; // one more, for words that are not there
    for (const [from, to] of test) {
      const prior = ((targets.get(to) ?? 0) + 1) / (train.length + kinds);
      const conditional = ((pairs.get(`${from} ${to}`) ?? 0) + prior) / ((sources.get(from) ?? 0) + 1);
      total += Math.log2(conditional / prior);
    }
  }
  return total / Math.max(1, halves.flat().length);
}
