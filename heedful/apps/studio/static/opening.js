// The picture of the start page: a sentence that the model translates as it is typed, and where a head
// looks as it writes. It opens with two in which the last word decides what "it" is.

import { addressOf } from "./address.js";
import { live } from "./api.js";
import { button } from "./controls.js";
import { h, isStill } from "./dom.js";
import { spokenPiece } from "./draw/links.js";
import { wordLines } from "./draw/word_lines.js";
import { notedHead, pieceOf } from "./subject.js";
import { ownAttention } from "./words.js";

const MODEL = "en-de";
const TEXT = "The animal didn't cross the street because it was too ";
const ENDS = [["tired", "es"], ["wide", "sie"]]; // German names a thing by the gender of its noun
const LEAST = 0.05; // weights below draw no line
const PAUSE = 300; // milliseconds after a letter until the sentence counts as typed
const [BEAT, REST] = [240, 1000]; // milliseconds between two words that are written, and of a rest at the pronoun
const PRONOUNS = ["er", "sie", "es", "ihn", "ihm", "Er", "Sie", "Es"]; // one of a typed sentence is followed

const example = (last) => `${TEXT}${last}.`;

/** The sentence that is typed, its translation, and what the chosen head looks at; null without the model or its page. */
export function openingPicture(studio) {
  const { part, layer, heads } = notedHead(studio, MODEL);
  // An exported course of a few pages may lack the one whose answers these are.
  if (!part || !studio.pages.some(({ name }) => name === "attention")) return null;
  const noted = Number(heads[0]);
  const own = h("input", { type: "text", id: "own-sentence", value: example("tired"), maxlength: 200, spellcheck: "false", autocomplete: "off" });
  const asks = h("p", {}, "“it”: the animal or the street? The last word decides, and German has to say which: ", h("em", {}, "es"), " for das Tier, ", h("em", {}, "sie"), " for die Straße.");
  const halves = ENDS.map(([last, pronoun]) => half({ last, pronoun, part, layer, head: noted }));
  const [typed, other] = halves;
  const reset = button("Back to the two sentences", () => show(example("tired")), { quiet: true });
  const choice = h("span", { class: "heads", role: "group", "aria-label": "Head" });
  const why = h("a", {}, "Why this word?");
  const all = h("span", {});
  const words = h("p", { class: "note" }, "Lines: where head ", choice, ` of layer ${layer + 1} looks as it writes, `, all, `. Head ${noted + 1} finds the noun whose gender counts. Where a head looks is not yet what decides: `, why, " measures that.");
  let waiting = null;
  function show(text) {
    clearTimeout(waiting);
    if (own.value !== text) own.value = text;
    if (!text.trim()) return;
    const opens = text === example("tired");
    asks.hidden = other.element.hidden = !opens;
    reset.hidden = opens;
    why.href = addressOf("translate", new URLSearchParams({ model: MODEL, text }).toString());
    typed.ask(text);
  }
  own.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => show(own.value), PAUSE);
  });
  const take = (head) => {
    for (const each of halves) each.take(head);
    [...choice.children].forEach((each, i) => each.setAttribute("aria-pressed", String(i === head)));
  };
  typed.counted((count, layers) => {
    if (choice.children.length === count) return;
    all.textContent = `one of ${layers * count} heads`;
    choice.replaceChildren(...Array.from({ length: count }, (_, i) => button(String(i + 1), () => take(i), { quiet: true })));
    take(noted);
  });
  reset.hidden = true;
  show(own.value);
  other.ask(example("wide"));
  return h("section", { class: "opening", "aria-label": "A sentence and its translation" },
    h("form", { class: "row own-sentence", onsubmit: (event) => {
      event.preventDefault();
      show(own.value);
    } }, h("label", { for: "own-sentence" }, "Type a sentence:"), own, reset),
    asks, halves.map(({ element }) => element), words);
}

