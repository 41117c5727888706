// Answers to "Why this word?": what a word loses without others, the lens, and results without some.

import { largest, logSumExp, normalize, rowOf, spread } from "./arithmetic.js";
import { splitSpaces, strip } from "./characters.js";
import { significant } from "./forms.js";
import { Writer, bestTokens, nextPass, usualRoom } from "./next_token.js";
import { choose } from "./passes.js";
import { checkLength } from "./readings.js";
import { Refusal } from "./refusal.js";
import { search } from "./search.js";
import { slopesOf } from "./slopes.js";

const LONGEST = 600;
const CANDIDATES = 6;
const MOST_HEADS = 8;
const STEPS = 64; // points between baseline and text

/** What each token of the source or prompt and of the output so far adds to a word. */
export function why(model, request) {
  const { result, token, written } = predicted(model, request);
  const { against = null } = request;
  [token, against].forEach((id) => checkToken(model, id));
  const { encoder, decoder } = result.reading;
  const { value, baseline, scores } = (request.way === "gradients" ? byGradients : bySilence)(model, result.reading, token, against);
  const sides = Object.entries({ encoder, decoder }).filter(([, tokens]) => tokens).map(([name, { pieces, special }]) =>
    [name, { pieces, special, scores: scores[name].map(significant) }]);
  return {
    token,
    piece: result.writer.nameOf(token),
    // The tokens of a prompt, unlike those of a source, share the decoder with what is written.
    given: encoder ? encoder.ids.length : decoder.ids.length - written,
    value,
    baseline,
    sides: Object.fromEntries(sides),
    candidates: bestTokens(result.scores, CANDIDATES).map((id) => ({
      id: inVocabulary(model, id, result), piece: result.writer.nameOf(id), probability: Math.exp(result.scores[id]),
    })),
  };
}

/** What the value loses when nothing attends to a token, for each of each stack. */
function bySilence(model, { encoder, decoder }, token, against) {
  const read = (silent) => model.start(encoder?.ids ?? null, silent).read;
  const valueWith = (memory, silent) => {
    const states = model.run("decoder", decoder.ids, { read: memory, silent });
    return valueOf(model, states, token, against);
  };
  const memory = read(null);
  const value = valueWith(memory, null);
  const only = (i) => new Set([i]);
  // The last token asks the question, so it stays.
  const last = decoder.ids.length - 1;
  const lost = {
    encoder: (i) => value - valueWith(read(only(i)), null),
    decoder: (i) => (i === last ? 0 : value - valueWith(memory, only(i))),
  };
  return {
    value,
    baseline: null,
    scores: { encoder: encoder?.ids.map((_, i) => lost.encoder(i)), decoder: decoder.ids.map((_, i) => lost.decoder(i)) },
  };
}

/** Integrated gradients: shares of the change from unknown words alone to the text. */
function byGradients(model, reading, token, against) {
  const names = Object.keys(model.stacks);
  const ways = Object.fromEntries(names.map((name) => [name, wayTo(model, name, reading[name].ids)]));
  const at = (share) => {
    const embedded = Object.fromEntries(names.map((name) => [name, ways[name].base.map((each, i) => each + share * ways[name].change[i])]));
    return { reading, ...model.capture(reading, embedded) };
  };
  const sums = Object.fromEntries(names.map((name) => [name, new Float64Array(ways[name].change.length)]));
  for (let step = 0; step < STEPS; step += 1) {
    const { embeddings } = slopesOf(model, at((step + 0.5) / STEPS), token, against);
    for (const name of names) embeddings[name].forEach((slope, i) => (sums[name][i] += slope / STEPS));
  }
  const { width } = model.spec;
  const scoresOf = (name) => reading[name].ids.map((_, row) =>
    sums[name].subarray(row * width, (row + 1) * width).reduce((sum, slope, i) => sum + slope * ways[name].change[row * width + i], 0));
  return {
    value: valueOf(model, at(1).states, token, against),
    baseline: valueOf(model, at(0).states, token, against),
    scores: Object.fromEntries(names.map((name) => [name, scoresOf(name)])),
  };
}

/** The embedding in which every word is unknown, and the change from there to that of the text. */
function wayTo(model, name, ids) {
  const { pad, bos, eos, unk } = name === "encoder" ? model.source : model.target;
  const positions = ids.map((_, i) => i);
  const base = model.embed(name, ids.map((id) => ([pad, bos, eos].includes(id) ? id : unk)), positions);
  return { base, change: model.embed(name, ids, positions).map((each, i) => each - base[i]) };
}

/** The lens by layer, and what sub-layers and heads add to a word. */
export function inside(model, request) {
  const { result, capture, states, token } = predicted(model, request);
  const shown = [token, request.against ?? null].filter((id) => id !== null);
  shown.forEach((id) => checkToken(model, id));
  const row = (place) => lastRow(model, capture, place);
  const { blocks, finalNorm } = model.stacks.decoder;
  const layers = ["embedding", ...blocks.map((_, number) => `${number}.output`)].map((place) => {
    const logits = model.logits(finalNorm ? normalize(row(place), 1, finalNorm) : row(place));
    const normalizer = logSumExp(logits);
    const [best] = largest(logits, 1);
    const probability = (id) => Math.exp(logits[id] - normalizer);
    return { best: result.writer.nameOf(best), probability: probability(best), shown: shown.map(probability) };
  });
  const directions = shown.map((id) => rowOf(model.outputTable, id));
  const parts = Object.entries(contributions(model, capture)).map(([name, vector]) => {
    const [score, other = 0] = directions.map((direction) => vector.reduce((sum, each, i) => sum + each * direction[i], 0));
    return { name, score: score - other };
  });
  const { heads } = slopesOf(model, { reading: result.reading, capture, states }, token, request.against ?? null);
  const strongest = Object.entries(heads).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, MOST_HEADS);
  return {
    layers,
    parts: parts.filter(({ name, score }) => /\d/.test(name) || score),
    heads: strongest.map(([address, effect]) => ({ address, effect })),
  };
}

