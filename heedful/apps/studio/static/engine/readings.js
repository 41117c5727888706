// Texts as inputs of a model: ids with their tokens.

import { clean, strip } from "./characters.js";
import { thousands } from "./forms.js";
import { Refusal } from "./refusal.js";
import { Continuing, Translating, search } from "./search.js";

const LONGEST = 4096; // most tokens of a pass
const CONTINUED = 32; // most tokens that a language model adds on a page

/** The tokens of a sequence of ids, as pages show them: {ids, pieces, special}. */
function tokensOf(tokenizer, ids) {
  return { ids, pieces: tokenizer.pieces(ids), special: ids.map((id) => tokenizer.special.has(id)) };
}

/** Refuse a text whose computation would take too long. */
export function checkLength(text, longest, where, remedy = "Shorten it") {
  const length = [...text].length;
  if (length > longest) {
    throw new Refusal({ what: `The text has ${thousands(length)} characters; at most ${thousands(longest)} are allowed here`, where, remedy });
  }
}

/** Ids of a prompt of a language model, with the begin token as in training. */
export const promptIds = ({ source }, text) => [source.bos, ...source.encode(text)];

/** A source with the special tokens around it. */
export const framed = (tokenizer, ids) => [...tokenizer.first, ...ids, ...tokenizer.last];

/**
 * Encode a text, and the translation or continuation beside it.
 * @param request {text, second, given: origin of the second text, chosen by the kind if empty}
 * @returns {text, target, encoder, decoder, predicted}: tokens of each side, or null
 */
export function read(model, { text, second = "", given = "" }) {
  const origin = given || (model.translates ? "own" : "none");
  if (!strip(text)) throw new Refusal({ what: "There is no text to look at", where: "text 1" });
  if (origin === "typed" && !strip(second)) throw new Refusal({ what: "No second text is typed yet", where: "second" });
  return readAs(model, text, origin, second, {});
}

/**
 * Encode the texts of a corpus, with translations by greedy search where there are none.
 * @param seconds second text of each; null without
 */
export function readAll(model, texts, seconds) {
  const blank = texts.findIndex((text) => !strip(text));
  if (blank >= 0) throw new Refusal({ what: "There is no text to look at", where: `text ${blank + 1}` });
  const origin = seconds ? "typed" : model.translates ? "own" : "none";
  return texts.map((text, i) => readAs(model, text, origin, seconds?.[i] ?? "", { number: i + 1, beam: 1 }));
}

/** @param options {number of the text, beam of the search for a translation} */
function readAs(model, text, origin, second, { number = 1, beam = 4 }) {
  const called = model.translates ? readPair : model.generates ? readContinued : readEncoded;
  return called(model, text, origin, second, number, beam);
}

/** Reading of a translator with a decoder's tokens so far; `?` is the next prediction. */
export function readBegun(model, text, chosen) {
  const source = readSource(model, text, 1);
  const after = tokensOf(model.target, chosen);
  return {
    ...source,
    target: model.target.decode(chosen),
    decoder: tokensOf(model.target, [model.target.bos, ...chosen]),
    predicted: { ids: [...after.ids, -1], pieces: [...after.pieces, "?"], special: [...after.special, true] },
  };
}

function readSource(model, text, number) {
  const line = oneLineOf(text, `text ${number}`);
  const ids = model.source.encode(line);
  checkTokens(ids, model.spec.max_length, `text ${number}`);
  return { text: line, ids, encoder: tokensOf(model.source, framed(model.source, ids)) };
}

function readPair(model, text, origin, second, number, beam) {
  if (origin === "none") {
    throw new Refusal({ what: "A translator's decoder reads a translation", where: "given", remedy: "Type one, or let the model write it" });
  }
  const source = readSource(model, text, number);
  const typed = origin === "typed" ? oneLineOf(second, `target ${number}`) : null;
  const after = typed === null
    ? search(new Translating(model, source.encoder.ids), { beam })[0].tokens
    : model.target.encode(typed);
  return {
    ...source,
    target: typed ?? model.target.decode(after),
    // The decoder's input is its target, shifted right by the begin token.
    decoder: tokensOf(model.target, [model.target.bos, ...after]),
    predicted: tokensOf(model.target, [...after, model.target.eos]),
  };
}

function readContinued(model, text, origin, second, number) {
  const ids = promptIds(model, text);
  let more = [];
  if (origin === "typed") more = model.source.encode(second);
  if (origin === "own") {
    checkTokens(ids, model.longest);
    const room = model.numPositions - ids.length;
    if (room < CONTINUED) {
      throw new Refusal({ what: `The model can add ${Math.max(0, room)} tokens to this text, and ${CONTINUED} are asked for`, where: "text", remedy: "Give a shorter text" });
    }
    more = search(new Continuing(model, ids, CONTINUED), { beam: 1 })[0].tokens;
  }
  checkTokens([...ids, ...more], model.longest, `text ${number}`);
  const target = origin === "none" ? null : model.source.decode(more);
  return { text, target, encoder: null, decoder: tokensOf(model.source, [...ids, ...more]), predicted: null };
}

function readEncoded(model, text, origin, second, number) {
  const { source } = model;
  if (origin === "own") {
    throw new Refusal({ what: "This model writes no text", where: "given", remedy: "Type a second one, or none" });
  }
  const ids = source.encodeMasked(text);
  const others = origin === "typed" ? [...source.between, ...source.encodeMasked(second)] : [];
  checkTokens(ids, LONGEST, `text ${number}`);
  const whole = framed(source, [...ids, ...others]);
  const longest = Math.min(model.longest, LONGEST);
  if (whole.length > longest) {
    throw new Refusal({
      what: `${whole.length} tokens, special ones included, are more than the ${longest} the model can read`,
      where: `text ${number}`,
      remedy: "Give shorter pieces of the text",
    });
  }
  return { text, target: null, encoder: tokensOf(source, whole), decoder: null, predicted: null };
}

function oneLineOf(text, where) {
  const line = strip(clean(text));
  if (line.includes("\n")) throw new Refusal({ what: "The text has several lines", where, remedy: "Give one line at a time" });
  return line;
}

function checkTokens(ids, longest, where = "text 1") {
  if (!ids.length) throw new Refusal({ what: "The model's tokenizer knows nothing of this text", where });
  const bound = Math.min(longest ?? LONGEST, LONGEST);
  if (ids.length > bound) {
    throw new Refusal({ what: `${ids.length} tokens are more than the ${bound} that fit into one pass`, where, remedy: "Give a shorter text" });
  }
}
