// Answers about models of records on the page Everywhere: a sample, completed, and its attention.

import { largest, logSumExp } from "./arithmetic.js";
import { Coins } from "./coins.js";
import { FieldTokenizer } from "./field_tokenizer.js";
import { at, meanOverHeads, significant } from "./forms.js";
import { attentionLayers, choose, kept, numHeads } from "./passes.js";
import { formOf, pieceOf, shown } from "./record_drawings.js";
import { distribution, draw, randomNumber } from "./sampling.js";

const CANDIDATES = 5; // tokens whose probabilities are shown at a place of a record
const FUTURES = 40; // of a series, from which its interval is taken

export const ofRecords = (model) => model.source instanceof FieldTokenizer;

/** A record in tokens and in its own form, as given and as the model completes it; undefined for what is no record. */
export function complete(model, { record, keep = null, temperature = 1, seed = 1 }) {
  const fields = model.source;
  const ids = fields.encode(record);
  const form = formOf(fields);
  if (!ids || !form) return undefined;
  const conditions = fields.fields.reduce((sum, { given, count }) => sum + (given ? count : 0), 0);
  const most = Math.max(Math.min(keep ?? usual(fields, form, ids.length), ids.length), Math.min(conditions, ids.length));
  const begun = { ids: ids.slice(0, most), kept: most };
  const layers = attentionLayers(model, "decoder");
  return {
    fields: fields.fields.map(({ name, content, given, names, size, shape }) => (
      { name, content, given, form: `${name}:${names ? "names" : size}:${shape.join("x")}${given ? ":given" : ""}` })),
    vocabulary: fields.size,
    whole: ids.length,
    conditions,
    step: fields.last.step,
    layers: layers.length,
    heads: numHeads(layers),
    begun: shown(fields, begun),
    samples: [shown(fields, form === "coins" && begun.ids.length === 2 ? played(model, begun, seed) : continued(model, begun, form, { temperature, seed }))],
  };
}

/** Tokens that are given where no number is chosen: of a whole record the first half of its last field, in whole rows. */
function usual({ last, whole, reading }, form, length) {
  if (length < whole) return length;
  return length - (form === "series" ? reading.horizon : last.count - Math.floor(last.shape[0] / 2) * last.step);
}

/** Log-probabilities of the codes of the field of a place: no other token may stand there. */
function scoresOf({ source }, logits, place) {
  const { start, size } = source.fieldAt(place);
  const own = logits.subarray(start, start + size);
  const normalizer = logSumExp(own);
  return { start, scores: Array.from(own, (logit) => logit - normalizer) };
}

/** A record as the model goes on with it; of a series the likeliest of several futures, with all of them. */
function continued(model, begun, form, { temperature, seed }) {
  const fields = model.source;
  const count = form === "series" && temperature > 0 ? FUTURES : 1;
  const rest = fields.whole - begun.ids.length;
  const samples = Array.from({ length: count }, () => ({ ids: [], score: 0 }));
  if (rest) {
    let state = model.start();
    let logits = [model.append(state, [fields.bos, ...begun.ids])];
    state = model.reorder(state, samples.map(() => 0));
    for (let step = 0; step < rest; step += 1) {
      const tokens = samples.map((sample, i) => {
        const { start, scores } = scoresOf(model, logits[step ? i : 0], begun.ids.length + step);
        const code = temperature > 0 ? draw(distribution(scores, { temperature }), randomNumber(seed, step, i)) : largest(scores, 1)[0];
        sample.ids.push(start + code);
        sample.score += scores[code];
        return start + code;
      });
      if (step + 1 < rest) logits = model.step(state, tokens);
    }
  }
  const best = samples.reduce((most, each) => (each.score > most.score ? each : most));
  return { ids: [...begun.ids, ...best.ids], kept: begun.kept, futures: count > 1 ? samples.map(({ ids }) => ids) : null };
}

/** An episode among coins, which the model plays from its first place on. */
function played(model, begun, seed) {
  const { last: { start }, bos } = model.source;
  const state = model.start();
  let before = bos;
  const act = (values, step) => {
    const place = 3 * step + 2;
    const { scores } = scoresOf(model, model.append(state, [before, ...values.map((value) => start + value)]), place);
    const code = draw(distribution(scores, {}), randomNumber(seed + step, 0));
    before = start + code;
    return code;
  };
  return { ids: Coins.play(begun.ids.map((id) => id - start), act).map((value) => start + value), kept: 2 };
}

/** What a head attends to when the model predicts a token, and the likeliest tokens. */
export function weights(model, { record, token, layer = -1, head = -1 }) {
  const ids = model.source.encode(record);
  if (!ids || token > ids.length) return undefined;
  const layers = attentionLayers(model, "decoder");
  const { address } = layers[layer < 0 ? layers.length - 1 : choose(layer, layers.length, "layer")];
  const { states, capture } = kept(model, JSON.stringify(["record", ids]), () => model.capture({ decoder: { ids: [model.source.bos, ...ids] } }));
  const every = capture.get(`${address}.weights`);
  // A token is predicted at the one before it, and the first one at the begin token.
  const [begin, ...shares] = at(head < 0 ? meanOverHeads(every) : at(every, choose(head, every.shape[0], "head")), token).values;
  return { shares: shares.map(significant), begin, candidates: candidates(model, states, ids, token) };
}

/** The likeliest tokens of a place and its own, among those of the place's field. */
function candidates(model, states, ids, token) {
  if (token >= ids.length) return [];
  const fields = model.source;
  const { width } = model.spec;
  const { start, scores } = scoresOf(model, model.logits(states.subarray(token * width, (token + 1) * width)), token);
  const own = ids[token] - start;
  const best = largest(scores, CANDIDATES);
  return (best.includes(own) ? best : [...best, own]).map((code) => (
    { label: pieceOf(formOf(fields), fields.fieldAt(token), code), probability: significant(Math.exp(scores[code])), own: code === own }));
}
