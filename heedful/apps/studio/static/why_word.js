// Why this word? What a translation or continuation rests on: words, layers, sub-layers and heads, and what becomes of it
// without some of them.

import { call, live } from "./api.js";
import { button } from "./controls.js";
import { figure, folded, h, number, section, table } from "./dom.js";
import { heatMap } from "./draw/heat.js";
import { shownPiece, spokenPiece } from "./draw/links.js";
import { lineChart } from "./draw/lines.js";
import { rankedBars } from "./draw/ranked.js";

const WAYS = { silence: "each word silent in turn", gradients: "integrated gradients" };
const KINDS = { self: "self-attention", cross: "cross-attention", feedforward: "feed-forward" };
const MOST_PARTS = 10;

/** A part by its address, counted from 1: "decoder, block 2, cross-attention, head 6". */
export function partInWords(address) {
  return address.split(".").map((word, i, all) => {
    if (word === "head") return null;
    if (all[i - 1] === "head") return `head ${Number(word) + 1}`;
    return /^\d+$/.test(word) ? `block ${Number(word) + 1}` : KINDS[word] ?? word;
  }).filter(Boolean).join(", ");
}

/** Numbers of pieces, added up to those of words. */
function byWord({ pieces, special, scores }) {
  const words = [];
  pieces.forEach((piece, i) => {
    if (!words.length || special[i] || /^\u2581/.test(piece) || words.at(-1).special || /^\p{P}+$/u.test(piece)) words.push({ name: "", score: 0, special: special[i], tokens: [] });
    const last = words.at(-1);
    last.name += special[i] ? piece : piece.replace(/^\u2581/, "");
    last.score += scores[i];
    last.tokens.push(i);
  });
  return words;
}

/**
 * The section about one word.
 * @param asked the word, as the calls name it: {model, line, before, word} or {model, line, tokens, token}
 * @param view {word: how it is shown, limits: what the model cannot do, by its card, again: what another result is called}
 */
export function whyWord(asked, { word: name, limits = [], again: title = "Translate again" }) {
  const contrast = h("select", { id: "why-against" }, h("option", { value: "" }, "nothing: its own probability"));
  const way = h("select", { id: "why-way" }, Object.entries(WAYS).map(([value, words]) => h("option", { value }, words)));
  const shares = figure("What each word adds");
  const lens = figure("Layer by layer", "The prediction if each block of the decoder were the last: the logit lens.");
  const parts = figure("What each sub-layer adds", "Its part of the logit, or of the difference of the two logits.");
  const [said, deep, anew] = [h("p", { class: "sentence", role: "status" }), h("div", {}), h("div", {})];
  const first = h("div", {}, said, shares.element);
  const tops = h("div", {});
  deep.append(h("div", { class: "columns" }, h("div", {}, lens.element, tops), parts.element));
  const body = section(`Why “${name}”?`,
    h("div", { class: "row" }, h("div", { class: "field" }, h("label", { for: "why-against" }, "Compared with"), contrast),
      h("div", { class: "field" }, h("label", { for: "why-way" }, "Measured by"), way)), first, anew, folded("Layer by layer, and what each sub-layer adds", deep),
    limits.length ? h("div", { class: "limits" }, h("h3", {}, "What this model cannot do"), h("ul", { class: "note" }, limits.map((each) => h("li", {}, each)))) : "");
  const against = () => (contrast.value === "" ? null : Number(contrast.value));
  const other = () => (against() === null ? null : spokenPiece(contrast.selectedOptions[0].dataset.piece));
  const measured = () => (other() ? "this difference" : "the log-probability");
  const again = writeAgain(anew, title, asked);

  const askShares = live(first, (signal) => call("translate", "why", { ...asked, against: against(), way: way.value }, signal), (found) => {
    if (contrast.options.length === 1) {
      contrast.append(...found.candidates.filter(({ id }) => id !== found.token).map(({ id, piece, probability }) =>
        h("option", { value: id, "data-piece": piece }, `${shownPiece(piece)} (${number(100 * probability, 3)} %)`)));
    }
    const sides = Object.entries(found.sides).map(([name, side]) => [name, byWord(side)]);
    const words = sides.flatMap(([name, each]) => each.map((word) => ({ ...word, written: name === "decoder" })));
    const best = words.reduce((most, word) => (word.score > most.score ? word : most));
    said.textContent = `${other() ? `The logit of “${spokenPiece(found.piece)}” less that of “${other()}”` : `The log-probability of “${spokenPiece(found.piece)}”`} is ${number(found.value, 3)}. “${best.name}” speaks for it most: ${number(best.score, 3)}${way.value === "silence" && !other() && best.score > 0 && best.score < 300 ? `, as without it the word would be ${number(Math.exp(best.score), 2)} times less likely` : ""}.`;
    shares.words.textContent = way.value === "silence"
      ? `By how much ${measured()} falls when nothing may attend to a word: above 0 that word speaks for “${spokenPiece(found.piece)}”, below 0 against it. The last written word asks, so it stays.`
      : `Shares of the change from unknown words alone (${number(found.baseline, 3)}) to this text (${number(found.value, 3)}), by integrated gradients. They add up to ${number(words.reduce((sum, word) => sum + word.score, 0), 3)}, where ${number(found.value - found.baseline, 3)} would be exact.`;
    heatMap(shares.host, {
      values: [words.map((word) => word.score)], kind: "diverging", cell: 46, tall: 34, rows: { label: "", names: [spokenPiece(found.piece)] },
      columns: { label: "words of the text, then those written so far", names: words.map((word) => word.name) }, describe: `What each word adds to “${found.piece}”.`,
    });
    again.words(sides[0][1].filter(({ tokens }) => tokens.every((i) => i < found.given)));
  });
  const askDeep = live(deep, (signal) => call("translate", "inside", { ...asked, against: against() }, signal), (found) => {
    const names = [name, other()].filter(Boolean);
    lineChart(lens.host, {
      series: names.map((name, i) => ({ name, dots: true, points: found.layers.map((layer, l) => [l, layer.shown[i]]) })),
      x: { label: "blocks so far", whole: true }, y: { label: "probability", zero: true }, describe: "Probability by the number of blocks.", height: 220,
    });
    tops.replaceChildren(table("The likeliest piece after each block", ["block", "piece", "probability"], found.layers.map((layer, l) => [l === 0 ? "embedding" : l, shownPiece(layer.best), number(layer.probability, 3)])));
    const strongest = [...found.parts].sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, MOST_PARTS);
    rankedBars(parts.host, strongest.map(({ name, score }) => ({ name: partInWords(name), value: score })), { label: "part of the logit", describe: "What each sub-layer adds." });
    again.heads(found.heads, measured());
  });
  contrast.addEventListener("change", () => {
    askShares();
    askDeep();
  });
  way.addEventListener("change", askShares);
  askDeep(); // first, as it is quick: a page computes one answer after the other
  askShares();
  return body;
}

