// Step by step on a model: one query of one head, from its products to what it takes away.

import { call, live } from "./api.js";
import { choice, panel } from "./controls.js";
import { h, number } from "./dom.js";
import { barChart } from "./draw/bars.js";
import { series } from "./draw/colours.js";
import { shownPiece } from "./draw/links.js";
import { secondText } from "./second_text.js";
import { placesOf, subjectDefaults, subjectFields } from "./subject.js";

export const KINDS = ["translator", "causal_lm", "encoder"];
const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };

/** The models that read text. */
export const reads = (studio) => placesOf(studio, KINDS);

export const followDefaults = (studio) => ({
  on: "typed", ...subjectDefaults(studio, KINDS), second: "", given: "",
  part: "", layer: -1, head: 0, row: 0,
});

/** A number or name in the colour of its row or its column, which it keeps through all steps. */
export const tinted = (content, index, side) => h("span", { class: `tint-${side}`, style: { color: series(side === "row" ? index : index + 1) } }, content);

/** The step that is reached, beside the one before it; or all of them below each other. */
export function inPlace(parts, { stage, all }, names) {
  const section = (i) => h("section", { "data-stage": i, class: i === stage ? "reached" : "before" }, h("h2", {}, `${i + 1}. ${names[i]}`), parts[i]());
  if (all) return parts.slice(0, stage + 1).map((_, i) => section(i));
  return [h("div", { class: "columns in-place" }, stage ? section(stage - 1) : null, section(stage))];
}

/** Lines of a sum: a name, how it comes about, what it comes to. */
export function sums(lines) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The numbers of the chosen query" },
    h("table", { class: "figures sums" }, h("tbody", {}, lines.map(([name, how, result]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, how), h("td", {}, "= "), h("td", {}, h("strong", {}, result)))))));
}

/**
 * The panel and the stages.
 * @param names of the stages
 */
export function followed(state, studio, names) {
  const models = reads(studio);
  const kindOf = () => models.find((place) => place.name === state.values.model)?.kind ?? "";
  const second = secondText(state, kindOf);
  const fields = {
    part: choice(state, "part", { label: "Attention of", options: [["", "…"], ...Object.entries(PARTS)] }),
    layer: choice(state, "layer", { label: "Layer", options: [[-1, "the last"], ...(state.values.layer < 0 ? [] : [[state.values.layer, String(state.values.layer + 1)]])] }),
    head: choice(state, "head", { label: "Head", options: [[0, "1"]] }),
    row: choice(state, "row", { label: "The word to follow", options: [[0, "…"]] }),
  };
  const settings = panel(...subjectFields(state, studio, KINDS), ...second.elements, ...Object.values(fields));
  const body = h("div", {});
  let last = null;
  const ask = live(body, (signal) => {
    const { text: typed, part, layer, head, row } = state.values;
    return typed.trim() === "" ? null : call("steps", "follow", { ...second.asked(), part, layer, head, row }, signal);
  }, (found) => {
    last = found;
    if (found) fill(found);
    show();
  });
  function fill(found) {
    const count = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
    const options = {
      part: found.parts.map((part) => [part, PARTS[part]]), layer: count(found.layers), head: count(found.heads),
      row: found.rows.map((piece, i) => [i, `${i + 1}: ${shownPiece(piece)}`]),
    };
    for (const [name, list] of Object.entries(options)) fields[name].fill(list);
    fields.part.querySelector("select").value = found.part;
    fields.layer.querySelector("select").value = String(found.layer);
    second.written(found.target);
  }
  function show() {
    for (const old of [...body.children]) if (!old.classList.contains("problem")) old.remove();
    if (last) body.append(second.answer, ...stages(last, state.values, names));
    else body.append(h("p", { class: "note" }, "Type a text to follow one of its words."));
  }
  return {
    panel: settings,
    body,
    /** Heed that settings have changed. */
    changed(which) {
      if (which.length === 1) state.set(begun(which[0]));
      second.arrange();
      if (last && which.every((name) => name === "stage" || name === "all")) show();
      else ask();
    },
  };
}

/** What begins anew when one thing alone is chosen. */
function begun(name) {
  if (name === "model") return { part: "", layer: -1, head: 0, row: 0, given: "", second: "" };
  if (name === "part") return { layer: -1, head: 0, row: 0 };
  return ["text", "second", "given"].includes(name) ? { row: 0 } : {};
}

