// What an opened box of the whole model shows: its sizes, the numbers of the sentence at this point,
// and the pages that show more.

import { addressOf } from "./address.js";
import { call, live } from "./api.js";
import { engineering, h, number, table } from "./dom.js";
import { facts } from "./draw/facts.js";
import { headGrid } from "./draw/head_grid.js";
import { shownPiece, spokenPiece } from "./draw/links.js";
import { shownBlock } from "./draw/model_figure.js";
import { largest, strip } from "./draw/strip.js";

const MOST_LENGTHS = 24; // tokens with a bar
const ROLES = { query: "queries", key: "keys", value: "values", context: "mixed values", inner: "inner layer", sum: "stream", norm: "normed" };

/** Kinds of models that read text, with the second text with which they do so on the page Block. */
const TEXTS = { translator: "own", causal_lm: "none", encoder: "none" };

/**
 * Fill an open box.
 * @param panel where
 * @param view {studio, model, text, kind: of the place, block, walk: the tour's answer or null}
 */
export function boxInside(panel, stack, box, view) {
  const layer = shownBlock(stack, view.block);
  panel.append(facts([["parameters", number(box.parameters), "parameters"], ...box.facts.map(([name, value]) => [name, String(value)])]));
  const body = h("div", {});
  panel.append(body, links(stack, box, layer, view));
  if (!(view.kind in TEXTS)) return;
  if (!view.text.trim()) {
    body.append(h("p", { class: "note" }, "Type a sentence for its numbers."));
    return;
  }
  const place = { stack, box, layer, ...view };
  live(body, (signal) => numbers(place, signal), (parts) => body.replaceChildren(...parts.filter(Boolean)))();
}


/** The numbers of the sentence in a box, as elements. */
async function numbers({ stack, box, layer, model, text, kind, walk, studio }, signal) {
  const asked = { model, text, second: "", given: TEXTS[kind] };
  const flow = (number) => call("block", "flow", { ...asked, stack: stack.name, layer: number }, signal);
  const toured = walk?.stack === stack.name;
  if (box.kind === "softmax" || box.kind === "linear") return walk && walk.candidates.length ? [candidates(walk, box.kind)] : [];
  if (box.key === "final") return tensors((await flow(stack.layers - 1)).parts, (part) => part.key === "final.norm");
  if (!box.sublayer) {
    const summands = toured ? strips(walk, box) : null;
    return summands ? [summands] : tensors((await flow(0)).parts, (part) => part.key === "input");
  }
  const own = (part) => part.key.startsWith(`${box.sublayer}.`) || (part.place === "" && box.kind === "sum");
  const found = await flow(layer);
  if (box.kind === "norm") return tensors(found.parts, (part) => own(part) && part.role === "norm");
  if (box.kind === "sum") return tensors(found.parts, (part) => [`${box.sublayer}.output`, `${box.sublayer}.sum`, ...(box.note ? [`${box.sublayer}.norm`] : [])].includes(part.key));
  const inside = tensors(found.parts, (part) => own(part) && !part.on_stream && part.role !== "norm", false);
  if (box.heads) return [await heads({ stack, box, layer, asked, studio }, signal), ...inside];
  if (box.kind === "network" && toured) {
    const opened = walk.layer === layer ? walk : await call("tour", "walk", { model, text, chosen: [], layer, head: 0 }, signal);
    return [opened.inner && neurons(opened), ...inside];
  }
  return inside;
}

/** A table of tensors, and bars for the lengths of the last one's vectors. */
function tensors(parts, which, bars = true) {
  const chosen = parts.filter(which);
  const last = chosen.findLast((part) => part.sizes);
  const figure = (part) => Object.entries(part.figures).map(([name, value]) => `${name} ${number(value, 3)}`).join(", ");
  return [
    table("Tensors of the sentence here", ["tensor", "shape", "numbers"], chosen.map((part) => [ROLES[part.role] ?? part.role, part.shape.slice(1).join(" × "), figure(part)])),
    bars && last ? lengths(last) : null,
  ];
}

function lengths({ tokens, sizes }) {
  const most = Math.max(...sizes, 1e-9);
  return h("figure", { class: "model-lengths" }, h("figcaption", {}, "Length of each token’s vector"),
    h("ol", {}, sizes.slice(0, MOST_LENGTHS).map((size, i) => h("li", {}, h("span", { dir: "auto" }, shownPiece(tokens[i])), bar(size / most), h("span", { class: "count" }, number(size, 3))))));
}

function bar(share) {
  const made = h("span", { class: "bar" });
  made.style.width = `${100 * share}%`;
  return h("span", {}, made);
}

/** Thumbnails of the heads of a layer; each leads to its lines. */
async function heads({ stack, box, layer, asked, studio }, signal) {
  const part = box.kind === "cross" ? "cross" : stack.name;
  const { shape: [, ...shape], shades } = await call("attention", "overview", { ...asked, part }, signal);
  const each = shape.reduce((a, b) => a * b);
  // Layers of attention are counted without the blocks that have none.
  const index = stack.blocks.slice(0, layer).filter((block) => block.some(({ key, heads: has }) => key === box.key && has)).length;
  const own = btoa(atob(shades).slice(index * each, (index + 1) * each));
  const host = h("div", {});
  const has = studio.pages.some((page) => page.name === "attention");
  headGrid(host, { shape: [1, ...shape], shades: own, first: layer }, (_, head) => {
    if (has) location.assign(addressOf("attention", query(asked, { part, layer: index + 1, heads: head + 1 })));
  }, () => undefined);
  return h("figure", { class: "model-heads" }, h("figcaption", {}, `Heads of block ${layer + 1}: rows look, columns are looked at. Click one for its lines.`), host);
}

