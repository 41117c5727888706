// The answer to names of heads: measures of their attention over typed sentences.

import { splitLines, strip } from "./characters.js";
import { at, thousands } from "./forms.js";
import { chooseLinks } from "./head_choice.js";
import { attentionLayers, partsOf, rowsAndColumns } from "./passes.js";
import { checkLength, readAll } from "./readings.js";
import { Refusal } from "./refusal.js";

const MOST_SENTENCES = 200;
const LONGEST_CORPUS = 20_000;
const LEANING = 0.15; // least evidence for a tendency
const STRONG = 0.5; // least evidence for a label
const BROAD = 0.95; // least share of the largest possible entropy
const SPREAD = Math.log(4);
const [FEWEST_SENTENCES, FEWEST_ROWS] = [10, 100]; // for a label

const OF_CROSS = ["first", "separator", "rare"]; // source and target have no positions in common
const OF_SELF = ["previous", "next", "first", "same", "repeated", "separator", "rare"];
const MEANING = {
  previous: "on the token before",
  next: "on the token after",
  first: "on the first token",
  same: "on the token itself",
  repeated: "on the same token elsewhere",
  separator: "on special tokens after the first",
  rare: "on the rarest token of the sentence",
  aligned: "on tokens of the aligned words",
};

const lastCorpus = new WeakMap(); // translations of a corpus take seconds, and serve every part

/** Labels of heads with a pattern on some sentences, with the evidence; undefined for those of the model's card, which are recorded. */
export function labels(model, { corpus = "", part: asked = "" }) {
  if (!strip(corpus)) return undefined;
  checkLength(corpus, LONGEST_CORPUS, "sentences");
  const part = asked || partsOf(model)[0];
  const layers = attentionLayers(model, part);
  if (lastCorpus.get(model)?.corpus !== corpus) lastCorpus.set(model, { corpus, readings: readAll(model, ...pairsOf(model, corpus)) });
  const { readings } = lastCorpus.get(model);
  const passes = function* () {
    // One after the other: tensors of all sentences are too large to keep.
    for (const reading of readings) {
      const { capture } = model.capture(reading);
      yield { reading, of: (address, kind) => capture.get(`${address}.${kind}`) };
    }
  };
  const links = part === "cross" ? chooseLinks(model, layers, passes()) : null;
  const { heads, rows } = measure(part, layers, readings, passes(), links);
  const enough = readings.length >= FEWEST_SENTENCES && rows >= FEWEST_ROWS;
  return {
    part,
    sentences: readings.length,
    rows,
    enough,
    fewest: [FEWEST_SENTENCES, FEWEST_ROWS],
    count: heads.length,
    labels: enough ? heads.map(labelOf).filter(Boolean) : [],
  };
}

/** The texts of the lines that are not empty, and their second texts, if all lines have a tab. */
function pairsOf(model, corpus) {
  const lines = splitLines(corpus).filter((line) => strip(line));
  if (lines.length > MOST_SENTENCES) {
    throw new Refusal({
      what: `Heads are measured here on at most ${MOST_SENTENCES} sentences, not ${thousands(lines.length)}`,
      where: "sentences",
      remedy: "For more: heedful.inspect.measure in a notebook",
    });
  }
  const split = lines.map((line) => line.indexOf("\t"));
  if (!model.stacks.encoder || split.every((place) => place < 0)) return [lines, null];
  if (split.some((place) => place < 0)) {
    throw new Refusal({ what: "Some lines have a second text after a tab, others have none", where: "sentences", remedy: "Give all of them one, or none" });
  }
  return [lines.map((line, i) => line.slice(0, split[i])), lines.map((line, i) => line.slice(split[i] + 1))];
}

/** Kinds of key of a query: for each whether it is of that kind, by its name. */
function kindsOf({ ids, special }, counts, linked) {
  const known = ids.filter((_, key) => !special[key]).map((id) => counts.get(id));
  const rarest = Math.min(...known);
  return {
    previous: (query, key) => key === query - 1,
    next: (query, key) => key === query + 1,
    first: (_, key) => key === 0,
    same: (query, key) => key === query,
    repeated: (query, key) => ids[key] === ids[query] && key !== query && !special[key],
    separator: (_, key) => special[key] && key > 0,
    rare: (_, key) => !special[key] && counts.get(ids[key]) === rarest,
    aligned: linked,
  };
}

