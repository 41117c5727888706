// Characters as Python's `str` sees them: white space, lines, words.

// Unlike `\s` of JavaScript, with U+0085 and the separators U+001C to U+001F, and without U+FEFF.
const SPACE = /[\p{White_Space}\x1c-\x1f]/u;
const EDGES = /^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu;
const WORDS = /[^\p{White_Space}\x1c-\x1f]+/gu;
const LINE_ENDS = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/;
const LONE_SURROGATE = /[\ud800-\udfff]/gu; // with `u`, pairs are one character and no surrogates
const CONTROL = /(?![\t\n])\p{Cc}/gu;

/** Scripts without spaces between words; Hangul's letters are none of them. */
const SPACELESS = new RegExp(
  "(?![\\u3130-\\u318f])[\\u0e00-\\u0fff\\u1000-\\u109f\\u1780-\\u17ff\\u1950-\\u19ff\\u1a20-\\u1aaf"
  + "\\ua9e0-\\ua9ff\\uaa60-\\uaa7f\\u2e80-\\ua4cf\\uf900-\\ufaff\\ufe30-\\ufe4f\\uff00-\\uffef\\u{20000}-\\u{3ffff}]", "u");

export const LETTER = /[\p{L}\p{Nl}\p{No}]/u; // of any script, with what Python counts among them
export const isSpace = (character) => SPACE.test(character);
export const strip = (text) => text.replace(EDGES, "");
export const splitSpaces = (text) => text.match(WORDS) ?? [];

export const splitLines = (text) => text.split(LINE_ENDS);

/** Replace all line breaks by spaces. */
export const oneLine = (text) => text.replace(new RegExp(`(?:${LINE_ENDS.source})$`), "").split(LINE_ENDS).join(" ");

/** Replace lone surrogates by U+FFFD, and control characters but tabs and newlines by spaces. */
export const clean = (text) => text.replace(LONE_SURROGATE, "\ufffd").replace(CONTROL, " ");

/** Clean a text, replace its newlines by spaces and strip space around it. */
export const singleLine = (text) => strip(clean(text).split("\n").join(" "));

/**
 * Spans of words between spaces, and of single characters of scripts without spaces, in UTF-16
 * units; a combining mark stays with the character before it.
 */
export function wordSpans(text) {
  const spans = [];
  for (const match of text.matchAll(WORDS)) {
    let [start, at, before] = [match.index, match.index, null];
    for (const character of match[0]) {
      const apart = before !== null && !/\p{M}/u.test(character) && (SPACELESS.test(before) || SPACELESS.test(character));
      if (apart) {
        spans.push([start, at]);
        start = at;
      }
      at += character.length;
      before = character;
    }
    spans.push([start, at]);
  }
  return spans;
}
