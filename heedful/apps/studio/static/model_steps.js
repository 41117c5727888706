// Step by step on a model: one query of one head, from its products to what it takes away.

import { call, live } from "./api.js";
import { choice, more } from "./controls.js";
import { folded, h, isStill, number, table } from "./dom.js";
import { barChart } from "./draw/bars.js";
import { series } from "./draw/colours.js";
import { shownPiece, spokenPiece } from "./draw/links.js";
import { largest, strip } from "./draw/strip.js";
import { secondText } from "./second_text.js";
import { exampleHead, openedHead, pieceOf, placesOf, subjectDefaults, subjectFields } from "./subject.js";
import { renewWords } from "./words.js";

export const KINDS = ["translator", "causal_lm", "encoder"];
const SHORT = { channels: 8, cell: [7, 6], number: [18, 6] }; // pixels of small matrices
const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };

/** The models that read text. */
export const reads = (studio) => placesOf(studio, KINDS);

export const followDefaults = (studio) => ({
  on: "typed", ...subjectDefaults(studio, KINDS), second: "", given: "",
  part: "", layer: -1, head: -1, row: -1,
});

/** A number or name in the colour of its row or its column, which it keeps through all steps. */
export const tinted = (content, index, side, shift = 1) => h("span", { class: `tint-${side}`, style: { color: series(side === "row" ? index : index + shift) } }, content);

export const BIAS = 3;
export const MASK = 4;

/** The place of the step that is reached among the stages there are: steps count from 1, as they are shown. */
export const reached = (there, { stage }) => Math.min(there.length, Math.max(1, Math.round(stage))) - 1;

/** The step that is reached, or all below each other, of the stages there are. */
export function inPlace(parts, values, names, there) {
  const at = reached(there, values);
  return there.slice(values.all ? 0 : at, values.all ? there.length : at + 1).map((stage) => h("section", { "data-stage": stage, class: stage === there[at] ? "reached" : null },
    h("h2", {}, `${there.indexOf(stage) + 1}. ${names[stage]}`), parts[stage]()));
}

/** How a weight comes about: e to the power of a score less the highest, divided by the sum. */
export const exponential = (score, highest, power, sum) => h("span", { class: "term" }, "e", h("sup", {}, `${number(score, 3)} − ${highest < 0 ? `(${number(highest, 3)})` : number(highest, 3)}`), ` ÷ ${number(sum)} = `, power, ` ÷ ${number(sum)}`);

const ARRIVAL = 420; // milliseconds in which a line's result is there

/** Let the lines of sums arrive one after another: the terms light up, then their result slides out of them. */
export function arrive(host) {
  const lines = isStill() ? [] : [...host.querySelectorAll(".reached .sums tr")];
  const pace = Math.min(160, 1600 / Math.max(1, lines.length));
  lines.forEach((line, i) => {
    const timing = { delay: i * pace, duration: ARRIVAL, fill: "backwards", easing: "ease-out" };
    const [terms, result] = [line.querySelector("td"), line.querySelector("strong")];
    terms.animate([{ background: "transparent" }, { background: "var(--tint)" }, { background: "transparent" }], timing);
    result.animate([{ opacity: 0, translate: "-5rem 0" }, { opacity: 0.3, translate: "-3rem 0" }, { opacity: 1, translate: "0 0" }], timing);
  });
}

/**
 * Lines of a sum: a name, how it comes about, what it comes to.
 * @param long whether the result stands below
 */
export function sums(lines, long = false) {
  const cells = (how, result) => (long ? [h("td", {}, how, how ? h("br", {}) : "", "= ", h("strong", {}, result))]
    : [h("td", {}, how), h("td", {}, "= "), h("td", {}, h("strong", {}, result))]);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The numbers of the chosen query" },
    h("table", { class: "figures sums" }, h("tbody", {}, lines.map(([name, how, result]) =>
      h("tr", {}, h("th", { scope: "row" }, name), cells(how, result))))));
}

/**
 * The settings and the stages.
 * @param options {names: of the stages, stagesOf: those there are, by whether a bias and a mask is,
 *   arrived: called when that may have changed}
 */
