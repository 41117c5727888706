// Names of a text that its translation misspells; the rules are those of `quality/name_check.py`.

import { LETTER } from "./characters.js";
import { FEWEST_LETTERS } from "./seen_words.js";

const WORD = new RegExp(`${LETTER.source}+`, "gu");
const CAPITAL = /^[\p{Lu}\p{Lt}]/u;
const TITLES = ["Mrs", "Miss", "Sir", "Lady", "Lord"];
const OPENING = /[ \t"'“”„«»‘’([]+$/u;
const QUOTES = ["", ..."\"'“„«»‘"];
const [SHORTEST, ALIKE, BEGINS, MOST_MORE, FEWEST_TOKENS] = [3, 0.6, 4, 2, 3];

/**
 * Edits of a translation that spell names as the text does.
 * @param names words of the text's language that are no names to copy: months, countries, languages
 * @param seen result of `seenWords`
 * @returns {start, end, name} of each, in UTF-16 units
 */
export function misspelled(text, translation, { names, seen, encode }) {
  if (!/[A-Za-z]/.test(translation)) return [];
  const [mine, others] = [wordsOf(text), wordsOf(translation)];
  const [known, kept] = [mine, others].map((words) => new Set(words.map(({ folded }) => folded)));
  const madeUp = others.filter((word) => isCapitalized(word) && !known.has(word.folded) && word.letters.length >= FEWEST_LETTERS && !seen(word.text));
  const edits = new Map();
  for (const name of mine.filter((word) => isCapitalized(word) && isName(word, text, names, encode))) {
    const alike = madeUp.filter((word) => !edits.has(word) && areAlike(name, word) && word.letters.length <= name.letters.length + MOST_MORE);
    if (!alike.length || [...kept].some((each) => each.startsWith(name.folded))) continue;
    edits.set(alike.reduce((best, word) => (likeness(name, word) > likeness(name, best) ? word : best)), name.text);
  }
  return [...edits].map(([{ start, end }, name]) => ({ start, end, name }));
}

const wordsOf = (text) => [...text.matchAll(WORD)].map(({ 0: word, index }) => ({
  text: word, start: index, end: index + word.length, letters: [...word], folded: word.toLowerCase().replaceAll("ß", "ss"),
}));
const isCapitalized = ({ text, letters }) => letters.length > 1 && CAPITAL.test(text);

/** Whether a capitalized word is a name that mostly stays. */
function isName({ text: word, letters, start }, text, names, encode) {
  if (letters.length < SHORTEST || 2 * letters.filter((letter) => /\p{Lu}/u.test(letter)).length > letters.length) return false;
  if (TITLES.includes(word) || names.includes(word) || names.some((name) => [...name].length > BEGINS && word.startsWith(name))) return false;
  // What begins a sentence is a name if it has many tokens in any case.
  const [spelled, plain] = [word, word.toLowerCase()].map((each) => encode(each).length);
  return isInside(text, start) || (plain >= spelled && spelled >= FEWEST_TOKENS);
}

/** Whether a word begins neither a sentence nor a quotation. */
function isInside(text, start) {
  if (QUOTES.includes(text.slice(Math.max(0, start - 1), start))) return false;
  return !["", ...".!?:…-–"].includes(text.slice(0, start).replace(OPENING, "").slice(-1));
}

/** A word without case and accents. */
const plainLetters = ({ folded }) => [...folded.normalize("NFKD").replace(/\p{M}/gu, "").replaceAll("c", "k").replaceAll("ph", "f")];

/** Whether two capitalized words may be the same name, or a name and what derives from it. */
function areAlike(one, other) {
  const [shorter, longer] = [one, other].map((each) => plainLetters(each).join("")).sort((a, b) => [...a].length - [...b].length);
  const [count, beginning] = [[...shorter].length, (length) => [...shorter].slice(0, length).join("")];
  if (shorter === longer || (count >= SHORTEST && longer.startsWith(shorter))) return true;
  if (count >= BEGINS && (longer.includes(shorter) || longer.startsWith(beginning(BEGINS)))) return true;
  if (count === BEGINS && longer.startsWith(beginning(BEGINS - 1))) return true;
  return likeness(one, other) >= ALIKE;
}

/** The share of letters in common, by Ratcliff and Obershelp, as Python's `difflib` counts it. */
function likeness(one, other) {
  const [a, b] = [one, other].map(plainLetters);
  return (2 * matched(a, b)) / (a.length + b.length);
}

/** Letters in the longest common run, and in those before and after it. */
function matched(a, b) {
  let [length, at, there] = [0, 0, 0];
  a.forEach((_, i) => b.forEach((__, j) => {
    let same = 0;
    while (i + same < a.length && j + same < b.length && a[i + same] === b[j + same]) same += 1;
    if (same > length) [length, at, there] = [same, i, j];
  }));
  return length && length + matched(a.slice(0, at), b.slice(0, there)) + matched(a.slice(at + length), b.slice(there + length));
}
