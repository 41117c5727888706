// Runs side by side: how far each is, its scores, what it took to reach one, and its settings.

import { call, live } from "./api.js";
import { button, choice, panel, text } from "./controls.js";
import { engineering, folded, h, number, section, table } from "./dom.js";

/** A time for people: 40 s, 3 min, 2 h 5 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${number(seconds, 2)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const tokens = (count) => (count === null || count === undefined ? "–" : engineering(count));
const NAMES = { lr: "learning rate", nll: "negative log-likelihood", bleu: "BLEU", chrf: "chrF", ter: "TER", f1: "F1", macro_f1: "macro F1", grad_norm: "gradient norm", tokens_per_second: "tokens per second", tokens: "tokens of an update", total_tokens: "tokens so far", seconds: "seconds so far" };
export const figureName = (name) => NAMES[name] ?? name.replaceAll("_", " ");
// A limit that was reached stands in the columns of steps and time.
const endOf = (reason) => (/^max_\w+ = [\d.]+ reached/.test(reason) ? "complete" : reason);

const signed = (value) => (value === 0 ? "0" : `${value > 0 ? "+" : ""}${number(value, 3)}`);

function stateOf(run) {
  if (run.training) return run.left > 0 ? `in training, about ${duration(run.left)} left` : "in training";
  if (run.done) return run.begun ? `${endOf(run.done)}, fine-tuned` : endOf(run.done);
  return run.quiet === null ? "has begun, and written nothing yet" : `stopped before its end: nothing written for ${duration(run.quiet)}`;
}

const MANY = 8; // runs: among more one searches
const FEW = 3; // runs: more that are not chosen are folded; more have what they share below their table

const settings = (name) => [name, (run) => run.settings[name]];

const write = (run, [, of, words = (each) => (typeof each === "number" ? number(each) : String(each).replaceAll("_", " "))]) => ((of(run) ?? null) === null ? "–" : words(of(run), run));

const BEST = "best validation";

/** The score that chose the best models of all runs; undefined where they differ. */
function scoreOf(runs) {
  const names = new Set(runs.flatMap(({ best }) => (best ? [best[0]] : [])));
  return names.size === 1 ? figureName([...names][0]) : undefined;
}

/** Columns of the table of all runs: what is told of a run, for the order, how it is written, and what stands above it but its name. */
const columnsOf = (runs, score = scoreOf(runs)) => [
  ...[...new Set(runs.flatMap((run) => Object.keys(run.settings)))].map(settings),
  // Runs with one score stand together: BLEU is not compared with accuracy.
  [BEST, (run) => run.best, ([name, value]) => `${score ? "" : `${figureName(name)} `}${number(value, 3)}`, score && `${BEST} ${score}`],
  ["state", stateOf],
  ["step", (run) => run.step, (step, run) => `${number(step)}${run.max_steps && run.max_steps !== step ? ` of ${number(run.max_steps)}` : ""}`],
  ["newest loss", (run) => run.loss, (loss) => number(loss, 3)],
  ["time", (run) => run.seconds, duration],
  ["predicted tokens a second", (run) => (run.seconds > 0 ? run.total_tokens / run.seconds : null), (value) => number(value, 3)],
  ["parameters", (run) => run.parameters, tokens],
].filter(([, of]) => runs.some((run) => (of(run) ?? null) !== null));

/** Whether one value comes before another; runs without the value come last, whichever way. */
function compared(one, other, down) {
  if (one === null || other === null) return Number(one === null) - Number(other === null);
  if (Array.isArray(one)) return one[0] === other[0] ? compared(one[1], other[1], down) : one[0].localeCompare(other[0]);
  const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
  return down ? -order : order;
}

/** Whether each part of a search, parted by commas, stands in the name of a run or in one of its settings. */
function isMeant(run, search) {
  const said = [run.name, ...Object.entries(run.settings).map((setting) => setting.join(" "))].map((each) => each.toLowerCase());
  return search.toLowerCase().split(",").every((part) => said.some((each) => each.includes(part.trim())));
}

/** All runs, one a row: a heading puts them in order, a tick shows the curves of a run, and its row under the pointer lifts them out. */
function tableOfRuns(state, runs, lift) {
  const all = columnsOf(runs);
  // What many runs share is said below, once.
  const shared = runs.length > FEW ? all.filter((column) => new Set(runs.map((run) => write(run, column))).size === 1) : [];
  const columns = [["run", (run) => run.name], ...all.filter((column) => !shared.includes(column))];
  const titles = columns.map(([name, , , title = name]) => title);
  const { sort, runs: chosen } = state.values;
  const [by, down] = [sort.replace(/^-/, ""), sort.startsWith("-")];
  const value = columns.find(([name]) => name === by)?.[1];
  const rows = value ? [...runs].sort((a, b) => compared(value(a) ?? null, value(b) ?? null, down)) : runs;
  const tick = (run) => {
    const box = h("input", { type: "checkbox", "data-run": run.name, "aria-label": `Curves of ${run.name}` });
    box.checked = chosen.includes(run.name);
    box.addEventListener("change", () => state.set({ runs: box.checked ? [...chosen, run.name] : chosen.filter((name) => name !== run.name) }, { step: true }));
    return h("label", { class: "check" }, box, h("span", {}, run.name));
  };
  const made = table("State of the runs", titles, rows.map((run) => [tick(run), ...columns.slice(1).map((column) => write(run, column))]));
  [...made.querySelectorAll("thead th")].forEach((heading, i) => {
    const [name] = columns[i];
    heading.setAttribute("aria-sort", name !== by ? "none" : down ? "descending" : "ascending");
    heading.replaceChildren(h("button", { type: "button", class: "sort", title: "Put the runs in this order", onclick: () => state.set({ sort: name !== by ? name : down ? "" : `-${name}` }) }, titles[i]));
  });
  made.querySelectorAll("tbody tr").forEach((row, i) => {
    for (const into of ["pointerenter", "focusin"]) row.addEventListener(into, () => lift(rows[i].name));
    for (const out of ["pointerleave", "focusout"]) row.addEventListener(out, () => lift());
  });
  if (shared.length) made.append(h("p", { class: "note" }, `In all: ${shared.map((column) => `${column[0]} ${write(runs[0], column)}`).join(", ")}.`));
  return made;
}

