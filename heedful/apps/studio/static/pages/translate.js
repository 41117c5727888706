import { addressOf } from "../address.js";
import { call, live } from "../api.js";
import { button, panel, slider } from "../controls.js";
import { figure, folded, h, number, percent, table } from "../dom.js";
import { facts } from "../draw/facts.js";
import { heatMap } from "../draw/heat.js";
import { shownPiece } from "../draw/links.js";
import { wordLines } from "../draw/word_lines.js";
import { secondModel } from "../second_model.js";
import { noModel, notedHead, placeNamed, placesOf, subjectDefaults, subjectFields } from "../subject.js";
import { ownAttention } from "../words.js";

export const kinds = ["translator"];

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), beam: 4, n: 3, penalty: 0.6, prefix: "", rank: 0, word: -1, beside: "",
});

const UNLIKELY = 0.5; // probability of a word below which it is underlined
const LEAST_DRAWN = 0.05; // attention weight below which no line is drawn
const MOST_WORDS = 40; // of a text whose lines are all drawn, not those of one word alone
const MOST_GAIN = 0.3; // log-probability that a translation gains without a word that it lost: that of `heedful translate --check-source`
const MEAN = "Mean over the heads of the upper layers.";
const MOST_POINTED = 200; // characters of a text of which a single head is asked for as well
const PRONOUN = /^(er|sie|es|he|she|it|they|il|elle|ils|elles)$/i;

