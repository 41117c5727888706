import { call, live } from "../api.js";
import { contextDefaults, contexts } from "../contexts.js";
import { button, choice, more, panel } from "../controls.js";
import { figure, folded, foldedSection, h, number, table } from "../dom.js";
import { facts } from "../draw/facts.js";
import { flowPicture, isMark, sharesOf } from "../draw/flow.js";
import { heatMap } from "../draw/heat.js";
import { lineChart } from "../draw/lines.js";
import { shownPiece, spokenPiece } from "../draw/links.js";
import { columnsPicture, streamRows } from "../draw/word_columns.js";
import { secondText } from "../second_text.js";
import { noModel, notedHead, placesOf, subjectDefaults, subjectFields } from "../subject.js";
import { renewWords } from "../words.js";

export const kinds = ["translator", "causal_lm", "encoder"];
const ROLES = {
  stream: "stream", memory: "encoder", norm: "norm", query: "query", key: "key", value: "value", bias: "bias",
  scores: "scores", weights: "weights", context: "mixed values", inner: "inner", routing: "routing", output: "output", sum: "+ sum",
};
const PLACES = { self: "self-attention", cross: "cross-attention", feedforward: "feed-forward", final: "after the last block" };
// In a student's words; the shapes stand beside the drawing.
const SAYS = {
  memory: "the source", norm: "numbers brought to one size", query: "what it seeks", key: "what it offers", value: "what it gives", bias: "by distance",
  scores: "how well query and key match", weights: "in shares", context: "the values, by these shares",
  routing: "which experts are asked", output: "what is added to the stream",
};
const BANDS = {
  self: { title: "Attention mixes the words", mixes: "all" }, cross: { title: "Cross-attention: the source", mixes: "all" }, feedforward: { title: "Feed-forward: word by word", mixes: "own" },
};
const MASKED = { title: "Masked: each word sees itself and those before it", short: "Masked: looks back", mixes: "back" };
const MEASURES = {
  shares: ["share of the output", "How much each part brought to the vector that leaves the last block. A column adds up to 1, which is all of it; below 0, a part pulls the other way.", "diverging"],
  added: ["length of the added vector", "Length of the vector that each sub-layer adds to a token's stream.", "sequence"],
  stream: ["length of the stream", "Length of the stream before the sum.", "sequence"],
  cosine: ["direction", "Cosine of the angle between the added vector and the stream: above 0 they agree, below 0 the vector takes away from the stream.", "diverging"],
};

export const counted = ["layer"];

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), second: "", given: "", part: "input", word: -1, measure: "shares", ...contextDefaults(studio),
  ...opened(studio, subjectDefaults(studio, kinds).model),
});

/** The block with the head that the model's card points at, or else the last one. */
function opened(studio, model) {
  const { part, layer } = notedHead(studio, model);
  // A head of cross-attention is seen on Attention; the block of a translator is the encoder's first.
  return part === "cross" ? { stack: "encoder", layer: 0 } : part ? { stack: part, layer } : { stack: "", layer: -1 };
}

