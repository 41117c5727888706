import { call, live, problem } from "../api.js";
import { button, check, choice, copyable, panel, slider } from "../controls.js";
import { figure, folded, foldedSection, h, number, percent } from "../dom.js";
import { lineChart } from "../draw/lines.js";
import { shareCell, wordShares } from "../word_shares.js";
import { labelSmoothing, smoothingDefaults } from "../smoothing.js";

export const wide = true;
export const defaults = () => ({
  kind: "inverse_sqrt", warmup: 4000, paper: true, peak: 0.001, final: 0, width: 512, steps: 20000, log: false, others: false, run: "", ...smoothingDefaults,
});

const NAMES = { inverse_sqrt: "inverse square root", cosine: "cosine", linear: "linear", constant: "constant" };
const OF_PLAN = ["kind", "others", "paper", "log", "run", "steps", "peak", "final", "width"]; // what the recorded runs do not follow
const STEPS = [100, 200, 500, 1000, 2000, 5000, 10000, 20000, 40000, 50000, 100000, 200000, 300000, 500000, 1000000];
const RATES = [0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01];
const WIDTHS = [32, 64, 128, 256, 512, 768, 1024, 2048, 4096];

export function mount({ root, state, studio }) {
  const plan = foldedSection("Plan a training: the schedule of 2017 and others", () => planned(state, studio));
  const beside = foldedSection("Label smoothing: targets that are not quite certain", () => labelSmoothing(state));
  const open = (values) => {
    plan.open ||= state.differs(OF_PLAN);
    beside.open ||= isSmoothed(values);
  };
  root.append(warmupRuns(state), plan, beside);
  state.watch(open);
  open(state.values);
}

/** The learning rate of a training of one's own, by its settings. */
function planned(state, studio) {
  const runs = studio.places.filter((place) => place.run && !place.compared).map((place) => place.name);
  const fields = {
    width: slider(state, "width", { label: "Width of the model", stops: WIDTHS }),
    peak: slider(state, "peak", { label: "Peak", stops: RATES }),
    final: slider(state, "final", { label: "Rate at the end", stops: [0, ...RATES] }),
  };
  const taking = button("Take its settings", () => take(state.values.run), { quiet: true });
  const settings = panel(
    slider(state, "warmup", { label: "Warm-up, steps", stops: [0, 100, 500, 1000, 2000, 4000, 8000, 16000, 32000] }),
    slider(state, "steps", { label: "Steps in all", stops: STEPS }),
    choice(state, "kind", { label: "Schedule", options: Object.entries(NAMES) }),
    fields.width, fields.peak, fields.final,
    runs.length ? choice(state, "run", { label: "Lay a run over it", options: [["", "none"], ...runs] }) : null, taking,
    check(state, "paper", { label: "Peak by the 2017 formula" }),
    check(state, "others", { label: "All schedules, side by side" }),
    check(state, "log", { label: "Logarithmic axes" }));
  settings.classList.add("inner");
  const picture = figure("Learning rate of your training");
  const file = copyable("Settings of this schedule");
  const body = h("div", {}, settings, picture.element,
    folded("For your settings file", h("p", {}, "What ", h("code", {}, "heedful train RUN --config FILE"), " takes for this curve."), file.element));

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
    const { kind, others, paper, warmup } = state.values;
    // Without a warm-up the inverse square root falls by ten in a hundred steps: on other axes, a spike.
    const falls = kind === "inverse_sqrt" && warmup === 0;
    const log = state.values.log || falls;
    const kinds = Object.keys(NAMES);
    const series = kinds.filter((each) => others || each === kind).map((each) => ({
      name: NAMES[each], colour: kinds.indexOf(each), dashed: each !== kind,
      points: found.steps.map((step, i) => [step, found.curves[each][i]]),
    }));
    if (found.logged) series.push({ name: `${state.values.run}, as logged`, colour: kinds.length, points: found.logged });
    lineChart(picture.host, {
      series, x: { label: "step", log, text: log ? null : (step) => number(step) }, y: { label: "learning rate", log, zero: !log }, height: 220, ends: series.length > 1,
      mark: found.peak_step > 1 ? [found.peak_step, "end of the warm-up"] : null,
      describe: `The learning rate over ${number(found.steps.at(-1))} steps; it peaks at ${number(found.peak)} at step ${number(found.peak_step)}.`,
    });
    const raised = (power) => h("sup", {}, power);
    const fact = (key, value) => h("strong", { "data-fact": key }, number(value));
    picture.words.replaceChildren("Highest: ", fact("peak", found.peak), " at step ", fact("peak-step", found.peak_step), ". At the last step: ", fact("last", found.curves[kind].at(-1)), ". ",
      ...(falls ? ["Without a warm-up it falls from the first step on; logarithmic axes. "] : []),
      ...(kind === "inverse_sqrt" && paper ? ["Formula of 2017: width", raised("−0.5"), ...(falls ? [" · step", raised("−0.5")] : [" · min(step", raised("−0.5"), ", step · warm-up", raised("−1.5"), ")"]), "."] : []));
    file.set(found.toml);
  });
  const arrange = ({ paper, kind, run }) => {
    taking.hidden = !run;
    fields.width.hidden = !paper;
    fields.peak.hidden = paper;
    fields.final.hidden = kind !== "cosine" && kind !== "linear";
  };
  state.watch((values, changed) => {
    if (changed.every((name) => name in smoothingDefaults)) return;
    arrange(values);
    ask();
  });
  arrange(state.values);
  ask();
  return body;
}

const isSmoothed = (values) => Object.entries(smoothingDefaults).some(([name, usual]) => values[name] !== usual);