export function mount({ root, below, side, state, studio }) {
  if (!placesOf(studio, kinds).length) {
    root.append(noModel("a translator"));
    return;
  }
  const forced = h("p", { class: "row" });
  const body = h("div", { class: "result" });
  const more = h("div", {});
  const choices = h("div", { class: "choices" });
  const why = h("div", { class: "why" });
  const second = secondModel(state, placesOf(studio, kinds));
  side.append(
    panel(...subjectFields(state, studio, kinds, { label: "Text to translate", rows: 3, hint: "A line is translated by itself. Up to 2,000 characters." }),
      slider(state, "beam", { label: "Beam", min: 1, max: 16 }),
      slider(state, "n", { label: "Translations shown", min: 1, max: 16 }),
      slider(state, "penalty", { label: "Length penalty", min: 0, max: 2, step: 0.1 }), second.field));
  root.append(forced, body, choices);
  below.append(why, more, second.element);

  const ask = live(body, async (signal) => {
    const { model, text: source, beam, n, penalty, prefix } = state.values;
    if (source.trim() === "") return null;
    const [found, pointed] = await Promise.all([
      call("translate", "text", { model, text: source, beam, n_best: n, length_penalty: penalty, prefix }, signal), pointedHead(state.values, studio, signal)]);
    return { ...found, pointed };
  }, (found) => show(found));

  // Asked for once the translation stands there, since it takes a pass of the model for each word.
  const lost = live(body, async (signal) => {
    const chosen = translation();
    if (!chosen?.matrix.length) return null; // without attention to the source no word of it is marked
    return call("translate", "lost", { model: state.values.model, text: state.values.text, translation: chosen.text }, signal);
  }, (found) => {
    markLost(found?.words.filter(({ gain }) => gain > MOST_GAIN) ?? []);
    spell(found?.names ?? []);
  });
  let last = null;
  let [markLost, spell] = [() => {}, () => {}];
  let rest = () => {}; // shows the lines of the chosen word
  function show(found) {
    last = found;
    why.replaceChildren();
    more.replaceChildren();
    for (const old of [...body.children]) if (!old.classList.contains("problem")) old.remove();
    if (found === null) {
      body.append(h("p", { class: "note" }, "Type a text, and its translation appears here."));
      return proposed();
    }
    const rank = Math.min(state.values.rank, found.translations.length - 1);
    const { limits = [] } = placeNamed(studio, state.values.model) ?? {};
    const texts = translated(found, rank, state, studio);
    ({ rest, markLost, spell } = texts);
    body.append(texts.element);
    lost();
    more.append(details(found, rank, state, limits));
    return propose();
  }
  const translation = () => last?.translations[Math.min(state.values.rank, last.translations.length - 1)];
  const proposed = live(choices, async (signal) => {
    const chosen = translation();
    const word = chosen && wordOf(chosen, state);
    if (!chosen?.target.some((part) => part.word === word)) return null;
    const line = lineOf(chosen, word);
    const [{ alternatives }, { whyWord }] = await Promise.all([
      call("translate", "alternatives", { model: state.values.model, line: line.source, before: line.before }, signal),
      state.values.word >= 0 ? import("../why_word.js") : {}, // with the library of charts
    ]);
    return { line, word, alternatives, whyWord, own: likelihoods(chosen).get(word) };
  }, (found) => {
    if (!found) return choices.replaceChildren();
    const { line, word, alternatives, whyWord, own } = found;
    const name = bare(line.word);
    choices.replaceChildren(h("h2", {}, `Instead of “${line.word}”`), h("ul", { class: "alternatives" }, alternatives.map((each) => h("li", {},
      button(each.word || "(the end)", () => goOn(line, each), { quiet: each.word !== line.word }),
      chanceBar(each.probability), h("span", { dir: "auto" }, each.text)))),
    own?.pieces.length > 1 ? h("p", { class: "note" }, `Chances of the first piece of each word, as its other pieces come only after it: “${own.pieces[0]}” has ${chance(own.scores[0])}; all pieces of “${line.word}” have ${chance(own.score)} together.`) : "",
    whyWord ? "" : h("p", { class: "row" }, button(`Why “${name}” and no other word?`, () => state.set({ word }, { step: true }), { quiet: true })));
    if (whyWord) why.replaceChildren(whyWord({ model: state.values.model, line: line.source, before: line.before, word: line.word }, { word: line.word || "(the end)" }));
  });

  /** Show other words in the place of the chosen one, and why it stands there if it was asked for. */
  function propose() {
    const word = wordOf(translation(), state);
    for (const each of body.querySelectorAll("button.word")) each.setAttribute("aria-pressed", String(Number(each.dataset.word) === word));
    why.replaceChildren();
    proposed();
  }

  /** Only a text of one line can be told how to begin. */
  function goOn(line, each) {
    const before = each.word ? `${line.before} ${each.word}`.trim() : line.before;
    if (line.lines > 1) choices.append(h("p", { class: "note" }, "Enter the line alone to continue from here."));
    else state.set({ prefix: before, rank: 0, word: -1 }, { step: true });
  }

  const arrange = () => {
    const { prefix } = state.values;
    forced.replaceChildren(...(prefix ? [h("span", {}, "The translation must begin with ", h("strong", { dir: "auto" }, prefix)),
      button("Remove the beginning", () => state.set({ prefix: "", word: -1 }, { step: true }), { quiet: true })] : []));
  };
  state.watch((_, changed) => {
    if (changed.some((name) => ["model", "text", "beam", "penalty", "beside"].includes(name))) second.ask();
    arrange();
    const { prefix, word } = state.values;
    if ((changed.includes("text") || changed.includes("model")) && !changed.includes("word") && (prefix || word >= 0)) {
      state.set({ prefix: "", rank: 0, word: -1 });
      return ask();
    }
    if (last && changed.every((name) => name === "word")) {
      rest();
      propose();
    } else if (last && changed.every((name) => name === "rank" || name === "word")) show(last);
    else if (changed.some((name) => name !== "beside" && name !== "word")) ask();
  });
  arrange();
  ask();
  second.ask();
}

/** The head that shows what a pronoun means, as the model's card says, in the model's own translation; null without one. */
async function pointedHead({ model, text }, studio, signal) {
  const { part, layer, heads } = notedHead(studio, model);
  // An exported course of a few pages may lack the one whose answer this is.
  if (part !== "cross" || text.length > MOST_POINTED || text.includes("\n") || !studio.pages.some(({ name }) => name === "attention")) return null;
  const own = await ownAttention({ model, text, part, layer }, signal).catch(() => null); // then the mean is shown
  if (!own) return null;
  const { rows, columns, maps } = own.words;
  const [down, across] = [rows.pieces, columns.pieces].map((names) => names.slice(0, -1)); // the last is the end
  const head = Number(heads[0]);
  const weights = maps.get(head);
  return { down, across, said: `Head ${head + 1} of layer ${layer + 1}.`, row: (i) => [...weights.subarray(i * columns.pieces.length, i * columns.pieces.length + across.length)] };
}

