import { call, live, problem } from "../api.js";
import { button, check, choice, copyable, more, panel, slider } from "../controls.js";
import { figure, folded, h, number, percent } from "../dom.js";
import { lineChart } from "../draw/lines.js";
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
const SIDES = { left: 78, right: 86 }; // of both charts: the ends of their warm-ups stand one above the other

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
      slider(state, "warmup", { label: "Warm-up, steps", stops: [0, 100, 500, 1000, 2000, 4000, 8000, 16000, 32000] }),
      slider(state, "steps", { label: "Steps in all", stops: STEPS }),
      rare));
  const picture = figure("Learning rate: warm-up, then decay");
  const file = copyable("Settings of this schedule");
  const body = h("div", {}, picture.element, warmupRuns(state),
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

  const ask = live(body, async (signal) => {
    const { kind, warmup, paper, peak, final, width, steps, run } = state.values;
    const formula = call("schedule", "curve", {
      kind, warmup_steps: warmup, ...(paper ? {} : { peak_learning_rate: peak }), final_learning_rate: final,
      width, max_steps: steps,
    }, signal);
    const [found, own] = await Promise.all([formula, run ? call("schedule", "settings", { run }, signal) : null]);
    return { ...found, logged: own?.logged };
  }, (found) => {
    const { kind, log, others, paper } = state.values;
    const kinds = Object.keys(NAMES);
    const series = kinds.filter((each) => others || each === kind).map((each) => ({
      name: NAMES[each], colour: kinds.indexOf(each), dashed: each !== kind,
      points: found.steps.map((step, i) => [step, found.curves[each][i]]),
    }));
    if (found.logged) series.push({ name: `${state.values.run}, as logged`, colour: kinds.length, points: found.logged });
    lineChart(picture.host, {
      series, x: { label: "step", log, text: log ? null : (step) => number(step) }, y: { label: "learning rate", log, zero: !log }, height: 190, ends: series.length > 1, ...SIDES,
      mark: found.peak_step > 1 ? [found.peak_step, "end of the warm-up"] : null,
      describe: `The learning rate over ${number(found.steps.at(-1))} steps; it peaks at ${number(found.peak)} at step ${number(found.peak_step)}.`,
    });
    const raised = (power) => h("sup", {}, power);
    const fact = (key, value) => h("strong", { "data-fact": key }, number(value));
    picture.words.replaceChildren("Highest: ", fact("peak", found.peak), " at step ", fact("peak-step", found.peak_step), ". At the last step: ", fact("last", found.curves[kind].at(-1)), ". ",
      ...(kind === "inverse_sqrt" && paper ? ["Formula of 2017: width", raised("−0.5"), " · min(step", raised("−0.5"), ", step · warm-up", raised("−1.5"), ")."] : []));
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

/** What the warm-up is worth: recorded losses of one translator by the share of its steps that are warm-up. */
function warmupRuns(state) {
  const { element, host, words } = figure("The same share of warm-up in a small translator: click a line");
  let found = null;
  const share = (run) => run.steps / found.steps;
  const name = (run) => (run.steps ? percent(share(run)) : "no warm-up");
  const draw = live(element, (signal) => found ?? call("schedule", "warmups", {}, signal), (answer) => {
    found = answer;
    const { warmup, steps } = state.values;
    const away = (run) => Math.abs(share(run) - warmup / steps);
    const chosen = found.warmups.reduce((best, run) => (away(run) < away(best) ? run : best));
    lineChart(host, {
      // The chosen one last, above the others.
      series: [...found.warmups.filter((run) => run !== chosen), chosen].map((run) => ({
        run, name: name(run), points: run.loss, colour: run === chosen ? 0 : "var(--soft)", faint: run !== chosen, named: true, strong: run === chosen,
      })),
      x: { label: "step", domain: [0, found.steps] }, y: { label: "loss on unseen dates", log: true }, height: 240, ends: true, ...SIDES,
      under: chosen.rates, mark: chosen.steps ? [chosen.steps, "end of the warm-up"] : null,
      choose: ({ run }) => state.set({ warmup: Math.round(share(run) * state.values.steps) }, { step: true }),
      describe: `Validation loss of a translator of six layers over ${found.steps} steps, with warm-ups of ${found.warmups.map(name).join(", ")} of them.`,
    });
    words.replaceChildren(...sentence(found, chosen, away(chosen) < 0.01));
  });
  state.watch((_, changed) => {
    if (changed.includes("warmup") || changed.includes("steps")) draw();
  });
  draw();
  return element;
}

/** What the runs of the chosen warm-up came to, beside the best ones and those without. */
function sentence({ warmups, steps, seeds, rate }, chosen, isRecorded) {
  const best = warmups.reduce((one, run) => (mean(run) < mean(one) ? run : one));
  const none = warmups[0];
  const overlaps = (one, other) => one !== other && one.low <= other.high && other.low <= one.high;
  const share = (value) => percent(value).replace(" ", "\u00a0");
  const of = (run) => share(run.steps / steps);
  const figures = (run) => `${mean(run).toFixed(2)}, ${share(run.exact)}`;
  const alike = warmups.filter((run) => overlaps(run, best)).map(of).join(" and ");
  const lowest = chosen === best ? `The lowest loss${alike ? `, but runs with ${alike} overlap` : ""}.`
    : `Lowest with ${of(best)} (${figures(best)})${overlaps(chosen, best) ? ", but the runs overlap" : ""}.`;
  const without = chosen === none ? "" : ` (${figures(none)}${overlaps(chosen, none) ? ", but the runs overlap" : ""})`;
  return [h("strong", { "data-fact": "chosen" }, chosen === none ? "No warm-up" : `Warm-up over ${of(chosen)} of the steps`), isRecorded ? "" : ", the nearest that was recorded",
    `: loss ${mean(chosen).toFixed(2)} at the end, ${share(chosen.exact)} of unseen dates exactly right. `, h("span", { "data-fact": "lowest" }, lowest),
    ` Without warm-up the loss falls sooner and ends higher${without}; the usual reason: Adam's averages of past gradients at first know few batches. Means of ${seeds} runs. Shaded: the learning rate, to ${rate} and down a cosine.`];
}

const mean = (run) => run.loss.at(-1)[1];