const signed = (value, digits = 3) => (value < 0 ? `− ${number(-value, digits)}` : `+ ${number(value, digits)}`);

function stages(found, { stage, all }, names) {
  const name = (key) => `${key.key + 1}: ${shownPiece(found.columns[key.key])}`;
  const word = shownPiece(found.rows[found.row]);
  const lines = (how, result) => sums(found.keys.map((key) => [name(key), how(key), result(key)]));
  const vector = (numbers, digits = 3) => `(${numbers.map((value) => number(value, digits)).join(", ")})`;
  const product = (key) => {
    const told = key.leading.map(([channel, value], i) => `${i ? signed(value) : number(value, 3)} [${channel}]`);
    const rest = found.width - key.leading.length;
    return [...told, rest > 0 ? `${signed(key.rest)} [${rest} others]` : ""].join(" ");
  };
  const left = found.others.count ? [h("p", { class: "note" }, `The ${found.keys.length} keys with the most weight are shown; the ${found.others.count} others have ${number(found.others.weight, 3)} of it together.`)] : [];
  const parts = [
    () => [h("p", {}, `The query of “${word}” (${found.row + 1}) in `, h("code", {}, found.address), `: ${found.width} channels, of length ${number(found.query_length)}, against ${found.columns.length} keys.`,
      found.rotary ? " This model turns queries and keys by their positions (a rotary embedding); these are the turned ones." : ""),
    ...left, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Keys and values" }, h("table", { class: "figures" },
      h("thead", {}, h("tr", {}, ["key", "its length", "cosine with the query", "length of its value"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, found.keys.map((key) => h("tr", {}, h("th", { scope: "row" }, name(key)), [key.length, key.cosine, key.value_length].map((value) => h("td", {}, number(value))))))))],
    () => [h("p", {}, "The query is multiplied with every key, channel by channel, and the products are added up. The largest are shown with their channel, the others as their sum."),
      lines(product, (key) => number(key.raw))],
    () => [h("p", {}, `Every sum is multiplied with ${number(found.factor)}`, found.softcap === null ? "." : `, then squashed to ${number(found.softcap)} × tanh(score ÷ ${number(found.softcap)}).`),
      lines((key) => `${number(key.raw)} × ${number(found.factor)}`, (key) => number(key.scaled))],
    () => (found.biased ? [h("p", {}, "The number that this model adds for the positions of query and key."), lines((key) => `${number(key.scaled)} ${signed(key.bias, 4)}`, (key) => number(key.scaled + key.bias))]
      : [h("p", { class: "note" }, "This attention adds no bias.")]),
    () => [h("p", {}, `A query sees ${found.mask}. ${found.hidden ? `Of ${found.columns.length} keys ${found.hidden} are hidden from it.` : `None of the ${found.columns.length} keys is hidden.`}`),
      lines((key) => (key.score === null ? "" : "seen"), (key) => (key.score === null ? "hidden" : number(key.score)))],
    () => {
      const host = h("div", { class: "drawing" });
      queueMicrotask(() => barChart(host, { values: found.weights, names: found.columns.map((_, i) => i + 1), describe: `The weights of all keys for ${word}.`, label: "key" }));
      return [h("p", {}, "The exponential of each score less the highest, divided by the sum over all visible keys."),
        lines((key) => (key.power === null ? "hidden" : `${number(key.power)} ÷ ${number(found.sum)}`), (key) => number(key.weight)), ...left, host];
    },
    () => [h("p", {}, `The values are added up, each times its weight. The picture shows the channels in which the output is largest: ${found.channels.join(", ")} (of those of the value).`),
      sums([...found.keys.map((key) => [name(key), `${number(key.weight)} × ${vector(key.values)}`, vector(key.parts)]),
        ...(found.others.count ? [[`${found.others.count} others`, "", vector(found.others.parts)]] : []), ["sum", "", vector(found.context, 4)]]),
      h("p", { class: "note" }, "The sum is ", h("code", {}, `${found.address}.context`), " of this head and word, as the model computed it.")],
  ];
  return inPlace(parts, { stage, all }, names);
}
