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
const spoken = (name) => name.replaceAll("_", " ");
const signed = (value) => (value === 0 ? "0" : `${value > 0 ? "+" : ""}${number(value, 3)}`);

export function stateOf(run) {
  if (run.training) return run.left > 0 ? `in training, about ${duration(run.left)} left` : "in training";
  if (run.done) return run.begun ? `${run.done}, begun from another model's weights` : run.done;
  return run.quiet === null ? "has begun, and written nothing yet" : `stopped before its end: nothing written for ${duration(run.quiet)}`;
}

export function comparison(state) {
  const standing = h("div", {});
  const differences = h("div", {});
  const scores = h("div", {});
  const score = choice(state, "score", { label: "Score", options: [["", "the one that chooses the model"]] });
  const target = text(state, "target", { label: "Score to reach", hint: "Left empty: the best that all of them reached." });
  const controls = panel(score, target);
  const element = section("Runs side by side", standing, controls, scores, differences);

  const ask = live(scores, (signal) => {
    const { runs, score: chosen, target: goal } = state.values;
    const wanted = Number(goal.replace(",", "."));
    return call("runs", "compare", { runs, score: chosen, target: goal.trim() === "" || !Number.isFinite(wanted) ? null : wanted }, signal);
  }, (found) => {
    score.fill([["", "the one that chooses the model"], ...found.scores.map((name) => [name, spoken(name)])]);
    controls.hidden = !found.scores.length;
    if (!found.score) {
      scores.replaceChildren(found.runs.length ? h("p", { class: "note" }, "None of these runs was validated yet.") : "");
      return;
    }
    const best = found.runs.map((run) => run.best).filter((value) => value !== null);
    const top = found.lower_is_better ? Math.min(...best) : Math.max(...best);
    const first = found.runs.find((run) => run.best !== null);
    const goal = number(found.target);
    scores.replaceChildren(table(`Validation: ${spoken(found.score)}${found.lower_is_better ? ", less is better" : ""}`,
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
      standing.replaceChildren(table("State of the runs", ["run", "state", "step", "of", "time", "target tokens", "tokens a second", "newest validation"], found.runs.map((run) => [
        run.name, stateOf(run), number(run.step), number(run.max_steps), duration(run.seconds), tokens(run.total_tokens), number(run.tokens_per_second, 3),
        Object.entries(run.newest).filter(([name]) => name !== "step").map(([name, value]) => `${spoken(name)} ${number(value)}`).join(", ") || "–"])));
      differences.replaceChildren(found.differences.length ? table("Settings in which they differ", ["setting", ...found.runs.map((run) => run.name)], found.differences.map((row) => [row.setting, ...row.values]), { words: true }) : "");
    },
  };
}
