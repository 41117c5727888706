// Beam search over one sentence, as the package searches; a beam of 1 is greedy search.

import { largest, logSumExp } from "./arithmetic.js";
import { Refusal } from "./refusal.js";

/** Divisor of a score (Wu 2016, equation 14) of a hypothesis of that length, its end counted. */
const lengthNorm = (length, alpha) => ((length + 5) / 6) ** alpha;

/** A translator with a source, as a search steps through it. */
export class Translating {
  /**
   * @param source ids, special tokens included
   * @param silent set of places in the source that nothing attends to
   */
  constructor(model, source, silent = new Set()) {
    const { pad, bos, eos } = model.target;
    Object.assign(this, { model, state: model.start(source, silent), begin: bos, end: eos, never: new Set([pad, bos].filter((id) => id !== eos)) });
    this.size = model.vocabulary;
    this.usual = 2 * (source.length - silent.size) + 20;
    this.longest = model.numPositions - 1; // the begin token takes a position
  }

  /** Logits [V] of each beam's next token. */
  step(tokens) {
    return this.model.step(this.state, tokens);
  }

  reorder(parents) {
    this.state = this.model.reorder(this.state, parents);
  }
}

/**
 * A language model with a prompt. It ends a text by an id past its vocabulary, whose probability is
 * 1 where the text is cut, so that a cut does not change the score.
 */
export class Continuing {
  /**
   * @param prompt ids, at least one
   * @param limit most tokens of the continuation
   * @param silent set of places in the prompt that nothing attends to
   */
  constructor(model, prompt, limit, silent = new Set()) {
    // The last token that is heard asks for the first one, so silent ones after it are left out.
    const last = prompt.findLastIndex((_, i) => !silent.has(i));
    if (last < 0) throw new Refusal({ what: "Every token of the prompt is silent", remedy: "Leave one to go on from" });
    const before = prompt.slice(0, last);
    Object.assign(this, { model, limit, state: model.start(), end: model.vocabulary, size: model.vocabulary + 1 });
    this.begin = prompt[last]; // its logits are those of the first step
    this.never = new Set();
    this.usual = limit;
    this.longest = limit;
    this.count = 0;
    if (before.length) model.append(this.state, before, silent);
  }

  step(tokens) {
    const cut = this.count >= this.limit;
    this.count += 1;
    const rows = cut ? tokens.map(() => null) : this.model.step(this.state, tokens);
    const { eos } = this.model.target;
    return rows.map((row) => {
      const logits = new Float32Array(this.size).fill(-Infinity);
      if (row) logits.set(row);
      logits[this.end] = row ? row[eos] : 0;
      if (row) logits[eos] = -Infinity;
      return logits;
    });
  }

  reorder(parents) {
    this.state = this.model.reorder(this.state, parents);
  }
}

/**
 * Search for the best hypotheses.
 * @param task a `Translating` or a `Continuing`
 * @param settings {beam, nBest, lengthPenalty, maxLength, prefix: ids that hypotheses begin with}
 * @param trace list that receives every step: {ranked, bound, worst}
 * @returns hypotheses, best first: {tokens, score, normalized, tokenScores, finished}
 */
export function search(task, { beam, nBest = 1, lengthPenalty = 0.6, maxLength = null, prefix = [] }, trace = null) {
  const limit = Math.max(Math.min(maxLength ?? task.usual, task.longest), prefix.length);
  const longestNorm = lengthNorm(limit + 1, lengthPenalty);
  let live = [{ tokens: [], tokenScores: [], score: 0, last: task.begin }];
  let finished = [];
  for (let step = 0; ; step += 1) {
    const logits = task.step(live.map((each) => each.last));
    const norm = lengthNorm(step + 1, lengthPenalty);
    // The end is forced at the limit: whether the model wanted it is known before.
    const freely = logits.map((row) => step < limit || largest(row, 1)[0] === task.end);
    const candidates = bestContinuations(task, live, logits, beam > 1 ? 2 * beam : 1, demanded(task, step, prefix, limit));
    const ranked = candidates.map((each) => ({ ...each, ends: each.token === task.end }));
    for (const each of ranked.filter(({ ends }) => ends)) {
      const { tokens, tokenScores } = live[each.parent];
      const scores = [...tokenScores, each.tokenScore];
      finished.push({ tokens, tokenScores: scores, score: each.score, normalized: each.score / norm, finished: freely[each.parent] });
    }
    finished = finished.sort((a, b) => b.normalized - a.normalized).slice(0, nBest);
    const going = ranked.filter(({ ends }) => !ends).slice(0, beam);
    // Continuing only adds log-probabilities of at most 0, so no later hypothesis ranks above this.
    const bound = going.length ? going[0].score / longestNorm : -Infinity;
    const worst = finished[nBest - 1]?.normalized ?? -Infinity;
    if (trace) {
      trace.push({ bound, worst, ranked: ranked.map((each) => record(each, live, going, norm)) });
    }
    if (!(worst < bound)) return finished;
    live = going.map(({ parent, token, score, tokenScore }) => ({
      tokens: [...live[parent].tokens, token], tokenScores: [...live[parent].tokenScores, tokenScore], score, last: token,
    }));
    task.reorder(going.map(({ parent }) => parent));
  }
}

/** The only token that a step allows; null for a free choice. A prefix wins over the limit. */
function demanded(task, step, prefix, limit) {
  if (step < prefix.length) return prefix[step];
  return step >= limit ? task.end : null;
}

/** The best continuations of all hypotheses, best first: {parent, token, tokenScore, score}. */
function bestContinuations(task, live, logits, count, only) {
  const candidates = logits.flatMap((row, parent) => {
    const normalizer = logSumExp(row); // before any token is forbidden
    const tokens = only === null ? largest(without(row, task.never), count) : [only];
    return tokens.map((token) => {
      const value = row[token] - normalizer;
      return { parent, token, tokenScore: Math.fround(value), score: live[parent].score + value };
    });
  });
  // A stable sort: of equal sums, the one of the better hypothesis comes first.
  return candidates.filter(({ score }) => score > -Infinity).sort((a, b) => b.score - a.score).slice(0, count);
}

/** Logits without the tokens that no search chooses, in place. */
export function without(logits, never) {
  for (const token of never) logits[token] = -Infinity;
  return logits;
}

/** A ranked continuation for a trace, with its fate. */
function record({ parent, token, tokenScore, score, ends }, live, going, norm) {
  const beam = ends ? -1 : going.findIndex((each) => each.parent === parent && each.token === token);
  return {
    parent,
    token,
    tokenScore,
    score,
    fate: ends ? "ended" : beam >= 0 ? "lived" : "dropped",
    beam: beam < 0 ? null : beam,
    normalized: ends ? score / norm : null,
    tokens: ends ? live[parent].tokens : [...live[parent].tokens, token],
  };
}

/** Ranks of a hypothesis's continuation in each step of a trace. */
export function placesOf(trace, { tokens }) {
  const key = (ids) => ids.join(" ");
  return trace.slice(0, tokens.length + 1).map(({ ranked }, step) => {
    const [fate, prefix] = step < tokens.length ? ["lived", tokens.slice(0, step + 1)] : ["ended", tokens];
    return ranked.findIndex((each) => each.fate === fate && key(each.tokens) === key(prefix));
  });
}