/** Words that fall silent and heads that are off, and the result then. */
function writeAgain(host, title, { model, line }) {
  const silent = new Map();
  const off = new Set();
  const [words, heads, result] = [h("div", { class: "row" }), h("div", { class: "row" }), h("p", { class: "text", dir: "auto", id: "again", role: "status" })];
  host.append(h("h3", {}, title), h("p", { class: "note" }, "Click words of the text that nothing may attend to, or below heads to switch off."), words, result, folded("Heads to switch off", heads));
  const ask = live(host, async (signal) => {
    if (!silent.size && !off.size) return null;
    return call("translate", "again", { model, line, silent: [...silent.values()].flat(), heads: [...off] }, signal);
  }, (found) => result.replaceChildren(found ? h("bdi", {}, found.text || "(nothing)") : "", found ? h("span", { class: "note" }, ` log-probability ${number(found.score, 3)}`) : ""));
  const toggle = (made, change) => {
    made.setAttribute("aria-pressed", String(made.getAttribute("aria-pressed") !== "true"));
    change(made.getAttribute("aria-pressed") === "true");
    ask();
  };
  const press = (label, change) => {
    const made = button(label, () => toggle(made, change), { quiet: true });
    made.classList.add("off-switch");
    made.setAttribute("aria-pressed", "false");
    return made;
  };
  return {
    words(found) {
      if (words.childElementCount) return;
      words.append(h("span", { class: "note" }, "Silent:"), ...found.filter((word) => !word.special).map((word, i) => press(word.name, (on) => (on ? silent.set(i, word.tokens) : silent.delete(i)))));
    },
    heads(found, value) {
      off.clear();
      heads.replaceChildren(...(found.length ? [h("span", { class: "note" }, `The heads that weigh most, and about how much each adds to ${value}. A click switches one off:`), ...found.map(({ address, effect }) =>
        press(`${partInWords(address)}: ${number(effect, 2)}`, (on) => (on ? off.add(address) : off.delete(address))))] : []));
      ask();
    },
  };
}