export function mount({ root, side, state, studio }) {
  const models = placesOf(studio, kinds);
  if (!models.length) {
    root.append(noModel("a translator, a language model or a text encoder"));
    return;
  }
  // The defaults are those of the first model: another, of the address or of the page before, has its own block.
  const query = new URLSearchParams(location.search);
  if (state.values.model !== subjectDefaults(studio, kinds).model && !query.has("stack")) {
    state.set(Object.fromEntries(Object.entries(opened(studio, state.values.model)).filter(([name]) => !query.has(name))));
  }
  const second = secondText(state, () => models.find((place) => place.name === state.values.model)?.kind ?? "");
  const stack = choice(state, "stack", { label: "Stack", options: [["", "…"]] });
  const layer = choice(state, "layer", { label: "Block", options: [[-1, "the last"]] });
  const whole = h("div", { class: "result" });
  const carried = h("div", { class: "result" });
  const which = more("Another block", stack, layer);
  which.open = ["stack", "layer"].some((name) => query.has(name));
  side.append(
    panel(...subjectFields(state, studio, kinds, { hint: "Up to 4,000 characters, and as many pieces as the model takes." }), ...second.elements, which));
  const blocks = folded("Through all blocks: what each sub-layer adds to the stream",
    choice(state, "measure", { label: "Shown of the stream", options: Object.entries(MEASURES).map(([name, [title]]) => [name, title]) }), carried);
  blocks.open = state.differs(["measure"]);
  root.append(whole, contexts(state, studio), blocks);
  const shown = { flow: null, stream: null };
  const diagram = followed(whole, side, state, second);
  const signal = streamed(carried, state);

  const asked = () => {
    const { text: written, stack: name } = state.values;
    return written.trim() === "" ? null : { ...second.asked(), stack: name };
  };
  const flow = live(whole, async (stop) => {
    const settings = asked();
    return settings && call("block", "flow", { ...settings, layer: state.values.layer }, stop);
  }, (found) => {
    shown.flow = found;
    if (found) {
      stack.fill(Object.keys(found.stacks).map((name) => [name === found.stack && state.values.stack === "" ? "" : name, name]));
      layer.fill([[-1, "the last"], ...Array.from({ length: found.stacks[found.stack] }, (_, i) => [i, i + 1])]);
      second.written(found.target);
    }
    diagram(found);
  });
  const stream = live(carried, async (stop) => {
    const settings = asked();
    return settings && call("block", "stream", settings, stop);
  }, (found) => signal(shown.stream = found));
  state.watch((_, changed) => {
    const touched = (...names) => changed.some((name) => names.includes(name));
    // Another model or stack may not have the block; going back brings all of them at once.
    if (touched("model") && !touched("stack", "layer")) state.set({ stack: "", layer: -1 });
    else if (touched("stack") && !touched("layer")) state.set({ layer: -1 });
    second.arrange();
    if (touched("model", "text", "second", "given", "stack")) {
      flow();
      stream();
    } else if (touched("layer")) {
      flow();
    }
    if (touched("part", "word") && shown.flow) diagram(shown.flow);
    if (touched("measure") && shown.stream) signal(shown.stream);
  });
  second.arrange();
  flow();
  stream();
}

/** The token that is followed at first: of a language model the last word, which sees all others; else the second, as the first is often an article. */
function openedWord({ stacks, parts: [{ tokens }] }) {
  const last = "encoder" in stacks ? -1 : tokens.findLastIndex((piece) => !isMark(piece));
  return last < 0 ? Math.min(1, tokens.length - 1) : last;
}

/** Names that are short enough for a box; those of the stream say where it stands. */
function nameOf(part) {
  if (part.key === "input") return "stream in";
  if (part.key === "output") return "stream out";
  if (part.role === "inner") return "inner layer";
  return ROLES[part.role];
}

/** What a part does, in a few words; a norm tells the lengths of the words before and after it. */
function saidOf(part, parts) {
  if (part.role === "inner") return `${number(part.shape.at(-1))} neurons, for each word alone`;
  const before = parts.find(({ key }) => key === part.reads[0]);
  if (part.role !== "norm" || part.on_stream || !part.sizes || !before?.sizes) return SAYS[part.role];
  const range = ({ sizes, tokens }) => {
    const words = sizes.filter((_, i) => !isMark(tokens[i]));
    return words.length ? `${number(Math.min(...words), 3)}–${number(Math.max(...words), 3)}` : number(sizes[0], 3);
  };
  return `lengths ${range(before)} become ${range(part)}`;
}

/** Titles of the sub-layers: a part is a band when it is known what it does; a mixer without weights is no attention. */
function bandsOf({ parts, stack }) {
  const attends = (place) => parts.some((part) => part.place === place && part.role === "weights");
  return new Map(Object.entries({ ...BANDS, ...(stack === "decoder" ? { self: MASKED } : {}) })
    .map(([place, band]) => [place, band.mixes === "own" || attends(place) ? band : { title: "Mixes the words", mixes: band.mixes }]));
}

/** What a part does with the followed word, as a sentence with its numbers; other parts have the library's words. */
function toldOf(part, found, word) {
  const { tokens } = found.parts[0];
  const name = `“${spokenPiece(tokens[word])}”`;
  const follows = (each) => each?.sizes && each.tokens.join() === tokens.join();
  const size = (each) => number(each.sizes[word], 3);
  const before = found.parts.find(({ key }) => key === part.reads[0]);
  const change = follows(part) && follows(before) ? `: length ${size(before)} becomes ${size(part)}` : "";
  const length = follows(part) ? `, length ${size(part)}` : "";
  const width = number(part.shape.at(-1));
  const [others, where] = part.place === "cross" ? ["each word of the source", " in the source"] : ["every word", ""];
  const says = {
    stream: part.key === "input" ? `${name} comes in as a vector of ${width} numbers${length}. Follow it with Next.` : `${name} leaves as a vector of ${width} numbers again${length}: the next block can begin with it.`,
    norm: `A norm brings all words to about one size${change}.`,
    query: `The vector of ${name}, through a matrix, becomes its query: what it seeks${where}.`,
    key: `Through another matrix, ${others} gets a key: what it offers.`,
    value: `Through a third, ${others} gets a value: what it gives to those that look at it.`,
    scores: `The query of ${name} times the key of ${others}: how well the two match.`,
    weights: sharesTold(part, found, word, name),
    context: `The values are added up by these shares: what ${name} hears${where}.`,
    inner: `${width} neurons look at ${name} alone: no other word counts here.`,
    output: `A last matrix, and the vector is ready to be added to the stream${length}.`,
    sum: `The stream of ${name} goes on with the addition${change}.`,
  };
  return says[part.role] ?? part.about;
}

