// The rule `nfc` of tokenizers: one spelling for words that Unicode spells in several ways.

const SPACES = /[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/u;
const INVISIBLE = /[\xad\u2060-\u2064\ufeff]/u;
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;
const RIGHT_TO_LEFT = /[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
// Scripts with a zero-width space between words, where lines may end.
const PARTED = /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f]/u;
// Joiners belong to the spelling after letters without case and signs.
const JOINED = /[\p{M}\p{So}\p{Sk}\u{1f000}-\u{1faff}]|(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}])\p{Lo}/u;
const JOINERS = /[\u200c\u200d]/u;

/**
 * Normalise a text.
 * @returns {text, origin}: for each character of the result, the index of the character (code point)
 *   of the text that it comes from, and of the one after its last
 */
export function normalize(text) {
  const kept = [];
  const marksStay = RIGHT_TO_LEFT.test(text);
  let before = ""; // the character before, after what is not seen has been left out
  [...text].forEach((character, at) => {
    const drops = INVISIBLE.test(character)
      || (DIRECTION.test(character) && !marksStay)
      || (character === "\u200b" && !PARTED.test(before))
      || (JOINERS.test(character) && !JOINED.test(before));
    // Each step sees the text that the one before it left: what is dropped is before nothing.
    if (!INVISIBLE.test(character) && !(DIRECTION.test(character) && !marksStay)) before = character;
    if (!drops) kept.push({ character: SPACES.test(character) ? " " : character, at });
  });
  return composed(kept, [...text].length);
}

/** Compose characters with the marks after them, cluster by cluster. */
function composed(kept, length) {
  const [characters, starts] = [[], []];
  for (let i = 0; i < kept.length;) {
    let stop = i + 1;
    // NFC of a prefix and of the rest is NFC of both where the rest begins with a starter that joins nothing.
    while (stop < kept.length && joins(kept[stop - 1].character, kept[stop].character)) stop += 1;
    const cluster = kept.slice(i, stop);
    const result = [...cluster.map(({ character }) => character).join("").normalize("NFC")];
    result.forEach((character, j) => {
      characters.push(character);
      starts.push(cluster[Math.min(j, cluster.length - 1)].at);
    });
    i = stop;
  }
  // What is dropped belongs to the character before it, so that spans are the whole text.
  if (starts.length) starts[0] = 0;
  const origin = starts.map((start, i) => [start, Math.max(starts[i + 1] ?? length, start + 1)]);
  return { text: characters.join(""), origin };
}

const joins = (before, character) => /\p{M}/u.test(character) || /[\u1100-\u11ff\uac00-\ud7a3]/u.test(before + character) && (before + character).normalize("NFC") !== before + character;
