// The picture of the start page: a word at the end of a sentence decides what "it" is, and a head of
// the model shows it.

import { addressOf } from "./address.js";
import { live } from "./api.js";
import { h } from "./dom.js";
import { spokenPiece } from "./draw/links.js";
import { wordLines } from "./draw/word_lines.js";
import { notedHead, pieceOf } from "./subject.js";
import { ownAttention } from "./words.js";

const MODEL = "en-de";
const TEXT = "The animal didn't cross the street because it was too ";
const ENDS = [["tired", "es"], ["wide", "sie"]]; // German names a thing by the gender of its noun
const LEAST = 0.05; // weights below draw no line

/** Two sentences that differ in their last word, and what the pronoun of each translation looks at; null without the model or its page. */
export function openingPicture(studio) {
  const { part, layer, heads } = notedHead(studio, MODEL);
  // An exported course of a few pages may lack the one whose answers these are.
  if (!part || !studio.pages.some(({ name }) => name === "attention")) return null;
  const why = addressOf("translate", new URLSearchParams({ model: MODEL, text: `${TEXT}${ENDS[0][0]}.` }).toString());
  const own = h("input", { type: "text", id: "own-sentence", name: "text", placeholder: "The dog saw the cat because it barked.", required: true, maxlength: 200 });
  const go = (event) => {
    event.preventDefault();
    location.assign(addressOf("translate", new URLSearchParams({ model: MODEL, text: own.value }).toString()));
  };
  return h("section", { class: "opening", "aria-label": "One word decides" },
    h("p", {}, "What is “it”, the animal or the street? The last word decides, and the German pronoun says it: es for das Tier, sie for die Straße. A line shows where a head of the model looks as it writes."),
    ENDS.map(([last, pronoun]) => half({ last, pronoun, part, layer, head: Number(heads[0]) })),
    h("form", { class: "row own-sentence", onsubmit: go }, h("label", { for: "own-sentence" }, "Your sentence:"), own, h("button", { class: "quiet" }, "Translate it")),
    h("p", { class: "note" }, "Where a head looks is not yet what decides: ", h("a", { href: why }, "Why this word?"), " measures that."));
}

function half({ last, pronoun, part, layer, head }) {
  const text = `${TEXT}${last}.`;
  const host = h("div", { class: "word-pair in-columns" });
  const said = h("span", { class: "said", role: "status" });
  const link = h("a", {}, "All heads of this sentence");
  const element = h("div", { "data-end": last }, host, h("p", { class: "note" }, said, " ", link));
  live(host, (signal) => ownAttention({ model: MODEL, text, part, layer }, signal), ({ found, words }) => {
    link.href = addressOf("attention", new URLSearchParams({ model: MODEL, text, row: pieceOf(found.rows.pieces, pronoun) }).toString());
    fill(host, { written: words.rows.pieces, read: words.columns.pieces, weights: words.maps.get(head), pronoun, said });
  })();
  return element;
}

/** The two texts and the lines of the word that is pointed at, of the pronoun otherwise. */
function fill(host, { written, read, weights, pronoun, said }) {
  const { layer, draw } = wordLines(host);
  const own = pieceOf(written, pronoun);
  const end = read.length - 1; // the mark of the end, which is not shown: no line can lead there
  const above = read.map((word) => h("span", { class: "word" }, spokenPiece(word)));
  const below = written.map((word, row) => h("button", {
    type: "button", class: "word",
    onpointerenter: () => look(row), onfocus: () => look(row), onclick: () => look(row), onpointerleave: () => look(own), onblur: () => look(own),
  }, spokenPiece(word)));
  function look(row) {
    const shares = [...weights.subarray(row * read.length, (row + 1) * read.length)];
    above.forEach((word, i) => word.style.setProperty("--weight", shares[i].toFixed(3)));
    draw(shares.map((weight, i) => ({ above: above[i], below: below[row], weight, strong: true, said: above[i] })).filter(({ weight }, i) => weight >= LEAST && i < end));
    below.forEach((word, i) => word.setAttribute("aria-pressed", String(i === row)));
    const most = shares.indexOf(Math.max(...shares));
    said.textContent = `“${below[row].textContent}” looks at ${most === end ? "the end of the text" : `“${above[most].textContent}”`}: ${Math.round(100 * shares[most])} % of its attention.`;
  }
  const line = (title, words) => [h("h3", {}, title), h("p", { class: "text" }, words.slice(0, -1).flatMap((word) => [word, " "]))];
  host.replaceChildren(...line("Text", above), ...line("Translation", below), layer);
  look(own);
}