export function comparison(state, lift) {
  const standing = h("div", {});
  const differences = h("div", {});
  const scores = h("div", {});
  const score = choice(state, "score", { label: "Score", options: [["", "the one that chooses the model"]] });
  const target = text(state, "target", { label: "Score to reach", hint: "Left empty: the best that all of them reached." });
  const controls = panel(score, target);
  const scored = folded("Scores, and what it took to reach one", controls, scores);
  const these = button("", () => state.set({ runs: meant().map(({ name }) => name) }, { step: true }), { quiet: true });
  const search = h("div", { class: "row search" }, text(state, "find", { label: "Search names and settings, several with commas: width 64, rate 0.004" }), these);
  const element = section("All runs", h("p", { class: "hint" }, "A heading sorts them, a tick shows the curves of a run, a row under the pointer lifts them out."), search, standing, scored, differences);

  const ask = live(scores, (signal) => {
    const { runs, score: chosen, target: goal } = state.values;
    const wanted = Number(goal.replace(",", "."));
    return call("runs", "compare", { runs, score: chosen, target: goal.trim() === "" || !Number.isFinite(wanted) ? null : wanted }, signal);
  }, (found) => {
    score.fill([["", "the one that chooses the model"], ...found.scores.map((name) => [name, figureName(name)])]);
    controls.hidden = !found.scores.length;
    if (!found.score) {
      scores.replaceChildren(found.runs.length ? h("p", { class: "note" }, "None of these runs was validated yet.") : "");
      return;
    }
    const best = found.runs.map((run) => run.best).filter((value) => value !== null);
    const top = found.lower_is_better ? Math.min(...best) : Math.max(...best);
    const first = found.runs.find((run) => run.best !== null);
    const goal = number(found.target);
    scores.replaceChildren(table(`Validation: ${figureName(found.score)}${found.lower_is_better ? ", less is better" : ""}`,
      ["run", "best", "at step", ...(best.length > 1 ? [`beside ${first.name}`] : []), "newest", `step at ${goal}`, `time to ${goal}`, `target tokens to ${goal}`],
      found.runs.map((run) => [run.name, run.best === top ? h("strong", {}, number(run.best)) : number(run.best), number(run.best_step),
        ...(best.length > 1 ? [run === first || run.best === null ? "–" : signed(run.difference)] : []), number(run.newest),
        ...(run.reached ? [number(run.reached.step), duration(run.reached.seconds), tokens(run.reached.total_tokens)] : ["not reached", "–", "–"])])));
  });

  let runs = [];
  let told = ""; // the differences that are shown
  const meant = () => runs.filter((run) => isMeant(run, state.values.find));
  /** Put the table anew in its place; a heading or a tick that had the focus has it again. */
  function order() {
    const focused = standing.contains(document.activeElement) ? document.activeElement : null;
    const at = [...standing.querySelectorAll("thead button")].indexOf(focused);
    const isChosen = (run) => state.values.runs.includes(run.name);
    const found = meant();
    const others = found.filter((run) => !isChosen(run));
    search.hidden = runs.length <= MANY && state.values.find === "";
    these.textContent = `Curves of ${found.length === 1 ? "this one" : `these ${found.length}`}`;
    these.disabled = !found.length;
    const open = standing.querySelector("details")?.open ?? false;
    const folds = others.length < found.length && others.length > (found.length - others.length > FEW ? 0 : FEW); // beside many, any other is folded
    if (!found.length) standing.replaceChildren(h("p", { class: "note" }, runs.length ? `No run has “${state.values.find}” in its name or its settings.` : ""));
    else standing.replaceChildren(tableOfRuns(state, folds ? found.filter(isChosen) : found, lift));
    if (folds) {
      const more = folded(others.length === 1 ? "1 other run" : `${others.length} other runs`, tableOfRuns(state, others, lift));
      more.open = open;
      standing.append(more);
    }
    if (focused) standing.querySelector(at < 0 ? `[data-run="${CSS.escape(focused.dataset.run)}"]` : `th:nth-child(${at + 1}) button`)?.focus({ preventScroll: true });
  }

  return {
    element, ask, order,
    /** Show how far the runs are. */
    show(found) {
      runs = found.runs;
      scored.hidden = state.values.runs.length < 2; // a run alone is compared with none
      order();
      const rows = found.differences;
      const now = JSON.stringify([state.values.runs, rows]);
      if (now === told) return; // asked anew every few seconds: what was unfolded stays so
      told = now;
      const differing = () => table("Settings in which they differ", ["setting", ...state.values.runs.filter((name) => Object.keys(runs.find((run) => run.name === name)?.settings ?? {}).length)], rows.map((row) => [row.setting, ...row.values]), { words: true });
      differences.replaceChildren(rows.length ? folded(`${rows.length} ${rows.length === 1 ? "setting" : "settings"} in which they differ`, differing) : "");
    },
  };
}
