import { call, live, problem } from "../api.js";
import { button, panel, slider } from "../controls.js";
import { figure, h, number, table } from "../dom.js";
import { facts } from "../draw/facts.js";
import { heatMap } from "../draw/heat.js";
import { shownPiece } from "../draw/links.js";
import { secondModel } from "../second_model.js";
import { noModel, placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const kinds = ["translator"];

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), beam: 4, n: 3, penalty: 0.6, prefix: "", rank: 0, beside: "",
});

export function mount({ root, side, state, studio }) {
  if (!placesOf(studio, kinds).length) {
    root.append(noModel("a translator"));
    return;
  }
  const forced = h("p", { class: "row" });
  const body = h("div", { class: "result" });
  const choices = h("div", { class: "choices" });
  const why = h("div", { class: "why" });
  const second = secondModel(state, placesOf(studio, kinds));
  side.append(
    panel(...subjectFields(state, studio, kinds, { label: "Text to translate", rows: 3, hint: "A line is translated by itself. Up to 2,000 characters." }),
      slider(state, "beam", { label: "Beam", min: 1, max: 16 }),
      slider(state, "n", { label: "Translations shown", min: 1, max: 16 }),
      slider(state, "penalty", { label: "Length penalty", min: 0, max: 2, step: 0.1 }), second.field));
  root.append(forced, body, choices, why, second.element);

  const ask = live(body, async (signal) => {
    const { model, text: source, beam, n, penalty, prefix } = state.values;
    if (source.trim() === "") return null;
    return call("translate", "text", { model, text: source, beam, n_best: n, length_penalty: penalty, prefix }, signal);
  }, (found) => show(found));

  let last = null;
  function show(found) {
    last = found;
    choices.replaceChildren();
    why.replaceChildren();
    for (const old of [...body.children]) if (!old.classList.contains("problem")) old.remove();
    if (found === null) {
      body.append(h("p", { class: "note" }, "Type a text, and its translation appears here."));
      return;
    }
    const rank = Math.min(state.values.rank, found.translations.length - 1);
    body.append(translated(found, rank, state, (word) => propose(found.translations[rank], word)));
  }

  async function propose(translation, word) {
    const line = lineOf(translation, word);
    choices.replaceChildren(h("p", { class: "note", role: "status" }, "Looking for other words …"));
    try {
      const { alternatives } = await call("translate", "alternatives", { model: state.values.model, line: line.source, before: line.before });
      choices.replaceChildren(h("h2", {}, `Instead of “${line.word}”`), h("ul", { class: "alternatives" }, alternatives.map((each) => h("li", {},
        button(each.word || "(the end)", () => goOn(line, each), { quiet: each.word !== line.word }),
        h("span", { class: "note" }, `${number(100 * each.probability, 3)} %`), h("span", { dir: "auto" }, each.text)))));
      choices.scrollIntoView({ block: "nearest" });
      const { limits = [] } = studio.places.find((place) => place.name === state.values.model) ?? {};
      const { whyWord } = await import("../why_word.js"); // with the library of charts
      why.replaceChildren(whyWord({ model: state.values.model, line: line.source, before: line.before, word: line.word }, { word: line.word || "(the end)", limits }));
    } catch (error) {
      choices.replaceChildren(problem(error));
    }
  }

  /** Only a text of one line can be told how to begin. */
  function goOn(line, each) {
    const before = each.word ? `${line.before} ${each.word}`.trim() : line.before;
    if (line.lines > 1) choices.append(h("p", { class: "note" }, "Enter the line alone to continue from here."));
    else state.set({ prefix: before, rank: 0 }, { step: true });
  }

  const arrange = () => {
    const { prefix } = state.values;
    forced.replaceChildren(...(prefix ? [h("span", {}, "The translation must begin with ", h("strong", { dir: "auto" }, prefix)),
      button("Remove the beginning", () => state.set({ prefix: "" }, { step: true }), { quiet: true })] : []));
  };
  state.watch((_, changed) => {
    if (changed.some((name) => ["model", "text", "beam", "penalty", "beside"].includes(name))) second.ask();
    arrange();
    if (changed.includes("text") && state.values.prefix && !changed.includes("prefix")) {
      state.set({ prefix: "", rank: 0 });
      return;
    }
    if (last && changed.every((name) => name === "rank")) show(last);
    else if (changed.some((name) => name !== "beside")) ask();
  });
  arrange();
  ask();
  second.ask();
}

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