export function followed(state, studio, { names, stagesOf, arrived }) {
  const models = reads(studio);
  const kindOf = () => models.find((place) => place.name === state.values.model)?.kind ?? "";
  const second = secondText(state, kindOf);
  const fields = {
    part: choice(state, "part", { label: "Attention of", options: [["", "…"], ...Object.entries(PARTS)] }),
    layer: choice(state, "layer", { label: "Layer", options: [[-1, "the last"], ...(state.values.layer < 0 ? [] : [[state.values.layer, String(state.values.layer + 1)]])] }),
    head: choice(state, "head", { label: "Head", options: [[state.values.head, String(Math.max(0, state.values.head) + 1)]] }),
  };
  const others = second.elements.length ? [more("More settings", ...second.elements)] : [];
  const settings = [...subjectFields(state, studio, KINDS, { rows: 1 }), ...others, ...Object.values(fields)];
  const body = h("div", {});
  let last = null;
  const ask = live(body, async (signal) => {
    const { text: typed, part, layer, head, row } = state.values;
    if (typed.trim() === "") return null;
    // Where nothing is chosen: the head in which the first stack shows something in an example, and the word that it is about.
    const first = kindOf() === "causal_lm" ? "decoder" : "encoder";
    const own = part === first || part === "" ? exampleHead(studio, state.values.model, first) : undefined;
    const opened = { part: own?.part ?? part, ...openedHead(own, { layer, head }) };
    const follow = async (at) => ({ ...await call("steps", "follow", { ...second.asked(), ...opened, row: at }, signal), head: opened.head });
    const found = await follow(Math.max(0, row));
    const pointed = row < 0 && own ? pieceOf(found.rows, own.word) : -1;
    // Else of a decoder the last word: from left to right it has the most to look at.
    const place = row < 0 && pointed < 0 && found.part === "decoder" ? found.rows.findLastIndex((piece) => /^[^<].*\p{L}|^\p{L}/u.test(piece)) : pointed;
    return place > 0 ? follow(place) : found;
  }, (found) => {
    last = found;
    if (found) fill(found);
    show();
    arrived();
  });
  function fill(found) {
    const count = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
    const options = {
      part: found.parts.map((part) => [part, PARTS[part]]), layer: found.blocks.map((number, i) => [i, String(number + 1)]), head: count(found.heads),
    };
    for (const [name, list] of Object.entries(options)) fields[name].fill(list);
    fields.part.querySelector("select").value = found.part;
    fields.layer.querySelector("select").value = String(found.layer);
    fields.head.querySelector("select").value = String(found.head);
    second.written(found.target);
  }
  const [words, told] = [h("div", {}), h("div", {})];
  body.append(second.answer, words, told);
  const has = () => ({ bias: last?.biased ?? true, mask: last ? last.hidden > 0 : true });
  function show() {
    words.hidden = second.answer.hidden = !last;
    told.replaceChildren(...(last ? stages(last, state.values, names, stagesOf(has())) : [h("p", { class: "note" }, "Type a text to follow one of its words.")]));
    if (!last) return;
    second.written(last.target);
    renewWords(words, { pieces: last.rows, chosen: last.row, choose: (row) => state.set({ row }, { step: true }), label: "Click a word to make it the query" });
  }
  return {
    fields: settings,
    body,
    has,
    inShort: () => (last ? stagesInShort(last, names) : []),
    query: () => (last ? { word: spokenPiece(last.rows[last.row]), colour: last.row } : { word: "", colour: 0 }),
    /** Heed that settings have changed. */
    changed(which) {
      if (which.length === 1) state.set(begun(which[0]));
      second.arrange();
      if (last && which.every((name) => name === "stage" || name === "all")) {
        show();
        if (which.includes("stage")) arrive(told);
      }
      else ask();
    },
  };
}

/** The numbers of each stage as small matrices, a row for each key. */
function stagesInShort(found, names) {
  const [first, column] = [(vector) => vector.slice(0, SHORT.channels), (of, more = {}) => [{ values: found.keys.map((key) => [of(key)]), cell: SHORT.number, followed: "column", ...more }]];
  const vectors = (of) => ({ values: found.keys.map((key) => first(of(key))), cell: SHORT.cell, followed: null });
  const hidden = found.keys.map(({ score }) => [score === null]);
  const biased = (key) => key.scaled + (key.bias ?? 0);
  return [[{ values: [first(found.query)], cell: SHORT.cell }, vectors((key) => key.vector), vectors((key) => key.value)], column((key) => key.raw), column((key) => key.scaled), column(biased),
    column(biased, { hidden }), column((key) => key.weight, { kind: "share", hidden }), [{ values: [first(found.mixed)], cell: SHORT.cell }]].map((matrices, stage) => ({ stage, name: names[stage], matrices }));
}

/** What begins anew when one thing alone is chosen. */
function begun(name) {
  if (name === "model") return { part: "", layer: -1, head: -1, row: -1, given: "", second: "" };
  if (name === "part") return { layer: -1, head: -1, row: -1 };
  return ["text", "second", "given"].includes(name) ? { row: -1 } : {};
}

const signed = (value, digits = 3) => [value < 0 ? "− " : "+ ", number(Math.abs(value), digits)];