/** A word without the punctuation after it. */
const bare = (text) => text.replace(/\p{P}+$/u, "") || text;

/** The word that is chosen: by the reader, or else a pronoun, or the least probable one. */
function wordOf(translation, { values }) {
  if (values.word >= 0) return values.word;
  const parts = translation.target.filter((part) => part.word !== null);
  const probable = likelihoods(translation);
  const first = parts.find((part) => PRONOUN.test(bare(part.text))) ?? [...parts].sort((a, b) => (probable.get(a.word)?.score ?? 0) - (probable.get(b.word)?.score ?? 0))[0];
  return first?.word ?? -1;
}

/** A probability from its logarithm: "39 %", "0.14 %". */
const chance = (score) => percent(Math.exp(score), 2);

/** A probability beside a bar whose whole length is 100 %. */
function chanceBar(probability) {
  const element = h("span", { class: "note chance" }, chance(Math.log(probability)));
  element.style.setProperty("--share", probability);
  return element;
}

/** How many times as probable, from the logarithm. */
const times = (gain) => number(Math.exp(gain), 2);

/** The line a word of the translation is in, and what stands before it there. */
function lineOf(translation, word) {
  let before = "";
  let number = 0;
  for (const part of translation.target) {
    if (part.word === word) break;
    const breaks = part.text.split("\n");
    number += breaks.length - 1;
    before = breaks.length > 1 ? breaks.at(-1) : before + part.text;
  }
  const sources = translation.source.map((part) => part.text).join("").split("\n");
  return { word: translation.target.find((part) => part.word === word).text, before: before.trim(), source: sources[number] ?? sources[0], lines: sources.length };
}

/** The pieces of each word of a translation, with the logarithms of their probabilities and the sum; none where the pieces spell another text. */
function likelihoods({ target, pieces }) {
  const spelled = pieces.filter(({ piece }) => piece !== null).map(({ piece, score }) => ({ letters: piece.replaceAll("\u2581", ""), score }));
  const letters = (part) => part.replace(/\s/g, "");
  if (spelled.map((each) => each.letters).join("") !== letters(target.map((part) => part.text).join(""))) return new Map();
  const ends = [];
  for (const { letters: each } of spelled) ends.push((ends.at(-1) ?? 0) + each.length);
  let start = 0;
  return new Map(target.map(({ text: part, word }) => {
    const from = start;
    start += letters(part).length;
    const own = spelled.filter(({ letters: each }, i) => ends[i] > from && ends[i] - each.length < start);
    const scores = own.map(({ score }) => score);
    return [word, { pieces: own.map(({ letters: each }) => each), scores, score: scores.reduce((sum, score) => sum + score, 0) }];
  }).filter(([word]) => word !== null));
}

