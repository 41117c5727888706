// Texts of the models of runs: a validation sentence as it was translated over time, and lines typed
// here for their newest models.

import { call, live } from "./api.js";
import { choice, text } from "./controls.js";
import { folded, h, number, section, table } from "./dom.js";

const SHORT = 90; // characters of a sentence in the list
const CHANGED_MOST = "the one that changed most";

/** The words of a text; those that were not in the one before it are marked. */
const marked = (words) => h("span", { dir: "auto", class: "sample" }, words.flatMap(([word, isNew]) => (isNew ? [h("mark", { class: "new-word" }, word.trimEnd()), word.slice(word.trimEnd().length)] : [word])));

/** How the translation of a sentence changed from one validation to the next. */
export function textsOverTime(state, labelOf) {
  const sentence = choice(state, "sentence", { label: "Sentence of the validation data", options: [[-1, CHANGED_MOST]] });
  const range = h("input", { type: "range", id: "history-step", min: 0, max: 0, step: 1 });
  const said = h("output", { for: "history-step", class: "count" });
  const sliding = h("div", { class: "field slider" }, h("label", { for: "history-step" }, "Validation at step"), range, said);
  const now = h("div", { "aria-live": "polite" });
  const every = folded("At every validation", "");
  const controls = h("div", { class: "panel" }, sentence, sliding);
  const body = h("div", {}, controls, now, every);
  const element = section("Sample translations over time", h("p", { class: "about" }, "At each validation a run translates the same few sentences. Words that the validation before did not have are marked."), body);
  let answer = null;

  const steps = () => [...new Set(answer.runs.flatMap((run) => run.texts.map((each) => each.step)))].sort((a, b) => a - b);
  range.addEventListener("input", () => {
    const found = steps();
    const index = Number(range.value);
    state.set({ at: index === found.length - 1 ? -1 : found[index] });
  });

  function draw() {
    if (!answer) return;
    const found = answer.source === null ? [] : steps();
    element.hidden = !found.length; // a run of translation writes some at each validation that decodes
    if (!found.length) return;
    const { at } = state.values;
    const chosen = at < 0 ? found.at(-1) : found.reduce((best, step) => (Math.abs(step - at) < Math.abs(best - at) ? step : best));
    range.max = found.length - 1;
    range.value = found.indexOf(chosen);
    range.setAttribute("aria-valuetext", `step ${number(chosen)}`);
    said.textContent = number(chosen);
    now.replaceChildren(h("dl", { class: "history" },
      h("dt", {}, "source"), h("dd", { dir: "auto" }, answer.source), answer.reference ? [h("dt", {}, "reference"), h("dd", { dir: "auto" }, answer.reference)] : [],
      answer.runs.flatMap((run) => {
        // A run that validated at other steps shows its newest text until then.
        const text = run.texts.findLast((each) => each.step <= chosen);
        return [h("dt", {}, labelOf(run.name)), h("dd", { class: "text", "data-run": run.name }, text ? marked(text.words) : "not yet validated", text ? h("span", { class: "note" }, ` step ${number(text.step)}${text.chrf === null ? "" : `, chrF ${number(text.chrf, 3)}`}`) : null)];
      })));
    const by = answer.runs.map((run) => new Map(run.texts.map((each) => [each.step, each])));
    const cell = (each) => (!each ? "–" : each.changed ? h("span", {}, marked(each.words), each.chrf === null ? "" : h("span", { class: "note" }, ` ${number(each.chrf, 3)}`)) : h("span", { class: "note" }, "as before"));
    const made = table("Translations at every validation, with their chrF", ["step", ...answer.runs.map((run) => labelOf(run.name))], found.map((step) => [number(step), ...by.map((texts) => cell(texts.get(step)))]), { words: true, class: "figures wrapped" });
    made.querySelectorAll("tbody tr")[found.indexOf(chosen)].setAttribute("aria-current", "true");
    if (every.children.length > 1) every.lastChild.remove();
    every.append(made);
  }

  const ask = live(body, (signal) => call("runs", "history", { runs: state.values.runs, sentence: state.values.sentence }, signal), (found) => {
    answer = found;
    sentence.fill([[-1, CHANGED_MOST], ...found.sentences.map((source, i) => [i, source.length > SHORT ? `${source.slice(0, SHORT)}…` : source])]);
    draw();
  });
  return { element, ask, draw };
}

/** The worst translations of each run's newest validation. */
export function worstTexts(state) {
  const body = h("div", {});
  const element = section("Worst translations", h("p", { class: "about" }, "The sentences of the newest validation whose translations have the lowest chrF, among all that it decoded."), body);
  const ask = live(body, (signal) => call("runs", "worst", { runs: state.values.runs }, signal), ({ runs }) => {
    element.hidden = !runs.length;
    body.replaceChildren(...runs.map((run) => table(`${run.name}, step ${number(run.step)}`, ["source", "reference", "translation", "chrF"],
      run.texts.map((each) => [each.source, each.reference, each.text, each.chrf === null ? "–" : number(each.chrf, 3)]), { words: true, class: "figures wrapped" })));
  });
  return { element, ask };
}

/** Lines typed here, as the newest model of each run translates or continues them; `writes` tells by its name whether a run has one. */
export function typedLines(state, writes) {
  const written = h("div", {});
  const element = section("Texts of the models", h("div", { class: "panel" }, text(state, "lines", { label: "Lines to translate or to continue, up to five", rows: 3 })), written);
  let answered = "";
  const ask = live(written, (signal) => {
    element.hidden = !state.values.runs.some(writes);
    const lines = state.values.lines.split("\n").filter((line) => line.trim() !== "").slice(0, 5);
    return call("runs", "samples", { runs: state.values.runs, lines }, signal);
  }, (found) => {
    const now = JSON.stringify(found);
    if (now === answered) return;
    answered = now;
    for (const old of written.querySelectorAll(":scope > .result")) old.remove();
    if (!found.lines.length) return;
    written.append(h("div", { class: "result" }, table("Texts of each run's best model", ["line", ...found.samples.map((each) => each.run)], found.lines.map((line, i) =>
      [line, ...found.samples.map((each) => h("span", { dir: "auto", class: "sample" }, each.texts[i]?.trim() ?? each.problem ?? "–"))]), { words: true, class: "figures wrapped" })));
  });
  return { element, ask };
}