/** The two words that get most of a word's attention. */
function sharesTold(part, found, word, name) {
  const looked = sharesOf(part, found.parts, word);
  if (!looked) return SAYS.weights;
  const best = looked.row.map((share, i) => [share, i]).sort((a, b) => b[0] - a[0]).slice(0, 2);
  return `Softmax makes shares of the scores: ${name} looks at ${best.map(([share, i]) => `“${spokenPiece(looked.tokens[i])}” ${Math.round(100 * share)} %`).join(", then at ")}.`;
}

/** Through the parts of a block one by one, with what each does. */
function walk(state) {
  let found = null;
  const at = () => Math.max(0, found.parts.findIndex(({ key }) => key === state.values.part));
  const go = (by) => state.set({ part: found.parts[at() + by].key });
  const back = button("Back", () => go(-1), { quiet: true });
  const next = button("Next", () => go(1));
  const place = h("span", { class: "note" });
  const told = h("p", { class: "said", role: "status" });
  const show = (now, word) => {
    found = now;
    const part = found.parts[at()];
    back.disabled = at() === 0;
    next.disabled = at() === found.parts.length - 1;
    place.textContent = `${at() + 1} of ${found.parts.length}`;
    told.textContent = toldOf(part, found, word);
  };
  return { element: h("div", { class: "row walk-block" }, back, next, place, told), show };
}

function followed(host, side, state, second) {
  const sentence = h("p", { class: "sentence note" });
  const lesson = figure("The block");
  const picture = figure("Its parts, one by one");
  const detail = h("div", { class: "detail", role: "region", "aria-label": "The chosen tensor", "aria-live": "polite" });
  const words = h("div", {});
  const steps = walk(state);
  picture.host.before(words, steps.element);
  const both = h("div", {}, picture.element);
  const opened = foldedSection("Open the block", both);
  opened.open = new URLSearchParams(location.search).has("part");
  opened.addEventListener("toggle", () => (detail.hidden = !opened.open || opened.hidden));
  // Beside the drawing, where it is seen at once; a narrow screen has its settings in a drawer.
  const wide = matchMedia("(min-width: 72rem)");
  const put = () => (wide.matches ? side.append(detail) : both.append(detail));
  wide.addEventListener("change", put);
  put();
  const hint = h("p", { class: "note" }, "Type a text to send through the model.");
  host.append(hint, second.answer, lesson.element, sentence, opened);
  return (found) => {
    hint.hidden = found !== null;
    opened.hidden = sentence.hidden = found === null;
    detail.hidden = opened.hidden || !opened.open;
    lesson.element.hidden = true;
    if (found === null) {
      second.answer.hidden = true;
      return;
    }
    second.answer.hidden ||= found.stack === "encoder"; // it reads the text alone
    const names = new Map(found.parts.map((part) => [part.key, nameOf(part)]));
    const chosen = found.parts.find((part) => part.key === state.values.part) ?? found.parts[0];
    const norms = !found.parts.some((part) => part.role === "norm") ? "It has no norms"
      : found.norm_first ? "The input of each sub-layer is normalized (pre-norm), but not the stream that runs past it"
      : "Norms stand on the stream itself, after each sum (post-norm)";
    const { tokens, shape } = found.parts[0];
    const word = state.values.word < 0 ? openedWord(found) : Math.min(state.values.word, tokens.length - 1);
    const marks = [...new Set(tokens.filter(isMark))].map(shownPiece);
    opened.querySelector("h2").textContent = `Open the block: ${found.parts.length} parts, step by step`;
    picture.words.textContent = `Small bars: how long each word's vector is${marks.length ? `; pale: ${marks.map((mark) => `“${mark}”`).join(" and ")}` : ""}.`;
    sentence.replaceChildren(`Block ${found.layer + 1} of the ${found.stack}: ${norms[0].toLowerCase()}${norms.slice(1)}.`);
    const bands = bandsOf(found);
    flowPicture(picture.host, {
      parts: found.parts, names, says: new Map(found.parts.map((part) => [part.key, saidOf(part, found.parts)])), word, bands, chosen: chosen.key, choose: (key) => state.set({ part: key }, { step: true }),
      describe: `The parts of block ${found.layer + 1} of the ${found.stack}, in order. Arrow keys move between them, Enter chooses.`,
    });
    explain(detail, chosen, names);
    steps.show(found, word);
    renewWords(words, { pieces: tokens, chosen: word, choose: (to) => state.set({ word: to }, { step: true }), label: "The token that is followed" });
    const rows = streamRows(found.parts);
    const weights = found.parts.find(({ role }) => role === "weights");
    const heads = weights?.shape[weights.axes.indexOf("heads")] ?? 1;
    lesson.element.hidden = rows === null;
    // Going through the stops opens it, and it is all there is where the words have no columns.
    if (rows === null || state.values.part !== "input") opened.open = true;
    if (rows === null) return;
    lesson.element.querySelector("h3").textContent = `Block ${found.layer + 1} of ${found.stacks[found.stack]} of the ${found.stack}`;
    lesson.words.textContent = `A column is a word, with ${rows[0].vectors[0].length} of its ${number(shape.at(-1))} channels: click one to follow it, point at a cell for its sum. Blue is above 0, ochre below; the lines are those of head 1${heads > 1 ? ` of ${heads}, and what is added comes from all` : ""}.`;
    columnsPicture(lesson.host, { rows, parts: found.parts, bands, word, choose: (to) => state.set({ word: to }, { step: true }) });
  };
}