function translated(found, rank, state, propose) {
  const chosen = found.translations[rank];
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
    if (index === null) return;
    glow(side, index, 1);
    if (side === "target") chosen.matrix[index]?.forEach((weight, i) => glow("source", i, weight));
    else chosen.matrix.forEach((row, i) => glow("target", i, row[index] ?? 0));
  };
  const doubts = (rank === 0 && found.checks) || []; // of the best translation; a model in the page checks nothing
  const doubted = (side, start, end) => doubts.flatMap(({ evidence }) => evidence).find((each) => each.side === side && each.start < end && each.end > start);
  const places = { source: 0, target: 0 };
  const words = (side) => chosen[side].map((part) => {
    const start = places[side];
    places[side] += part.text.length;
    if (part.word === null) return part.text;
    const own = h(side === "target" ? "button" : "span", { class: "word", type: side === "target" ? "button" : null, tabindex: "0", "data-word": part.word, "data-side": side }, part.text);
    const doubt = doubted(side, start, places[side]);
    if (doubt) own.classList.add("doubted");
    if (doubt) own.title = doubt.note;
    sides[side].set(part.word, own);
    own.addEventListener("pointerenter", () => look(side, part.word));
    own.addEventListener("focus", () => look(side, part.word));
    own.addEventListener("pointerleave", clear);
    own.addEventListener("blur", clear);
    if (side === "target") own.addEventListener("click", () => propose(part.word));
    return own;
  });
  const picture = figure("Alignment", "Attention from each word of the translation to each word of the text; the rest is on the end of the text.");
  const parts = h("div", {},
    doubts.length ? h("ul", { class: "warnings checks" }, doubts.map((each) => h("li", {}, h("strong", {}, each.name.replaceAll("_", " ")), ` is in doubt: a good translation passes if ${each.passes}.`,
      each.evidence.map(({ text: shown, note }) => ` “${shown}”: ${note}.`)))) : null,
    found.warnings.length ? h("ul", { class: "warnings" }, found.warnings.map((each) => h("li", {}, each))) : null,
    h("div", { class: "columns pair" },
      h("div", {}, h("h3", {}, "Text"), h("p", { class: "text", dir: "auto" }, words("source"))),
      h("div", {}, h("h3", {}, "Translation"), h("p", { class: "text", dir: "auto", id: "translation" }, words("target")))),
    h("div", { class: "columns" }, picture.element, table("Pieces of the translation", ["piece", "probability"], chosen.pieces.map(({ piece, score }) => [piece === null ? "(end)" : shownPiece(piece), number(Math.exp(score), 3)]))),
    facts([["log-probability", number(chosen.score), "score"], ["a token", number(chosen.score / Math.max(1, chosen.pieces.length), 3), "each"],
      ["tokens", number(chosen.tokens), "tokens"], ["finished", chosen.finished ? "yes" : "cut at the longest length", "finished"]]),
    h("ol", { class: "ranks" }, found.translations.map((each, i) => h("li", {}, h("button", {
      type: "button", class: "rank quiet", "aria-pressed": String(i === rank), onclick: () => state.set({ rank: i }, { step: true }),
    }, h("span", { dir: "auto" }, each.text.replaceAll("\n", " / ")), h("span", { class: "count" }, number(each.score, 4)))))));
  const names = (side) => chosen[side].filter((part) => part.word !== null).map((part) => part.text);
  queueMicrotask(() => {
    if (!chosen.matrix.length || !chosen.matrix[0].length) picture.element.hidden = true;
    else heatMap(picture.host, { values: chosen.matrix, kind: "share", cell: 34, rows: { label: "", names: names("target") }, columns: { label: "text", names: names("source") }, describe: "Attention of each word of the translation to each word of the text." });
  });
  return parts;
}
