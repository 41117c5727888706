// Answers of the page Translate: translations with alignments, and other words in a place.

import { logSumExp } from "./arithmetic.js";
import { align, copiedAlignment, joinAlignments } from "./alignment.js";
import { clean, isSpace, oneLine, singleLine, splitSpaces, strip, wordSpans } from "./characters.js";
import { rounded } from "./forms.js";
import { checkLength, framed } from "./readings.js";
import { Refusal } from "./refusal.js";
import { Translating, search, without } from "./search.js";
import { cutText, describeUnknown, joinSegments, mayHaveParts } from "./segments.js";

const LONGEST = 2000;
const REMEDY = "Translate files with: heedful translate MODEL -i FILE";
const SPACE_MARK = "\u2581";

/** The best translations with alignments, and warnings; undefined for a text with parts that stay. */
export function text(model, { text: source, beam = 4, n_best: nBest = 3, length_penalty: lengthPenalty = 0.6, prefix = "" }) {
  [source, prefix].forEach((each) => checkLength(each, LONGEST, "text", REMEDY));
  const cut = mayHaveParts(source) ? null : cutText(source, model);
  if (!cut) return undefined;
  const settings = { beam: Math.max(beam, nBest), nBest, lengthPenalty, prefix: model.target.encode(singleLine(prefix)) };
  const results = cut.segments.map((segment, i) => translateSegment(model, segment, i ? { ...settings, prefix: [] } : settings));
  const translations = assemble(model, cut, results);
  const warnings = [];
  const searched = cut.segments.map((segment) => segment.text);
  const unknown = describeUnknown(model.source, searched.filter((each) => model.source.encode(each).includes(model.source.unk)));
  if (unknown) warnings.push(unknown);
  if (translations.some(({ finished }, rank) => rank === 0 && !finished)) warnings.push("1 of 1 translations were cut at their longest length (line 1)");
  if (!strip(source)) warnings.push("The text is empty, and so is its translation");
  const words = [...new Set(splitSpaces(source))].filter((word) => model.source.encode(word).includes(model.source.unk));
  if (words.length) warnings.push(`The model has no piece for: ${words.slice(0, 10).join(" ")}`);
  return { translations: translations.map((each) => plain(model, each, source)), warnings };
}

/** Hypotheses of a segment with distinct texts, each with its alignment. */
function translateSegment(model, segment, settings) {
  if (segment.isCopied) {
    return { isCopied: true, hypotheses: [{ tokens: [], tokenScores: [0], score: 0, finished: true, text: segment.text, alignment: copiedAlignment(segment.text) }] };
  }
  const source = framed(model.source, segment.ids);
  // Hypotheses may have the same text, so all of the beam are kept until their texts are known.
  const kept = settings.nBest > 1 ? settings.beam : 1;
  const byText = new Map();
  const task = new Translating(model, source);
  for (const each of search(task, { ...settings, nBest: kept })) {
    const decoded = model.target.decode(each.tokens);
    if (!byText.has(decoded)) byText.set(decoded, { ...each, text: decoded });
  }
  const hypotheses = [...byText.values()].slice(0, settings.nBest);
  for (const each of hypotheses) {
    each.alignment = align(sourceAttention(model, task.state.read, source.length, each.tokens),
      { tokenizer: model.source, ids: segment.ids, text: segment.text },
      { tokenizer: model.target, ids: each.tokens, text: each.text });
  }
  return { isCopied: false, hypotheses };
}

/**
 * Mean attention of the upper half of the layers to the source, when each token is predicted.
 * @param read keys and values of the source, from the search
 */
function sourceAttention(model, read, length, tokens) {
  const capture = new Map();
  model.run("decoder", [model.target.bos, ...tokens], { read, capture });
  const cross = [...capture.keys()].filter((address) => /^decoder\.\d+\.cross\.weights$/.test(address));
  const upper = cross.slice(Math.floor(cross.length / 2)).map((address) => capture.get(address));
  const mean = Array.from({ length: tokens.length + 1 }, () => new Float64Array(length));
  for (const { shape: [heads], values } of upper) {
    for (let i = 0; i < values.length; i += 1) {
      mean[Math.floor(i / length) % mean.length][i % length] += values[i] / heads / upper.length;
    }
  }
  return mean;
}