function explain(host, part, names) {
  const lengths = h("div", {});
  const place = PLACES[part.place] ?? part.place;
  host.replaceChildren(
    h("h3", {}, `${names.get(part.key).replace("+ ", "")}${place ? ` · ${place}` : ""}`), h("p", { id: "about-part" }, part.about),
    facts([
      ["shape", part.shape.join(" × "), "shape"],
      ...Object.entries(part.figures).map(([name, value]) => [name === "mean of the largest" ? "largest weight of a row, mean" : name, number(value), name.replaceAll(" ", "-")]),
    ]),
    h("p", { class: "note" }, part.axes.map((axis, i) => `${axis} ${part.shape[i]}`).join(", ")),
    lengths, h("p", { class: "note" }, "In Python (from 0): ", h("code", { id: "address" }, part.address)));
  if (part.sizes === null) return;
  lengths.append(folded("Length of each token's vector", () => table("Length of each token's vector", ["token", "length"], part.sizes.map((size, i) => [shownPiece(part.tokens[i]), number(size)]))));
}

function streamed(host, state) {
  const map = figure("By sub-layer and token");
  const curve = figure("Length of the stream and of what is added", "The stream before each sub-layer, and the vector that is added to it; means over the tokens.");
  const numbers = h("div", {});
  const body = h("div", {}, numbers, map.element, folded("Length of the stream through all blocks", curve.element));
  host.append(body);
  return (found) => {
    body.hidden = found === null;
    if (found === null) return;
    const [title, about, kind] = MEASURES[state.values.measure];
    const mean = (row) => row.reduce((a, b) => a + b, 0) / row.length;
    const plain = (name) => name.replace(/^\d+/, (block) => Number(block) + 1).replace(".", " ").replace("feedforward", "feed-fwd");
    const sublayers = found.sublayers.map(plain);
    const names = state.values.measure === "shares" ? found.parts.map(plain) : sublayers;
    const values = found[state.values.measure];
    numbers.replaceChildren(facts(found.parts.map((part, i) => [part, `${number(100 * mean(found.shares[i]), 3)} %`, `share-${part}`])
      .filter(([part]) => part === "embedding").map(([, ...rest]) => ["how much of the output comes from the embedding", ...rest])));
    map.element.querySelector("h3").textContent = `By sub-layer and token: ${title}`;
    map.words.textContent = about;
    heatMap(map.host, {
      values, kind, cell: 34, flat: values[0].length > 40, rows: { label: "", names }, columns: { label: "token", names: found.rows.map(shownPiece) },
      describe: `${title} by sub-layer and token.`,
    });
    lineChart(curve.host, {
      series: [["the stream", found.stream], ["added vector", found.added]].map(([name, rows]) => ({ name, dots: true, points: rows.map((row, i) => [i, mean(row)]) })),
      x: { label: "sub-layer, in order (ff: feed-forward)", text: (i) => sublayers[i]?.replace("feed-fwd", "ff") ?? "" }, y: { label: "length", zero: true }, describe: "Length of the stream and of what is added to it, by sub-layer in order.",
    });
  };
}