/** One sentence over its translation. */
function half({ last, pronoun, part, layer, head }) {
  const host = h("div", { class: "word-pair in-columns" });
  const said = h("span", { class: "said", role: "status" });
  const link = h("a", {}, "All heads");
  const again = button("Again", () => shown?.write(), { quiet: true });
  again.hidden = isStill();
  const element = h("div", { "data-end": last }, host, h("p", { class: "row note" }, again, said, link));
  let text = "";
  let counted = () => {};
  let shown = null;
  const ask = live(host, (signal) => ownAttention({ model: MODEL, text, part, layer }, signal), ({ found, words }) => {
    const followed = [pronoun, ...PRONOUNS].find((each) => pieceOf(found.rows.pieces, each) >= 0);
    const row = pieceOf(found.rows.pieces, followed);
    link.href = addressOf("attention", new URLSearchParams({ model: MODEL, text, ...(row < 0 ? {} : { row }) }).toString());
    counted(words.maps.size, found.parts.find((each) => each.part === part).blocks.length);
    shown = fill(host, { written: words.rows.pieces, read: words.columns.pieces, maps: words.maps, pronoun: followed, said });
    shown.take(head);
    shown.write();
  });
  return {
    element,
    ask(next) {
      text = next;
      ask();
    },
    counted(tell) {
      counted = tell;
    },
    take(next) {
      head = next;
      shown?.take(head);
    },
  };
}

/** The two texts and the lines of the word that is pointed at; else of the pronoun, or where there is none, of all words. */
function fill(host, { written, read, maps, pronoun, said }) {
  const { layer, draw } = wordLines(host);
  const own = pieceOf(written, pronoun);
  const end = read.length - 1; // the mark of the end, which is not shown: no line can lead there
  let weights = null;
  const above = read.map((word) => h("span", { class: "word" }, spokenPiece(word)));
  const below = written.map((word, row) => h("button", {
    type: "button", class: "word",
    onpointerenter: () => look(row), onfocus: () => look(row), onclick: () => look(row), onpointerleave: () => look(own), onblur: () => look(own),
  }, spokenPiece(word)));
  const sharesOf = (row) => [...weights.subarray(row * read.length, (row + 1) * read.length)];
  const linesOf = (row, more) => sharesOf(row).map((weight, i) => ({ above: above[i], below: below[row], weight, said: above[i], ...more })).filter(({ weight }, i) => weight >= LEAST && i < end);
  const rows = below.slice(0, -1).map((_, row) => row);
  function look(row) {
    const shares = row < 0 ? read.map(() => 0) : sharesOf(row);
    above.forEach((word, i) => word.style.setProperty("--weight", shares[i].toFixed(3)));
    draw(rows.flatMap((each) => linesOf(each, { strong: each === row })));
    below.forEach((word, i) => word.setAttribute("aria-pressed", String(i === row)));
    const most = shares.indexOf(Math.max(...shares));
    said.textContent = row < 0 ? "Point at a word of the translation." : `“${below[row].textContent}” looks at ${most === end ? "the end of the text" : `“${above[most].textContent}”`}: ${Math.round(100 * shares[most])} % of its attention.`;
  }
  const line = (title, words) => [h("h3", {}, title), h("p", { class: "text" }, words.slice(0, -1).flatMap((word) => [word, " "]))];
  host.replaceChildren(...line("Text", above), ...line("Translation", below), layer);
  return {
    take(head) {
      weights = maps.get(head);
      look(own);
    },
    /** Let the words come one after the other, each with its lines; what is said of the followed word comes with it. */
    write() {
      if (isStill()) return;
      const comesAt = (row) => row * BEAT + (own >= 0 && row > own ? REST : 0);
      const come = (element, frames, row) => element.animate(frames, { duration: BEAT, delay: comesAt(row), fill: "backwards" });
      look(own);
      rows.forEach((row) => come(below[row], [{ opacity: 0 }, { opacity: 1 }], row));
      if (own >= 0) {
        come(said, [{ opacity: 0 }, { opacity: 1 }], own);
        for (const word of above) come(word, [{ backgroundColor: "transparent", offset: 0 }], own);
      }
      draw(rows.flatMap((row) => linesOf(row, { strong: row === own, delay: comesAt(row) })));
    },
  };
}
