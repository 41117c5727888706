// The next token after some chosen ones, decoded step by step with a cache.

import { largest, logSumExp } from "./arithmetic.js";
import { kept } from "./passes.js";
import { Refusal } from "./refusal.js";
import { promptIds, read, readBegun } from "./readings.js";
import { Continuing, Translating, without } from "./search.js";

const LONGEST = 4096; // tokens of a pass
const CONTEXT = 8; // last tokens of a prompt that are decoded with what follows it
const NEW_TOKENS = 100; // of a continuation
const END = "(end)"; // name of the token that ends a text

/** A translator with its source or a language model with its prompt, as a search uses it. */
export class Writer {
  /** @param limit most tokens that a language model generates */
  constructor(model, text, limit = 0) {
    if (!model.generates) {
      throw new Refusal({ what: `This model does not write; its kind is '${model.spec.kind}'`, remedy: "Take a translator or a language model" });
    }
    Object.assign(this, { model, text, limit });
    this.initial = model.translates ? readBegun(model, text, []) : read(model, { text, given: "none" });
    this.bound = Math.min(model.numPositions, LONGEST);
    this.end = model.translates ? model.target.eos : model.vocabulary;
    this.size = model.translates ? model.vocabulary : model.vocabulary + 1;
  }

  /** A search from the beginning; nothing attends to silent places of the source or prompt. */
  task(silent = new Set()) {
    return this.model.translates
      ? new Translating(this.model, this.initial.encoder.ids, silent)
      : new Continuing(this.model, promptIds(this.model, this.text), this.limit, silent);
  }

  /** Tokens that a language model can still write. */
  get room() {
    return this.bound - this.initial.decoder.ids.length;
  }

  /** Refuse ids outside of the vocabulary, and a sequence that is too long. */
  check(chosen) {
    for (const id of chosen) {
      if (!(id >= 0 && id < this.size) || id === this.end) {
        throw this.refusal(id);
      }
    }
    const length = this.initial.decoder.ids.length + chosen.length;
    if (length > this.bound) {
      throw new Refusal({ what: `${length} tokens are more than the ${this.bound} that the model can read`, where: "chosen", remedy: "Go back some steps" });
    }
  }

  /** The error for an id that cannot stand in a text. */
  refusal(id) {
    const remedy = `Choose one below ${this.size} that is no special token; ${this.end} ends the text`;
    return new Refusal({ what: `The text cannot go on from token ${id}`, where: "chosen", remedy });
  }

  /** The reading after tokens were chosen. */
  readingOf(chosen) {
    if (this.model.translates) return readBegun(this.model, this.text, chosen);
    const { source } = this.model;
    const ids = [...this.initial.decoder.ids, ...chosen];
    const special = ids.map((id) => source.special.has(id));
    return { ...this.initial, target: this.textOf(chosen), decoder: { ids, pieces: source.pieces(ids), special } };
  }

  /** The text of chosen tokens. */
  textOf(chosen) {
    const { target, translates } = this.model;
    if (translates) return target.decode(chosen);
    // Decoded with the end of the prompt: the first word would lose its space by itself.
    const context = this.initial.decoder.ids.slice(-CONTEXT);
    const [before, together] = [context, [...context, ...chosen]].map((ids) => [...target.decode(ids)]);
    const differs = before.findIndex((each, i) => i < together.length && each !== together[i]);
    return together.slice(differs < 0 ? before.length : differs).join("");
  }

  /** The name of a token. */
  nameOf(id) {
    if (id === this.end) return END;
    return this.model.target.shown[id] ?? `<${id}>`;
  }
}

/**
 * Predict the next token after chosen ones, of which the end token may be the last.
 * @returns {writer, reading, text, chosenScores, logits, scores, ended}: logits and scores
 *   (log-probabilities, −∞ for tokens that no search chooses) of the next token
 */
export function nextToken(model, text, chosen) {
  const writer = new Writer(model, text, chosen.length + 1);
  const ended = chosen.length > 0 && chosen.at(-1) === writer.end;
  const written = ended ? chosen.slice(0, -1) : chosen;
  writer.check(written);
  const task = writer.task();
  const chosenScores = [];
  let [logits, scores] = [null, null];
  [task.begin, ...written].forEach((token, step) => {
    [logits] = task.step([token]);
    const normalizer = logSumExp(logits);
    scores = without(logits.map((each) => each - normalizer), task.never);
    if (step < chosen.length) chosenScores.push(scores[chosen[step]]);
  });
  // Padding, BOS, and the end token of a language model, whose probability is that of `writer.end`.
  const never = chosenScores.indexOf(-Infinity);
  if (never >= 0) throw writer.refusal(chosen[never]);
  return { writer, reading: writer.readingOf(written), text: writer.textOf(written), chosenScores, logits, scores, ended };
}

/** Most tokens of a continuation of a prompt; null for a translation, whose source gives its limit. */
export function usualRoom(model, text) {
  return model.translates ? null : Math.max(1, Math.min(NEW_TOKENS, new Writer(model, text).room));
}

/** What `nextToken` predicts, and all tensors of the pass: {result, capture, states}. */
export function nextPass(model, text, chosen) {
  return kept(model, JSON.stringify(["next", text, chosen]), () => {
    const result = nextToken(model, text, chosen);
    return { result, ...model.capture(result.reading) };
  });
}

/** Ids of the most probable tokens that a search may choose, best first. */
export const bestTokens = (scores, count) => largest(scores, count).filter((id) => scores[id] > -Infinity);