/** Both texts, whose words point at each other, and what is known against the translation. */
function translated(found, rank, state, studio) {
  const chosen = found.translations[rank];
  const host = h("div", { class: `word-pair${chosen.matrix.length && chosen.matrix.length <= MOST_WORDS ? " in-columns" : ""}` });
  const { layer, draw } = wordLines(host);
  const said = h("p", { class: "readout", role: "status" });
  const sides = { source: new Map(), target: new Map() };
  const glow = (side, index, weight) => {
    const element = sides[side].get(index);
    if (element) element.style.setProperty("--weight", weight.toFixed(3));
  };
  const clear = () => {
    for (const side of Object.values(sides)) for (const element of side.values()) element.style.removeProperty("--weight");
  };
  const look = (side, index) => {
    clear();
    if (sides[side].has(index)) glow(side, index, 1);
    const across = side === "target" ? "source" : "target";
    const single = side === "target" && isPointed(index) ? head.row(index) : null;
    const weights = single ?? (side === "target" ? chosen.matrix[index] ?? [] : chosen.matrix.map((row) => row[index] ?? 0));
    weights.forEach((weight, i) => glow(across, i, weight));
    const least = chosen.matrix.length > MOST_WORDS ? 1 : LEAST_DRAWN;
    draw(chosen.matrix.flatMap((row, i) => (single && i === index ? single : row).map((weight, j) => {
      const strong = (side === "target" ? i : j) === index;
      const [above, below] = [sides.source.get(j), sides.target.get(i)];
      return { above, below, weight, strong, said: side === "target" ? above : below };
    })).filter(({ above, below, weight, strong }) => above && below && weight >= (strong ? LEAST_DRAWN : least)).sort((a, b) => a.strong - b.strong));
    const words = weights.map((weight, i) => [weight, sides[across].get(i)]).filter(([weight]) => weight >= LEAST_DRAWN).sort(([a], [b]) => b - a)
      .map(([weight, element]) => `“${bare(element.textContent)}” ${Math.round(100 * weight)} %`);
    if (words.length) said.textContent = side === "target" ? `“${bare(sides.target.get(index).textContent)}” looks at ${words.join(", ")}. ${single ? head.said : MEAN}` : `“${bare(sides.source.get(index).textContent)}” has of the attention of ${words.join(", ")}. ${MEAN}`;
  };
  const rest = () => look("target", wordOf(chosen, state));
  const worded = (side) => chosen[side].filter((part) => part.word !== null).map((part) => part.text).join(" ");
  const head = found.pointed && worded("target") === found.pointed.down.join(" ") && worded("source") === found.pointed.across.join(" ") ? found.pointed : null;
  const isPointed = (index) => head !== null && PRONOUN.test(bare(sides.target.get(index)?.textContent ?? ""));
  const doubts = (rank === 0 && found.checks) || []; // of the best translation; a model in the page checks nothing
  const doubted = (side, start, end) => doubts.flatMap(({ evidence }) => evidence).find((each) => each.side === side && each.start < end && each.end > start);
  const probable = likelihoods(chosen);
  const unlikely = (part) => probable.get(part.word)?.score < Math.log(UNLIKELY);
  const choose = (word) => state.set({ word }, { step: true });
  const places = { source: 0, target: 0 };
  const ranges = { source: [], target: [] }; // of the words, in characters
  const words = (side) => chosen[side].map((part) => {
    const start = places[side];
    places[side] += [...part.text].length; // checks count characters
    if (part.word === null) return part.text;
    const own = h(side === "target" ? "button" : "span", { class: "word", type: side === "target" ? "button" : null, tabindex: "0", "data-word": part.word, "data-side": side }, part.text);
    const doubt = doubted(side, start, places[side]);
    ranges[side].push({ own, start, end: places[side] });
    if (doubt) own.classList.add("doubted");
    if (side === "target" && unlikely(part)) own.classList.add("unlikely");
    if (side === "target" && probable.has(part.word)) own.title = `all its pieces: ${chance(probable.get(part.word).score)}`;
    if (doubt) own.title = doubt.note;
    sides[side].set(part.word, own);
    own.addEventListener("pointerenter", () => look(side, part.word));
    own.addEventListener("focus", () => look(side, part.word));
    own.addEventListener("pointerleave", rest);
    own.addEventListener("blur", rest);
    if (side === "target") own.addEventListener("click", () => choose(part.word));
    return own;
  });
  const parts = chosen.target.filter((part) => part.word !== null);
  const low = parts.filter(unlikely);
  host.append(
    h("h3", {}, "Text"), h("p", { class: "text", dir: "auto" }, words("source")),
    h("h3", {}, "Translation"), h("p", { class: "text", dir: "auto", id: "translation" }, words("target")), layer);
  queueMicrotask(rest); // once it stands in the page, where words have places
  const placed = (side, found) => found.map((each) => ({ ...each, own: ranges[side].find(({ start, end }) => start <= each.start && end >= each.end)?.own })).filter(({ own }) => own);
  const named = h("p", { class: "spelled-names", role: "status", hidden: "" });
  const spell = (found) => {
    const words = placed("target", found);
    // The whole word, as marks may stand beside the name.
    for (const { own, name, start, end } of words) own.dataset.name = own.textContent.replace([...chosen.text].slice(start, end).join(""), name);
    named.hidden = !words.length;
    named.replaceChildren(h("strong", {}, "Names that the model cannot spell: "), words.map(({ own, name }, i) => `${i ? ", " : ""}“${bare(own.textContent)}” is “${name}”`), ", which ", h("code", {}, "heedful translate --copy-unknown"), " writes.");
  };
  const missing = h("p", { class: "lost-words", role: "status", hidden: "" });
  const markLost = (found) => {
    const marked = placed("source", found);
    for (const { own } of marked) own.classList.add("lost");
    missing.hidden = !marked.length;
    missing.replaceChildren(h("strong", {}, "Perhaps lost: "), marked.map(({ own, gain }, i) => `${i ? ", " : ""}“${bare(own.textContent)}” (the translation is ${times(gain)} times as probable without it)`), ".");
  };
  const { model, text } = state.values;
  const single = studio.pages.some(({ name }) => name === "attention") ? addressOf("attention", new URLSearchParams({ model, text }).toString()) : null;
  const element = h("div", {},
    doubts.length ? h("ul", { class: "warnings checks" }, doubts.map((each) => h("li", {}, h("strong", {}, `In doubt, ${each.name.replaceAll("_", " ")}:`), each.evidence.length ? "" : ` it should be that ${each.passes}.`,
      each.evidence.map(({ text: shown, note }) => ` “${shown}”: ${note}.`)))) : null,
    found.warnings.length ? h("ul", { class: "warnings" }, found.warnings.map((each) => h("li", {}, each))) : null,
    host, named, missing, chosen.matrix.length ? said : null,
    chosen.matrix.length ? h("p", { class: "note" }, head ? "Lines of a pronoun: the head that finds what it means; of other words: the mean of many heads" : "A single head can look elsewhere", single ? [": ", h("a", { href: single }, "the heads one by one"), "."] : ".", " A large weight is not yet a large effect: “Why” measures that.") : null,
    low.length ? h("p", { class: "note" }, `Underlined: chance below ${100 * UNLIKELY} %: `, low.map((part, i) => `${i ? ", " : ""}${bare(part.text)} ${chance(probable.get(part.word).score)}`), ", all pieces of a word together.") : null);
  return { element, rest, markLost, spell };
}