/** Sums over the queries of all heads: {heads: measures by layer and head, rows: number of queries}. */
function measure(part, layers, readings, passes, links) {
  const counts = new Map();
  for (const reading of readings) {
    const { ids, special } = rowsAndColumns(reading, part)[1];
    ids.forEach((id, key) => special[key] || counts.set(id, (counts.get(id) ?? 0) + 1));
  }
  const names = part !== "cross" ? OF_SELF : ["aligned", ...OF_CROSS];
  const heads = layers.flatMap(({ sublayer }, layer) => Array.from({ length: sublayer.part.num_heads }, (_, head) => (
    { layer, head, entropy: 0, largest: 0, kinds: names.map((kind) => ({ kind, total: 0, base: 0, rows: 0, means: [] })) })));
  let queries = 0;
  let number = 0;
  for (const { reading, of } of passes) {
    const [rows, columns] = rowsAndColumns(reading, part);
    const kinds = kindsOf(columns, counts, links?.[number]);
    const count = rows.ids.length;
    const width = columns.ids.length;
    for (const tally of heads) {
      const [weights, scores] = ["weights", "scores"].map((kind) => at(of(layers[tally.layer].address, kind), tally.head).values);
      const own = tally.kinds.map(() => ({ share: 0, rows: 0 }));
      for (let query = 0; query < count; query += 1) {
        const keys = Array.from({ length: width }, (_, key) => key).filter((key) => scores[query * width + key] > -Infinity);
        const weight = (key) => weights[query * width + key];
        tally.largest += Math.log(keys.length);
        for (const key of keys) tally.entropy -= weight(key) && weight(key) * Math.log(weight(key));
        tally.kinds.forEach((kind, i) => {
          const of_ = keys.filter((key) => kinds[kind.kind](query, key));
          if (!of_.length) return; // no token before the first one: that would pull the mean down
          own[i].rows += 1;
          own[i].share += of_.reduce((sum, key) => sum + weight(key), 0);
          kind.base += of_.length / keys.length;
        });
      }
      tally.kinds.forEach((kind, i) => {
        kind.rows += own[i].rows;
        kind.total += own[i].share;
        // Queries of one sentence are dependent, so the standard error is over sentences.
        if (own[i].rows) kind.means.push(own[i].share / own[i].rows);
      });
    }
    queries += count;
    number += 1;
  }
  return { rows: queries, heads: heads.map((tally) => ({ ...tally, entropy: tally.entropy / queries, largest: tally.largest / queries, shares: tally.kinds.filter(({ rows }) => rows).map(shareOf) })) };
}

/** The share of attention on keys of a kind, and its evidence: 0 for even attention, 1 for all attention. */
function shareOf({ kind, total, base, rows, means }) {
  const [share, baseline, sentences] = [total / rows, base / rows, means.length];
  const mean = means.reduce((sum, each) => sum + each, 0) / sentences;
  const error = sentences > 1 ? Math.sqrt(means.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (sentences - 1) / sentences) : Infinity;
  const evidence = baseline >= 1 || error === Infinity ? 0 : Math.max(0, (share - 2 * error - baseline) / (1 - baseline));
  return { kind, share, baseline, rows, sentences, evidence };
}

const best = (shares) => shares.reduce((most, each) => (most && most.evidence >= each.evidence ? most : each), null);

/** The label of a head, or its tendency to a pattern; null if it has neither. */
function labelOf({ layer, head, entropy, largest, shares }) {
  const named = (clear, kind, evidence, why) => ({ layer, head, clear, kind, evidence, why });
  const enough = shares.filter(({ rows, sentences }) => rows >= FEWEST_ROWS && sentences >= FEWEST_SENTENCES);
  const first = best(enough);
  if (first?.evidence >= STRONG) {
    return named(true, first.kind, first.evidence, `${first.share.toFixed(2)} of attention is ${MEANING[first.kind]}, where even attention would give ${first.baseline.toFixed(2)} (${thousands(first.rows)} rows of ${first.sentences} sentences)`);
  }
  // A head can be broad and still have a pattern; the pattern says more, so it comes first.
  if (enough.length && largest >= SPREAD && entropy >= BROAD * largest) {
    return named(true, "broad", entropy / largest, `entropy of ${entropy.toFixed(2)} nats, where even attention would have ${largest.toFixed(2)}`);
  }
  const leaning = best(shares);
  if (!leaning || leaning.evidence < LEANING) return null;
  const percent = (share) => (100 * share).toFixed(0);
  return named(false, leaning.kind, leaning.evidence, `${percent(leaning.share)} % of its attention is ${MEANING[leaning.kind]}; even attention would give ${percent(leaning.baseline)} %`);
}
