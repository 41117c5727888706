// The model and the sentence of a page: its first example, and the controls to change both.

import { choice, text } from "./controls.js";
import { h } from "./dom.js";

/** The places whose models are of some kinds. */
export const placesOf = (studio, kinds) => studio.places.filter((place) => kinds.includes(place.kind));

/** The place of a model; undefined where the studio does not have it. */
export const placeNamed = (studio, model) => studio.places.find((place) => place.name === model);

/** The settings `model` and `text` with which a page opens: the first model and its first example. */
export function subjectDefaults(studio, kinds) {
  const place = placesOf(studio, kinds)[0];
  return { model: place?.name ?? "", text: place?.examples[0]?.text ?? "" };
}

/** What a page without a fitting model says. */
export const noModel = (kind) => h("p", { class: "sentence" }, `None of the models at hand is ${kind}. Start the studio with one: `, h("code", {}, "heedful studio MODEL"), ".");

/** Heads that find a word of a relation better than a fixed place: all of the interval of their gain is above 0. */
export const clearHeads = (studio, model) => (placeNamed(studio, model)?.noted_heads ?? []).filter((each) => each.gain[0] > 0);

/** The head that a model's card points at, as settings of a page of attention: nothing where it points at none. */
export function notedHead(studio, model) {
  const noted = placeNamed(studio, model)?.noted_head;
  return noted ? { part: noted.part, layer: noted.layer - 1, heads: [String(noted.head - 1)] } : {};
}

/** The head of a part in which an example shows something, as the model's card says; undefined without one. */
export function exampleHead(studio, model, part) {
  const place = placeNamed(studio, model);
  return [place?.noted_head, ...(place?.example_heads ?? [])].find((each) => each?.part === part);
}

/** Block and head to open: those that are set, else those of an example's head, else the first head. */
export function openedHead(own, { layer, head }) {
  const block = layer < 0 && own ? own.layer - 1 : layer;
  return { layer: block, head: head >= 0 ? head : block === own?.layer - 1 ? own.head - 1 : 0 };
}

/** The place of a word among pieces, or −1. */
export const pieceOf = (pieces, word) => pieces.findIndex((piece) => piece.replace(/^\u2581/, "") === word);

/** Controls for the model, its examples, with `more` of the page's own, and the text. */
export function subjectFields(state, studio, kinds, { rows = 2, hint = null, label = "Text", more = [] } = {}) {
  const places = placesOf(studio, kinds);
  const example = h("select", { id: "example" });
  const fill = () => {
    const { model } = state.values;
    const own = [...more.filter((each) => each.model === model), ...(places.find((place) => place.name === model)?.examples ?? [])];
    example.replaceChildren(h("option", { value: "" }, "your own"), ...own.map((each) => h("option", { value: each.text, title: each.about }, each.text)));
    example.value = own.some((each) => each.text === state.values.text) ? state.values.text : "";
  };
  example.addEventListener("change", () => example.value && state.set({ text: example.value }, { step: true }));
  state.watch((_, changed) => {
    if (changed.includes("model") || changed.includes("text")) fill();
  });
  fill();
  return [
    places.length > 1 ? choice(state, "model", { label: "Model", options: places.map((place) => place.name) }) : null,
    h("div", { class: "field" }, h("label", { for: "example" }, "Example"), example),
    text(state, "text", { label, rows, hint }),
  ];
}