/** The other translations, the numbers, and the alignment. */
function details(found, rank, state, limits) {
  const chosen = found.translations[rank];
  const most = Math.max(...found.translations.map(({ score }) => score));
  const picture = figure("Alignment of all words", "Attention from each word of the translation to each word of the text; the rest is on the end of the text.");
  const all = folded("Alignment of all words", picture.element);
  const others = h("div", {}, h("h3", {}, "Translations that the search found"), 
    h("ol", { class: "ranks" }, found.translations.map((each, i) => h("li", {}, h("button", {
      type: "button", class: "rank quiet", "aria-pressed": String(i === rank), onclick: () => state.set({ rank: i, word: -1 }, { step: true }),
    }, h("span", { dir: "auto" }, each.text.replaceAll("\n", " / ")), h("span", { class: "count" }, each.score === most ? "most probable" : `${chance(each.score - most)} as probable`))))),
    chosen.finished ? null : h("p", { class: "note" }, "It was cut at the longest length."),
    all, folded("Scores and pieces", () => h("div", {},
      facts([["log-probability", number(chosen.score), "score"], ["a token", number(chosen.score / Math.max(1, chosen.pieces.length), 3), "each"], ["pieces and ends", number(chosen.pieces.length), "tokens"]]),
      table("Pieces of the translation", ["piece", "probability"], chosen.pieces.map(({ piece, score }) => [piece === null ? "(end)" : shownPiece(piece), number(Math.exp(score), 3)])))),
    limits.length ? folded("What this model cannot do", () => h("ul", { class: "note" }, limits.map((each) => h("li", {}, each)))) : null);
  const names = (side) => chosen[side].filter((part) => part.word !== null).map((part) => part.text);
  queueMicrotask(() => {
    if (!chosen.matrix.length || !chosen.matrix[0].length) all.hidden = true;
    else heatMap(picture.host, { values: chosen.matrix, kind: "share", cell: 34, rows: { label: "translation", names: names("target") }, columns: { label: "text", names: names("source") }, describe: "Attention of each word of the translation to each word of the text." });
  });
  return others;
}
