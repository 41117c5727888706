// Rules of spelling: one spelling for words that Unicode spells in several ways.

const SPACES = /[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/gu;
const INVISIBLE = /[\xad\u2060-\u2064\ufeff]/gu;
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;
const RIGHT_TO_LEFT = /[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
// Scripts with a zero-width space between words, where lines may end.
const PARTED = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u1a20-\\u1aaf\\ua9e0-\\ua9ff\\uaa60-\\uaa7f";
const ASIAN = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Hangul}";
// Joiners belong to the spelling after letters without case and signs.
const JOINED = `(?:[\\p{M}\\p{So}\\p{Sk}\\u{1f000}-\\u{1faff}]|(?![${ASIAN}])\\p{Lo})`;
const JOINERS = "[\\u200c\\u200d]";
// Letters and signs that a mark composes with: no joiner belongs after them and their marks.
const COMPOSED = `[\\p{Lu}\\p{Ll}\\p{Lt}\\p{Sm}${ASIAN}]`;

const pattern = (source) => new RegExp(source, "gu");
const APART = [pattern(`(?<![${PARTED}])\\u200b`), pattern(`(?<!${JOINED})${JOINERS}`)];
const AFTER_MARKS = [
  pattern(`(?<=${COMPOSED}\\p{M}+(?:${JOINERS}+\\p{M}+)*)${JOINERS}+`),
  pattern(`(?<=(?![${PARTED}])\\p{M}+(?:\\u200b+\\p{M}+)*)\\u200b+`),
];

/** What a rule does after spaces and signs that are not seen; each step sees the one before it. */
const LATER = {
  nfc: APART,
  // A text in the normal form of this rule stays as it is.
  "nfc-2": [null, ...APART, ...AFTER_MARKS],
};

/** The function that spells a text by a rule; undefined for a rule that is not known here. */
export function speller(rule) {
  if (rule === "none") return (text) => text;
  const later = LATER[rule];
  return later && ((text) => {
    const seen = text.replace(SPACES, " ").replace(INVISIBLE, "");
    // Marks of direction decide the order of a text with letters from right to left.
    const plain = RIGHT_TO_LEFT.test(seen) ? seen : seen.replace(DIRECTION, "");
    const steps = later.reduce((before, each) => (each === null ? before.normalize("NFC") : before.replace(each, "")), plain);
    return steps.normalize("NFC"); // last: it composes characters that a removed one kept apart
  });
}