function stages(found, values, names, there) {
  const shift = found.part === "cross" ? 1 : 0; // in self-attention a word has one colour, as query and as key
  const key = (index) => tinted(`${index + 1}: ${shownPiece(found.columns[index])}`, index, "column", shift);
  const query = () => tinted(`“${spokenPiece(found.rows[found.row])}”`, found.row, "row");
  const lines = (how, result) => sums(found.keys.map((each) => [key(each.key), how(each), result(each)]));
  const own = (each, value, digits = 4) => tinted(number(value, digits), each.key, "column", shift);
  const vector = (numbers, digits = 3) => `(${numbers.map((value) => number(value, digits)).join(", ")})`;
  const product = (each) => {
    const told = each.leading.map(([channel], i) => [i ? " + " : "", h("span", { class: "term" }, tinted(number(found.query[channel], 3), found.row, "row"), " · ", own(each, each.vector[channel], 3), h("span", { class: "channel" }, ` [${channel + 1}]`))]);
    const rest = found.width - each.leading.length;
    return [...told, rest > 0 ? [" ", ...signed(each.rest), h("span", { class: "channel" }, ` [${rest} others]`)] : ""].flat();
  };
  const left = found.others.count ? [h("p", { class: "note" }, `The ${found.keys.length} keys with the most weight are shown; ${found.others.count === 1 ? "the other one has" : `the ${found.others.count} others have`} ${number(found.others.weight, 3)} of it${found.others.count === 1 ? "" : " together"}.`)] : [];
  const highest = Math.max(...found.keys.map((each) => each.score ?? -Infinity)); // of all: the keys with most weight are here
  const [mostKey, mostValue] = [largest(found.query, ...found.keys.map((each) => each.vector)), largest(...found.keys.map((each) => each.value))];
  const parts = [
    () => [h("p", {}, "The query of ", query(), ` has ${found.width} channels. It meets ${found.columns.length} keys, and each key has a value. Blue is above zero, ochre below.`,
      found.rotary ? " This model turns queries and keys by their positions (a rotary embedding); these are the turned ones." : ""),
    h("p", { class: "row" }, tinted("Query", found.row, "row"), strip(found.query, mostKey)),
    ...left, h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Keys and values" }, h("table", { class: "figures" },
      h("thead", {}, h("tr", {}, h("td", {}), ["key", "value"].map((title) => h("th", { scope: "col", class: "words" }, title)))),
      h("tbody", {}, found.keys.map((each) => h("tr", {}, h("th", { scope: "row" }, key(each.key)), h("td", { class: "words" }, strip(each.vector, mostKey)), h("td", { class: "words" }, strip(each.value, mostValue))))))),
    lengths(found)],
    () => [h("p", {}, "The query of ", query(), " is multiplied by every key, channel by channel, and the products are added up. The largest are shown with their channel in brackets, the others as their sum."),
      lines(product, (each) => own(each, each.raw))],
    () => [h("p", {}, `Every sum is multiplied by ${number(found.factor)}, which is 1 ÷ √${found.width} in most models`, found.softcap === null ? "." : `, then squashed to ${number(found.softcap)} × tanh(score ÷ ${number(found.softcap)}).`),
      lines((each) => [own(each, each.raw), ` × ${number(found.factor)}`], (each) => own(each, each.scaled))],
    () => [h("p", {}, "The number that this model adds for the positions of query and key."), lines((each) => [own(each, each.scaled), " ", ...signed(each.bias, 4)], (each) => own(each, each.scaled + each.bias))],
    () => [h("p", {}, `A query sees ${found.mask}. Of ${found.columns.length} keys ${found.hidden} are hidden from it.`),
      lines((each) => (each.score === null ? "hidden" : "visible"), (each) => (each.score === null ? "−∞" : own(each, each.score)))],
    () => {
      const host = h("div", { class: "drawing" });
      queueMicrotask(() => barChart(host, { values: found.weights, names: found.columns.map((_, i) => i + 1), describe: `The weights of all keys for ${spokenPiece(found.rows[found.row])}.`, label: "key" }));
      return [h("p", {}, "Each score s becomes eˢ, divided by the sum of all of them, so that the weights of ", query(), " add up to 1. The highest score is taken off first, which changes no weight."),
        lines((each) => (each.power === null ? "hidden" : exponential(each.score, highest, own(each, each.power), found.sum)), (each) => own(each, each.weight)), ...left, host];
    },
    () => [h("p", {}, "The values are added up, each times its weight: this is what ", query(), ` takes with it. The numbers are the channels in which the output is largest: ${found.channels.map((channel) => channel + 1).join(", ")}.`),
      h("p", { class: "row" }, tinted("Output", found.row, "row"), strip(found.mixed)),
      sums([...found.keys.filter((each) => each.score !== null).map((each) => [key(each.key), [own(each, each.weight), " × ", tinted(vector(each.values), each.key, "column", shift)], tinted(vector(each.parts), each.key, "column", shift)]),
        ...(found.others.count ? [[`${found.others.count} others`, "", vector(found.others.parts)]] : []), ["sum", "", tinted(vector(found.context, 4), found.row, "row")]], true),
      h("p", { class: "note" }, "The sum is ", h("code", {}, `${found.address}.context`), " of this head and word, as the model computed it.")],
  ];
  return inPlace(parts, values, names, there);
}

/** How long the vectors are, and the angles between query and keys. */
function lengths(found) {
  return folded("Lengths and angles", () => table(`Of the keys, in ${found.address}`, ["key", "its length", "cosine with the query", "length of its value"],
    found.keys.map((each) => [`${each.key + 1}: ${shownPiece(found.columns[each.key])}`, number(each.length), number(each.cosine), number(each.value_length)])));
}
