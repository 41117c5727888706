// Runs side by side: how far each is, its scores, what it took to reach one, and its settings.

import { call, live } from "./api.js";
import { choice, panel, text } from "./controls.js";
import { engineering, h, number, section, table } from "./dom.js";

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
const ENDS = [[/^max_steps = (\d+) reached/, "steps"], [/^max_epochs = (\d+) reached/, "passes over the data"], [/^max_minutes = (\d+) reached/, "minutes"]];

/** Why a run ended, from the words of its record. */
function endOf(reason) {
  const [limit, unit] = ENDS.find(([form]) => form.test(reason)) ?? [];
  return limit ? `complete: ${number(Number(limit.exec(reason)[1]))} ${unit}` : reason;
}

/** The settings of a run by itself; of several those are shown in which they differ. */
function settingsOf(runs) {
  const { settings = {}, parameters, task } = runs.length === 1 ? runs[0] : {};
  const of = (key) => settings[key];
  const blocks = { causal_lm: ["decoder"], masked_lm: ["encoder"], translation: ["encoder", "decoder"] }[task] ?? [];
  const rows = [["parameters", parameters && tokens(parameters)],
    ["blocks", blocks.map((part) => of(`model.${part}_layers`) ?? "").join(" + ").trim() || null],
    ["width", of("model.width")], ["heads", of("model.num_heads")], ["dropout", of("model.dropout")], ["learning rate", of("schedule.peak_learning_rate")],
    ["schedule", of("schedule.kind")?.replaceAll("_", " ")], ["warm-up, steps", of("schedule.warmup_steps")], ["optimizer", of("optimizer.kind")], ["tokens a step", of("data.batch_tokens")]]
    .filter(([, value]) => value !== null && value !== undefined && value !== "+");
  return rows.length ? table("Settings of the run", rows.map(([name]) => name), [rows.map(([, value]) => (typeof value === "number" ? number(value) : value))]) : "";
}

const signed = (value) => (value === 0 ? "0" : `${value > 0 ? "+" : ""}${number(value, 3)}`);

function stateOf(run) {
  if (run.training) return run.left > 0 ? `in training, about ${duration(run.left)} left` : "in training";
  if (run.done) return run.begun ? `${endOf(run.done)}, begun from another model's weights` : endOf(run.done);
  return run.quiet === null ? "has begun, and written nothing yet" : `stopped before its end: nothing written for ${duration(run.quiet)}`;
}

/** The scores of the newest validation, one below the other; bits are the loss in another unit. */
function newest(run) {
  const scores = Object.entries(run.newest).filter(([name]) => !["step", "bits_per_token"].includes(name));
  return scores.length ? h("span", { class: "stacked" }, scores.map(([name, value]) => h("span", {}, `${figureName(name)} ${number(value)}`))) : "–";
}

export function comparison(state) {
  const standing = h("div", {});
  const differences = h("div", {});
  const scores = h("div", {});
  const score = choice(state, "score", { label: "Score", options: [["", "the one that chooses the model"]] });
  const target = text(state, "target", { label: "Score to reach", hint: "Left empty: the best that all of them reached." });
  const controls = panel(score, target);
  const scored = h("div", { hidden: true }, controls, scores);
  const element = section("State and scores", standing, scored, differences);

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

  return {
    element, ask,
    /** Show how far the runs are. */
    show(found) {
      element.hidden = !found.runs.length;
      scored.hidden = found.runs.length < 2; // a run alone is compared with none
      standing.replaceChildren(table("State of the runs", ["run", "state", "step", "time", "target tokens", "tokens a second", "newest validation"], found.runs.map((run) => [
        run.name, stateOf(run), `${number(run.step)}${run.max_steps && run.max_steps !== run.step ? ` of ${number(run.max_steps)}` : ""}`, duration(run.seconds), tokens(run.total_tokens), run.seconds > 0 ? number(run.total_tokens / run.seconds, 3) : "–", newest(run)])), settingsOf(found.runs));
      differences.replaceChildren(found.differences.length ? table("Settings in which they differ", ["setting", ...found.runs.map((run) => run.name)], found.differences.map((row) => [row.setting, ...row.values]), { words: true }) : "");
    },
  };
}