/** The translation or continuation with silent tokens and without heads. */
export function again(model, { line, silent = [], heads = [], beam = 4 }) {
  checkLength(line, LONGEST, "line");
  const chosen = heads.length ? model.without(checkedHeads(model, heads)) : model;
  const maxLength = usualRoom(chosen, line);
  const writer = new Writer(chosen, line, maxLength ?? 0);
  const { encoder, decoder } = writer.initial;
  silent.forEach((place) => choose(place, (encoder ?? decoder).ids.length, "token"));
  const [best] = search(writer.task(new Set(silent)), { beam, maxLength });
  return { text: writer.textOf(best.tokens), score: best.score };
}

/** The prediction with its tensors, the token of the word, and how many stand before it. */
function predicted(model, { line, before = "", word = "", tokens = [], token = null }) {
  [line, before, word].forEach((text) => checkLength(text, LONGEST, "line"));
  if (token !== null && (before || word)) throw new Refusal({ what: "The word is given as text and as a token", where: "token" });
  const [begin, id] = token === null ? tokensOf(model, before, word) : [tokens, token];
  const { result, capture, states } = nextPass(model, line, begin);
  return { result, capture, states, token: inVocabulary(model, id, result), written: begin.length };
}

/** The tokens before a word, and the first token of the word. */
function tokensOf({ target }, before, word) {
  const encode = (text) => target.encode(splitSpaces(text).join(" "));
  const begin = encode(before);
  if (!strip(word)) return [begin, target.eos];
  const whole = encode(`${before} ${word}`);
  const differs = whole.findIndex((id, i) => id !== begin[i]);
  if (differs < 0) throw new Refusal({ what: "The word adds no token to what stands before it", where: "word" });
  return [whole.slice(0, differs), whole[differs]];
}

/** The model's own id of a token: a language model's search ends by an id after its vocabulary. */
const inVocabulary = (model, id, { writer }) => (id === writer.end ? model.target.eos : id);

function checkToken({ vocabulary }, id) {
  if (id !== null && !(id >= 0 && id < vocabulary)) {
    throw new Refusal({ what: `There is no token ${id}`, where: "token", remedy: `Take one below ${vocabulary}` });
  }
}

function checkedHeads({ stacks }, heads) {
  const known = Object.values(stacks).flatMap(({ name, places }) => places.flatMap(({ number, sublayer: { address, part } }) =>
    Array.from({ length: part.num_heads ?? 0 }, (_, head) => `${name}.${number}.${address}.head.${head}`)));
  const other = heads.find((each) => !known.includes(each));
  if (other !== undefined) throw new Refusal({ what: `The model has no head ${other}`, where: "heads", remedy: `They are: ${known.join(", ")}` });
  return heads;
}

/** Log-probability of a token after the last state, or its logit less that of another. */
function valueOf(model, states, token, against) {
  const logits = model.logits(states.subarray(-model.spec.width));
  return logits[token] - (against === null ? logSumExp(logits) : logits[against]);
}

/** The last row of a captured tensor of the decoder, [D]. */
const lastRow = (model, capture, place) => capture.get(`decoder.${place}`).values.subarray(-model.spec.width);

/** Vectors [D] of embedding, sub-layers and biases of norms that add up to the decoder's last output. */
function contributions(model, capture) {
  const { places, finalNorm } = model.stacks.decoder;
  const row = (place) => Float64Array.from(lastRow(model, capture, place));
  const parts = { embedding: row("embedding") };
  const norms = new Float64Array(model.spec.width);
  for (const { number, sublayer } of places) {
    const place = `${number}.${sublayer.address}`;
    // Without a residual connection the output replaces all that was in the stream.
    if (sublayer.residual === false) [...Object.values(parts), norms].forEach((vector) => vector.fill(0));
    parts[place] = row(`${place}.output`);
    const { residual_scale: factor = 1 } = sublayer;
    if (factor !== 1) [...Object.values(parts), norms].forEach((vector) => vector.forEach((x, i) => { vector[i] = x * factor; }));
    if (sublayer.after) normLinearly(sublayer.after, row(`${place}.residual`), Object.values(parts), norms);
  }
  const { number, sublayer } = places.at(-1);
  if (finalNorm) normLinearly(finalNorm, row(`${number}.${sublayer.address}.stream`), Object.values(parts), norms);
  return { ...parts, norms };
}

/** Apply a norm to parts of a stream in place, with the stream's own mean and deviation. */
function normLinearly({ kind, epsilon, weight, bias }, stream, parts, norms) {
  const { deviation } = spread(stream, kind, epsilon);
  for (const vector of [...parts, norms]) {
    // The mean is linear, so the means of the parts add up to the mean of the stream.
    const { mean } = spread(vector, kind, epsilon);
    for (let i = 0; i < vector.length; i += 1) vector[i] = ((vector[i] - mean) / deviation) * weight.values[i];
  }
  if (bias) for (let i = 0; i < norms.length; i += 1) norms[i] += bias.values[i];
}