/** The strongest neurons of each token. */
function neurons(walk) {
  const most = largest(...walk.inner);
  return h("figure", { class: "model-strips" }, h("figcaption", {}, `The ${walk.inner[0].length} strongest of ${number(walk.inner_width)} channels, and the share that is active`),
    h("ol", {}, walk.inner.map((row, i) => h("li", {}, h("span", { dir: "auto" }, shownPiece(walk.pieces[i])), strip(row, most), h("span", { class: "count" }, `${number(100 * walk.active[i], 2)} %`)))));
}

/** Vectors of the tokens, of their positions, or the sum of both. */
function strips(walk, box) {
  const own = box.kind === "positions" ? walk.positions : walk.tokens ?? walk.embedding;
  if (!own) return null;
  const most = largest(...(walk.tokens ?? []), ...(walk.positions ?? []), ...walk.embedding);
  return h("figure", { class: "model-strips" }, h("figcaption", {}, `The first ${own[0].length} of ${number(walk.width)} channels, ${box.kind === "positions" ? "of each position" : "of each piece and its number"}`),
    h("ol", {}, own.map((row, i) => h("li", {}, h("span", { dir: "auto" }, shownPiece(walk.pieces[i])), strip(row, most), h("span", { class: "count" }, box.kind === "positions" ? String(i) : String(walk.ids[i]))))));
}

function candidates(walk, kind) {
  const most = Math.max(...walk.candidates.map((each) => Math.abs(each.logit)), 1e-9);
  const shown = walk.candidates.slice(0, 6);
  return h("figure", { class: "model-lengths" }, h("figcaption", {}, kind === "softmax" ? "The most probable pieces" : "The highest logits"),
    h("ol", {}, shown.map((each) => h("li", {}, h("span", { dir: "auto" }, each.end ? "(the end)" : spokenPiece(each.piece)),
      bar(kind === "softmax" ? each.probability : Math.abs(each.logit) / most), h("span", { class: "count" }, kind === "softmax" ? `${number(100 * each.probability, 3)} %` : number(each.logit, 3))))));
}

const query = ({ model, text }, more) => new URLSearchParams({ ...(model ? { model } : {}), ...(text ? { text } : {}), ...more }).toString();

/** The pages that show more of a box. */
function links(stack, box, layer, view) {
  const { model, text, kind, studio, walk } = view;
  const part = box.kind === "cross" ? "cross" : stack.name;
  const toured = walk?.stack === stack.name;
  const nth = layer + 1; // addresses count from 1
  const block = ["Block: its tensors", "block", { stack: stack.name, layer: nth, part: box.key }];
  const stop = (words, at, more = {}) => (toured ? [words, "tour", { stop: at, ...more }] : null);
  const all = {
    embedding: [stop("The tour: the vectors", 2)],
    positions: [["Positions: all kinds", "positions", null], stop("The tour: the sum", 2)],
    attention: [["Attention: all lines", "attention", { part, layer: nth }], stop("The tour: one head", 4, { layer: nth }), block],
    cross: [["Attention: all lines", "attention", { part, layer: nth }], ["Translate: the words", "translate", {}], block],
    network: [stop("The tour: its neurons", 8, { layer: nth }), block],
    mixer: [block],
    norm: [box.sublayer ? block : null],
    sum: [block],
    linear: [walk ? ["The tour: logits", "tour", { stop: 10 }] : null],
    softmax: [walk ? ["The tour: the next word", "tour", { stop: 11 }] : null, kind === "encoder" ? null : ["Decoding: word by word", "decoding", {}]],
  };
  const elsewhere = { vision: ["Image: attention between patches", "image", { model }], sounds: ["Transformers everywhere", "everywhere", { records: model }], records: ["Transformers everywhere", "everywhere", { records: model }] };
  const own = kind in TEXTS ? all[box.kind] ?? [] : [elsewhere[kind]];
  return h("p", { class: "row model-more" }, own.filter((each) => each && studio.pages.some((page) => page.name === each[1]))
    .map(([words, page, settings]) => h("a", { href: addressOf(page, settings === null ? "" : query({ model: kind in TEXTS ? model : "", text }, settings)) }, words)));
}

/** How large a model is, in a sentence. */
export function toldOf(found, name) {
  const blocks = found.stacks.map((stack) => `${stack.name === "encoder" ? "an encoder" : "a decoder"} of ${number(stack.layers)} ${stack.layers === 1 ? "block" : "blocks"}`).join(" and ");
  return `${name}: ${blocks}, with ${engineering(found.parameters)} parameters (params), the numbers that training learned. ${found.stacks.length > 1 ? "The encoder reads the sentence, the decoder writes." : "The input is below, the output above."} Click a box to open it.`;
}