/** What the warm-up is worth: of one translator, trained with six warm-ups, the right answers, the rates and the losses. */
function warmupRuns(state) {
  const bars = h("div", { class: "warmups" });
  const pictures = [figure("Learning rate: the size of a step"), figure("What the training did with it: the loss")];
  const words = h("p", { class: "sentence" });
  const note = h("p", { class: "note" });
  const element = h("div", {}, bars, words, h("div", { class: "columns two" }, pictures.map((each) => each.element)), note);
  let found = null;
  const share = (run) => run.steps / found.steps;
  const name = (run) => (run.steps ? percent(share(run)) : "no warm-up");
  const take = (run) => state.set({ warmup: Math.round(share(run) * state.values.steps) }, { step: true });
  const draw = live(element, (signal) => found ?? call("schedule", "warmups", {}, signal), (answer) => {
    found = answer;
    const { warmups } = found;
    const { warmup, steps } = state.values;
    const away = (run) => Math.abs(share(run) - warmup / steps);
    const chosen = warmups.reduce((best, run) => (away(run) < away(best) ? run : best));
    const [none] = warmups;
    wordShares(bars, {
      words: warmups.map((run) => (run === none ? "none" : name(run))), chosen: warmups.indexOf(chosen), choose: (index) => take(warmups[index]), label: `warm-up, of ${found.steps} steps`, of: "Right answers by warm-up",
      rows: [[h("span", {}, "right answers", h("br"), "● one run"), warmups.map((run) => ({ ...shareCell(run.exact, TOP, run === none ? "bar undivided" : "bar"), content: [h("b", {}, `${Math.round(100 * run.exact)} %`), ...[...run.runs].sort((one, other) => one.exact - other.exact).map(dot)] }))]],
    });
    // The one without warm-up keeps its colour.
    const lines = (points) => warmups.map((run) => ({
      run, name: name(run), points: points(run), colour: run === none ? 1 : run === chosen ? 0 : "var(--soft)", faint: run !== chosen && run !== none, named: true, strong: run === chosen,
    }));
    const common = { x: { label: "step", domain: [0, found.steps] }, height: 250, mark: chosen.steps ? [chosen.steps, "end of the warm-up"] : null, choose: ({ run }) => take(run) };
    // Of the two that are compared each run has its own line, too: how far chance alone goes.
    const single = [none, chosen].flatMap((run) => run.runs.map((each) => ({
      run, name: `${name(run)}, one run`, points: each.loss, colour: run === none ? 1 : 0, faint: true, unread: true,
    })));
    const of = `over ${found.steps} steps, by warm-up: ${warmups.map(name).join(", ")} of them.`;
    lineChart(pictures[0].host, { ...common, series: lines((run) => run.rates), y: { label: "learning rate", zero: true }, legend: false, right: 26, describe: `Learning rate ${of}` });
    lineChart(pictures[1].host, { ...common, series: [...single, ...lines((run) => run.loss)], y: { label: "loss on unseen dates", log: true }, ends: true, right: 106, describe: `Validation loss of a translator of six layers ${of}` });
    const { told, why } = sentence(found, chosen, away(chosen) < 0.01);
    words.replaceChildren(...told);
    note.textContent = why;
  });
  state.watch((_, changed) => {
    if (changed.includes("warmup") || changed.includes("steps")) draw();
  });
  draw();
  return element;
}

const TOP = 1.15; // of a bar's cell, in shares: above the best runs is room for their dots

/** A run on the bar of its warm-up, as high as its share of right answers, the lowest run first. */
const dot = ({ exact }, i) => h("i", { class: "run-dot", style: { bottom: `${(100 * exact) / TOP}%`, left: `${66 + 9 * i}%` }, title: percent(exact) });

/** What the runs of the chosen warm-up came to, beside the best ones and those without. */
function sentence({ warmups, steps, seeds, rate }, chosen, isRecorded) {
  const most = (run) => Math.max(...run.runs.map(({ exact }) => exact));
  const least = (run) => Math.min(...run.runs.map(({ exact }) => exact));
  const best = warmups.reduce((one, run) => (run.exact > one.exact ? run : one));
  const [none] = warmups;
  const overlaps = (one, other) => one !== other && least(one) <= most(other) && least(other) <= most(one);
  const whole = (value) => `${Math.round(100 * value)}\u00a0%`;
  const of = (run) => whole(run.steps / steps);
  const alike = warmups.filter((run) => overlaps(run, best)).map(of);
  const others = alike.length ? `, but runs with ${alike.length > 1 ? `${alike.slice(0, -1).join(", ")} and ` : ""}${alike.at(-1)} overlap: any of these will do.` : ".";
  return {
    told: [h("strong", { "data-fact": "chosen" }, chosen === none ? "No warm-up" : `Warm-up over ${of(chosen)} of the steps`), isRecorded ? "" : ", the nearest that was recorded",
      `: ${whole(chosen.exact)} of unseen dates exactly right, from ${whole(least(chosen))} to ${whole(most(chosen))} in ${seeds} runs. `,
      h("span", { "data-fact": "best" }, chosen === best ? `The best${others}` : `Best: a warm-up of ${of(best)} of the steps, ${whole(best.exact)} right${overlaps(chosen, best) ? ", but the runs overlap" : ""}.`),
      " Why a warm-up helps, as is usually said: at first Adam's averages are of few gradients, and a large step by them can go astray."],
    why: `Thin lines: the ${seeds} runs, each from other random weights. Without warm-up the loss falls sooner and ends higher, and chance decides how high. A small translator of dates; the rate goes to ${rate} and down a cosine.`,
  };
}
