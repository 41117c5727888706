// The picture of the start page: a word at the end of a sentence decides what "it" is, and a head of
// the model shows it.

import { addressOf } from "./address.js";
import { call, live } from "./api.js";
import { h } from "./dom.js";
import { linkPicture, spokenPiece } from "./draw/links.js";
import { notedHead, pieceOf } from "./subject.js";
import { joinWords, weightMaps } from "./words.js";

const MODEL = "en-de";
const TEXT = "The animal didn't cross the street because it was too ";
const ENDS = [["tired", "es"], ["wide", "sie"]]; // German names a thing by the gender of its noun
const LEAST = 0.05; // weights below draw no line

const wordOf = (piece) => (piece === "</s>" ? "(the end)" : spokenPiece(piece));

/** Two sentences that differ in their last word, and what the pronoun of each translation looks at; null without the model or its page. */
export function openingPicture(studio) {
  const { part, layer, heads } = notedHead(studio, MODEL);
  // An exported course of a few pages may lack the one whose answers these are.
  if (!part || !studio.pages.some(({ name }) => name === "attention")) return null;
  return h("section", { class: "opening", "aria-label": "One word decides" },
    h("p", {}, "What is “it”, the animal or the street? One word at the end decides. Point at a word of the translation: lines show where a head of the model looks as it writes it."),
    h("div", {}, ENDS.map(([last, pronoun]) => half({ last, pronoun, part, layer, head: Number(heads[0]) }))));
}

function half({ last, pronoun, part, layer, head }) {
  const text = `${TEXT}${last}.`;
  const host = h("div", { class: "drawing" });
  const link = h("a", {}, "All heads of this sentence");
  const element = h("div", { "data-end": last }, h("p", { class: "sentence" }, TEXT, h("strong", {}, last), "."), host, h("p", {}, link));
  // The request of the page Attention as it opens, so that an exported course has recorded it.
  live(host, async (signal) => {
    const found = await call("attention", "show", { model: MODEL, text, second: "", given: "own", part, layer, heads: [head] }, signal);
    return { found, words: joinWords({ ...found, maps: weightMaps(found) }) };
  }, ({ found, words }) => {
    const row = pieceOf(words.rows.pieces, pronoun);
    link.href = addressOf("attention", new URLSearchParams({ model: MODEL, text, row: pieceOf(found.rows.pieces, pronoun) }).toString());
    linkPicture(host, {
      rows: { pieces: words.rows.pieces.map(wordOf), label: "translation" },
      columns: { pieces: words.columns.pieces.map(wordOf), label: "text" },
      heads: [{ head, weights: words.maps.get(head) }], colour: () => "var(--series-1)", least: LEAST,
      chosen: row < 0 ? null : { side: "row", index: row }, choose: () => {},
    });
  })();
  return element;
}
