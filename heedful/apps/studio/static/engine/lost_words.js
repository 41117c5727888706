// Words of a text that its translation lost: without them it is as probable (Vamvas 2022).

import { logSumExp } from "./arithmetic.js";
import { singleLine, splitSpaces, strip, wordSpans } from "./characters.js";
import { misspelled } from "./names.js";
import { framed } from "./readings.js";

const LONGEST = 300; // characters of a text
const FEWEST_LETTERS = 4;
const PLAIN = /[\p{L}\p{N}]/gu;

/** How much more probable a translation of one line is without each word: {start, end, gain} of each; and its misspelled names. */
export function lost(model, { text, translation }) {
  // Places are counted in characters, as in Python, not in units of UTF-16.
  const place = (whole, at) => [...whole.slice(0, at)].length;
  const names = (model.names ? misspelled(text, translation, model.names) : [])
    .map(({ start, end, name }) => ({ start: place(translation, start), end: place(translation, end), name }));
  if ([...text].length > LONGEST || strip(text).includes("\n")) return { words: [], names };
  const target = model.target.encode(singleLine(translation));
  const score = (source) => scoreOf(model, model.source.encode(singleLine(source)), target);
  const words = withoutEachWord(text);
  const whole = words.length ? score(text) : 0;
  return { names, words: words.map(({ start, end, rest }) => ({ start: place(text, start), end: place(text, end), gain: score(rest) - whole })) };
}

/** Log-probability of a translation, from one pass with all of its tokens. */
function scoreOf(model, ids, target) {
  const { read } = model.start(framed(model.source, ids));
  const states = model.run("decoder", [model.target.bos, ...target], { read });
  return [...target, model.target.eos].reduce((sum, id, i) => {
    const logits = model.logits(states.subarray(i * model.spec.width, (i + 1) * model.spec.width));
    return sum + logits[id] - logSumExp(logits);
  }, 0);
}

/** A text without each of its words of four letters and more; see `lost_words.py`. */
function withoutEachWord(text) {
  const spans = wordSpans(text).map(([start, end]) => innerSpan(start, text.slice(start, end)));
  if (spans.length < 2) return [];
  return spans.filter(([start, end]) => counts(text.slice(start, end)))
    .map(([start, end]) => ({ start, end, rest: splitSpaces(`${text.slice(0, start)}${text.slice(end)}`).join(" ").replace(/ +(?=[.,;:!?…])/g, "") }));
}

/** The span of a word without the marks around it. */
function innerSpan(index, word) {
  const places = [...word.matchAll(PLAIN)];
  return places.length ? [index + places[0].index, index + places.at(-1).index + places.at(-1)[0].length] : [index, index];
}

function counts(word) {
  return !/['’\p{Nd}]/u.test(word) && [...word].filter((sign) => /\p{L}/u.test(sign)).length >= FEWEST_LETTERS;
}
