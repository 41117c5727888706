import { addressOf } from "../address.js";
import { call, live, problem } from "../api.js";
import { button, check, choice, copyable, more, panel, slider } from "../controls.js";
import { figure, folded, h, number } from "../dom.js";
import { facts } from "../draw/facts.js";
import { lineChart } from "../draw/lines.js";
import { meanCurve, percent } from "../small_runs.js";
import { labelSmoothing, smoothingDefaults } from "../smoothing.js";

export const wide = true;
export const defaults = () => ({
  kind: "inverse_sqrt", warmup: 4000, paper: true, peak: 0.001, final: 0, width: 512, steps: 40000, log: false, others: false, run: "", ...smoothingDefaults,
});

const NAMES = { inverse_sqrt: "inverse square root", cosine: "cosine", linear: "linear", constant: "constant" };
const RARE = ["kind", "others", "paper", "log", "run"];
const STEPS = [100, 200, 500, 1000, 2000, 5000, 10000, 20000, 40000, 50000, 100000, 200000, 300000, 500000, 1000000];
const RATES = [0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01];
const WIDTHS = [32, 64, 128, 256, 512, 768, 1024, 2048, 4096];

export function mount({ root, side, state, studio }) {
  const runs = studio.places.filter((place) => place.run && !place.compared).map((place) => place.name);
  const fields = {
    width: slider(state, "width", { label: "Width of the model", stops: WIDTHS }),
    peak: slider(state, "peak", { label: "Peak", stops: RATES }),
    final: slider(state, "final", { label: "Rate at the end", stops: [0, ...RATES] }),
  };
  const taking = button("Take its settings", () => take(state.values.run), { quiet: true });
  const rare = more("Other schedules, peak and runs",
    choice(state, "kind", { label: "Schedule", options: Object.entries(NAMES) }),
    check(state, "others", { label: "All schedules, side by side" }),
    check(state, "paper", { label: "Peak by the 2017 formula" }), fields.width, fields.peak, fields.final,
    check(state, "log", { label: "Logarithmic axes" }),
    runs.length ? choice(state, "run", { label: "Lay a run over it", options: [["", "none"], ...runs] }) : null, taking);
  rare.open = state.differs(RARE);
  side.append(
    panel(
      slider(state, "warmup", { label: "Warm-up, steps", stops: [0, 10, 50, 100, 200, 500, 1000, 2000, 4000, 8000, 10000, 16000, 40000] }),
      slider(state, "steps", { label: "Steps in all", stops: STEPS }),
      rare));
  const numbers = h("div", {});
  const picture = figure("Learning rate: warm-up, then decay");
  const file = copyable("Settings of this schedule");
  const body = h("div", {}, picture.element, warmupProof(), numbers,
    folded("For your settings file", h("p", {}, "What ", h("code", {}, "heedful train RUN --config FILE"), " takes for this curve."), file.element));
  const beside = folded("Label smoothing: targets that are not quite certain", () => labelSmoothing(state));
  beside.open = isSmoothed(state.values);
  root.append(body, beside);

  async function take(name) {
    try {
      const found = await call("schedule", "settings", { run: name });
      state.set({
        kind: found.kind, warmup: found.warmup_steps, paper: found.peak_learning_rate === undefined,
        peak: found.peak_learning_rate ?? state.values.peak, final: found.final_learning_rate, width: found.width,
        steps: found.max_steps,
      }, { step: true });
    } catch (error) {
      body.prepend(problem(error));
    }
  }

  const ask = live(body, (signal) => {
    const { kind, warmup, paper, peak, final, width, steps, run } = state.values;
    return call("schedule", "curve", {
      kind, warmup_steps: warmup, ...(paper ? {} : { peak_learning_rate: peak }), final_learning_rate: final,
      width, max_steps: steps, runs: run ? [run] : [],
    }, signal);
  }, (found) => {
    const { kind, log, others, paper } = state.values;
    const kinds = Object.keys(NAMES);
    const series = kinds.filter((each) => others || each === kind).map((each) => ({
      name: NAMES[each], colour: kinds.indexOf(each), dashed: each !== kind,
      points: found.steps.map((step, i) => [step, found.curves[each][i]]),
    }));
    series.push(...Object.entries(found.runs).map(([name, points], i) => ({ name: `${name}, as logged`, colour: 4 + i, points })));
    numbers.replaceChildren(facts([
      ["highest rate", number(found.peak), "peak"],
      ["reached at step", number(found.peak_step), "peak-step"],
      ["rate at the last step", number(found.curves[kind].at(-1)), "last"],
    ]));
    lineChart(picture.host, {
      series, x: { label: "step", log, text: log ? null : (step) => number(step) }, y: { label: "learning rate", log, zero: !log }, height: 260, ends: true,
      mark: found.peak_step > 1 ? [found.peak_step, "end of the warm-up"] : null,
      describe: `The learning rate over ${number(found.steps.at(-1))} steps; it peaks at ${number(found.peak)} at step ${number(found.peak_step)}.`,
    });
    const raised = (power) => h("sup", {}, power);
    picture.words.replaceChildren(...(kind === "inverse_sqrt" && paper ? ["The formula of 2017: width", raised("−0.5"), " · min(step", raised("−0.5"), ", step · warm-up", raised("−1.5"), ")."] : []));
    file.set(found.toml);
  });
  const arrange = ({ paper, kind, run }) => {
    taking.hidden = !run;
    fields.width.hidden = !paper;
    fields.peak.hidden = paper;
    fields.final.hidden = kind !== "cosine" && kind !== "linear";
  };
  state.watch((values, changed) => {
    if (isSmoothed(values)) beside.open = true;
    if (changed.every((name) => name in smoothingDefaults)) return;
    arrange(values);
    ask();
  });
  arrange(state.values);
  ask();
}

const isSmoothed = (values) => Object.entries(smoothingDefaults).some(([name, usual]) => values[name] !== usual);

/** What the warm-up is worth: the recorded losses of a translator with it and without it. */
function warmupProof() {
  const { element, host, words } = figure("With warm-up and without: the loss of a small translator");
  live(element, (signal) => call("without", "recorded", {}, signal), ({ variants }) => {
    const [given, without] = ["six", "warmup"].map((name) => variants.find((each) => each.name === name));
    const end = (each) => number(each.scores.loss.mean, 2);
    const exact = ({ scores: { exact: { mean } } }) => percent({ mean, low: mean, high: mean });
    lineChart(host, {
      series: [["with warm-up", given], ["without warm-up", without]].map(([name, { runs }], i) => ({ name, colour: i, points: meanCurve(runs, "loss") })),
      x: { label: "step" }, y: { label: "loss on unseen dates", log: true }, height: 230, ends: true, mark: [160, "end of the warm-up"],
      describe: "Validation loss of a translator of six layers over 800 steps, with warm-up and without.",
    });
    words.replaceChildren(`Without warm-up the loss falls sooner, and then stays behind: ${end(without)} against ${end(given)} at the end, and ${exact(without)} of unseen dates translated exactly, not ${exact(given)}. The usual reason: the optimizer divides each step by an average of past gradients, which at first knows few batches. Six layers, means of ${number(given.runs.length)} runs. `,
      h("a", { href: addressOf("without", "shown=six&shown=warmup") }, "What each writes"), ".");
  })();
  return element;
}
