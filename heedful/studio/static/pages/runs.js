import { call, live } from "../api.js";
import { check, choice, panel, several, slider, text } from "../controls.js";
import { figure, h, number, section, table } from "../dom.js";
import { lineChart } from "../draw/lines.js";

export const defaults = (studio) => ({
  runs: studio.places.filter((place) => place.run).map((place) => place.name).slice(0, 6),
  figure: "loss", axis: "step", smooth: 0, logx: false, logy: false, lines: "",
});

const AXES = { step: "step", seconds: "seconds of training", total_tokens: "target tokens" };
const EVERY = 3000; // milliseconds between two looks at running runs

export function mount({ root, side, state, studio }) {
  const names = studio.places.filter((place) => place.run).map((place) => place.name);
  if (!names.length) {
    root.append(h("p", { class: "sentence" }, "The studio was given no run. Start it with one, finished or still training: ", h("code", {}, "heedful studio run"), "."));
    return;
  }
  const title = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
  const which = choice(state, "figure", { label: "Figure", options: ["loss"] });
  const picture = figure("Loss");
  const standing = h("div", {});
  const differences = h("div", {});
  const written = h("div", {});
  const body = h("div", {}, picture.element, standing, differences);
  side.append(
    panel(several(state, "runs", { label: "Runs", options: names }), which,
      choice(state, "axis", { label: "By", options: Object.entries(AXES) }),
      slider(state, "smooth", { label: "Smoothing", min: 0, max: 0.99, step: 0.01 }),
      check(state, "logx", { label: "Logarithmic axis" }), check(state, "logy", { label: "Logarithmic figure" })));
  root.append(body,
    section("Texts of the models", h("div", { class: "panel" }, text(state, "lines", { label: "Lines to translate or to continue, up to five", rows: 3 })), written));

  let steps = "";
  const ask = live(body, (signal) => call("runs", "curves", { runs: state.values.runs, figure: state.values.figure, axis: state.values.axis }, signal), (found) => {
    const { figure: shown, axis, smooth, logx, logy } = state.values;
    const offered = [...new Set([shown, ...found.figures])];
    which.fill(offered);
    picture.element.querySelector("h3").textContent = title(shown);
    const colours = new Map(names.map((name, i) => [name, i]));
    lineChart(picture.host, {
      series: found.runs.flatMap((run) => [
        { name: run.name, colour: colours.get(run.name), points: run.train, faint: smooth > 0 || (run.validation.length > 0 && run.train.length > 0) },
        { name: `${run.name}, smoothed`, colour: colours.get(run.name), points: smooth > 0 ? smoothed(run.train, smooth) : [] },
        { name: `${run.name}, validation`, colour: colours.get(run.name), points: run.validation, dots: run.validation.length < 40 },
      ]),
      x: { label: AXES[axis], log: logx }, y: { label: shown.replaceAll("_", " "), log: logy }, height: 360,
      describe: `${shown} of ${found.runs.length} runs by ${AXES[axis]}, in training and in validation.`,
      empty: "Choose a run that has written this figure.",
    });
    standing.replaceChildren(found.runs.length ? table("State of the runs", ["run", "state", "step", "of", "task", "tokens a second", "newest validation"], found.runs.map((run) => [
      run.name, run.done ?? "not finished", number(run.step), number(run.max_steps), run.task, number(run.tokens_per_second, 3),
      Object.entries(run.newest).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`).join(", ") || "–"])) : "");
    differences.replaceChildren(found.differences.length ? table("Settings in which they differ", ["setting", ...found.runs.map((run) => run.name)], found.differences.map((row) => [row.setting, ...row.values]), { words: true }) : "");
    const now = JSON.stringify(found.runs.map((run) => run.newest));
    if (now !== steps) {
      steps = now;
      samples(); // validation may have found a better model
    }
  });
  let answered = "";
  const samples = live(written, (signal) => {
    const lines = state.values.lines.split("\n").filter((line) => line.trim() !== "").slice(0, 5);
    return call("runs", "samples", { runs: state.values.runs, lines }, signal);
  }, (found) => {
    const now = JSON.stringify(found);
    if (now === answered) return;
    answered = now;
    for (const old of written.querySelectorAll(":scope > .result")) old.remove();
    if (!found.lines.length) return;
    written.append(h("div", { class: "result" }, table("Texts of each run's best model", ["line", ...found.samples.map((each) => each.run)], found.lines.map((line, i) =>
      [line, ...found.samples.map((each) => h("span", { dir: "auto", class: "sample" }, each.texts[i] ?? each.problem ?? "–"))]))));
  });
  state.watch((_, changed) => {
    if (changed.some((name) => name !== "lines")) ask();
    if (changed.includes("lines") || changed.includes("runs")) samples();
  });
  ask();
  setInterval(() => {
    if (!document.hidden) ask();
  }, EVERY);
}

/**
 * A moving average that forgets: each point has the weight of the one after it times `smooth`. The
 * sum of the weights so far divides it, so that the first points are not drawn towards 0.
 */
function smoothed(points, smooth) {
  let [sum, weight] = [0, 0];
  return points.map(([step, value]) => {
    sum = smooth * sum + value;
    weight = smooth * weight + 1;
    return [step, sum / weight];
  });
}