/** The k-th best ones of all segments make up the text's k-th best translation. */
function assemble(model, cut, results) {
  if (!results.length) return [{ text: "", score: 0, finished: true, pieces: [], tokens: 0, alignment: null }];
  const counts = results.filter(({ isCopied }) => !isCopied).map(({ hypotheses }) => hypotheses.length);
  return Array.from({ length: counts.length ? Math.min(...counts) : 1 }, (_, rank) => {
    const chosen = results.map(({ isCopied, hypotheses }) => hypotheses[isCopied ? 0 : rank]);
    return {
      text: joinSegments(cut, chosen.map((each) => each.text)),
      score: chosen.reduce((sum, each) => sum + each.score, 0),
      finished: chosen.every((each) => each.finished),
      tokens: chosen.reduce((sum, each) => sum + each.tokens.length, 0),
      // Null stands for the end of a segment.
      pieces: chosen.flatMap(({ tokens, tokenScores }) => [...model.target.pieces(tokens), null].map((piece, i) => ({ piece, score: rounded(tokenScores[i], 5) }))),
      alignment: joinAlignments(chosen.map((each) => each.alignment)),
    };
  });
}

function plain(model, { text: translation, score, finished, tokens, pieces, alignment }, source) {
  return {
    text: translation,
    score,
    finished,
    source: splitWords(source, alignment?.source ?? splitSpaces(source)),
    target: splitWords(translation, alignment?.target ?? splitSpaces(translation)),
    matrix: alignment ? alignment.matrix.map((row) => row.map((weight) => rounded(weight, 4))) : [],
    tokens,
    pieces,
  };
}

/** Split a text into words with their indices, and text between words with null. */
function splitWords(whole, words) {
  const parts = [];
  let end = 0;
  words.forEach((word, number) => {
    const start = whole.indexOf(word, end);
    if (start < 0) {
      parts.push({ text: word, word: number }); // the text spells the word in another way
      return;
    }
    if (start > end) parts.push({ text: whole.slice(end, start), word: null });
    parts.push({ text: word, word: number });
    end = start + word.length;
  });
  if (end < whole.length) parts.push({ text: whole.slice(end), word: null });
  return parts;
}

/** Alternatives to a word, each with the translation that follows. */
export function alternatives(model, { line, before = "", count = 6 }) {
  [line, before].forEach((each) => checkLength(each, LONGEST, "text", REMEDY));
  const { source: tokenizer, target } = model;
  const ids = tokenizer.encode(singleLine(line));
  if (!ids.length) return { alternatives: [] };
  if (ids.length > model.spec.max_length) {
    throw new Refusal({
      what: `The line has ${ids.length} tokens, more than the ${model.spec.max_length} that the model translates at once`,
      remedy: "Look for alternatives in a shorter line",
    });
  }
  const source = framed(tokenizer, ids);
  const beginning = target.encode(splitSpaces(clean(before)).join(" "));
  const task = new Translating(model, source);
  let [score, logits] = [0, null];
  for (const token of [target.bos, ...beginning]) {
    if (logits) score += logits[token] - logSumExp(logits);
    [logits] = task.step([token]);
  }
  const normalizer = logSumExp(logits);
  const probabilities = without(logits, task.never).map((each) => Math.exp(each - normalizer));
  const start = target.decode(beginning);
  const found = new Map();
  for (const token of wordBeginnings(target, probabilities, beginning, count)) {
    const probability = probabilities[token];
    let alternative = { word: "", probability, text: start, score: score + Math.log(probability) };
    if (token !== target.eos) {
      const [best] = search(new Translating(model, source), { beam: 4, prefix: [...beginning, token] });
      const whole = oneLine(target.decode(best.tokens));
      alternative = { word: wordAfter(whole, start), probability, text: whole, score: best.score };
    }
    // Tokens come in the order of probability: the first one of a word is kept.
    if (!found.has(alternative.word)) found.set(alternative.word, alternative);
  }
  return { alternatives: [...found.values()] };
}

/** The most probable tokens that do not extend the last word of the beginning. */
function wordBeginnings(target, probabilities, beginning, count) {
  const end = target.decode(beginning).length;
  const order = Array.from(probabilities, (_, id) => id).sort((a, b) => probabilities[b] - probabilities[a]);
  const result = [];
  for (const token of order) {
    if (result.length === count || probabilities[token] === 0) break;
    const begins = target.shown[token].startsWith(SPACE_MARK)
      || wordSpans(target.decode([...beginning, token])).some(([first]) => first >= end);
    if (begins || token === target.eos) result.push(token);
  }
  return result;
}

/** The word of a text with the first character after its beginning that is no space. */
function wordAfter(whole, start) {
  let place = start.length;
  while (place < whole.length && isSpace(whole[place])) place += 1;
  const span = wordSpans(whole).find(([, last]) => last > place);
  return span ? whole.slice(...span) : "";
}
