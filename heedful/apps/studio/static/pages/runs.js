import { call, live } from "../api.js";
import { button, check, choice, more, panel, several, slider } from "../controls.js";
import { figure, h, number } from "../dom.js";
import { series as colour } from "../draw/colours.js";
import { legendOf, lineChart } from "../draw/lines.js";
import { linkedCharts } from "../draw/linked.js";
import { comparison, duration, figureName } from "../run_comparison.js";
import { lineValues } from "../run_values.js";
import { textsOverTime, typedLines, worstTexts } from "../run_texts.js";

const LINE = "The children went to the"; // for a model that continues texts
const USUAL = ["loss", "bleu", "accuracy", "f1", "lr", "grad_norm", "tokens_per_second"];
const OPENED = USUAL.filter((name) => name !== "tokens_per_second");
const EARLY = 0.4; // of a line: where all are read at first
const ROW = 3; // the large chart and two beside it; the table of values stands below them
const LARGE = { min: 300, max: 440, small: 178 }; // heights of the first chart, and of those beside it

/**
 * What a page opens with: the runs of the person, or else those of the package that are there to be compared; with
 * neither, one of a model at hand, as the losses of other tasks say nothing beside it.
 */
function opening({ places }) {
  const runs = places.filter((place) => place.run);
  const own = runs.filter((place) => !place.limits && !place.compared);
  const compared = runs.filter((place) => place.compared);
  const one = ["causal_lm", "translator"].map((kind) => runs.find((place) => place.kind === kind)).find(Boolean) ?? runs[0];
  const names = (some) => some.map((place) => place.name);
  if (own.length) return { lines: "", runs: names(own.slice(0, 6)), figures: OPENED, group: "" };
  if (compared.length > 1) return { lines: "", runs: names(compared), figures: OPENED, group: "learning rate", sort: "best validation" };
  return { lines: one?.kind === "causal_lm" ? LINE : "", runs: one ? [one.name] : [], figures: OPENED, group: "" };
}

export const defaults = (studio) => ({
  axis: "step", smooth: 0.9, logx: false, logy: "", from: 0, to: 0, part: "",
  score: "", target: "", sentence: -1, at: -1, sort: "", find: "", ...opening(studio),
});

export const wide = true;

const AXES = { step: "step", seconds: "seconds of training", total_tokens: "target tokens" };
const SMOOTH = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999];
const PARTS = { both: "both", validation: "validation", train: "training" };
const LEARNT_BY_HEART = 1.01; // how far the last loss is above the best when it is no chance any more
const EVERY = 3000; // milliseconds between two looks at running runs
const CURVES = ["runs", "figures", "axis", "smooth", "logx", "from", "to"];
const FAR = 10; // between the ends of curves: from here on a linear axis would press the lowest ones together
const [BEST, CLEAR] = ["best", 1.2]; // the word at the end of the lowest loss; how far above it another is called worse
const FEW = 3; // runs whose ends are all told in words, and whose training is drawn beside validation

const title = (name) => figureName(name)[0].toUpperCase() + figureName(name).slice(1);

export function mount({ root, below, side, state, studio }) {
  const names = studio.places.filter((place) => place.run).map((place) => place.name);
  if (!names.length) {
    root.append(h("p", { class: "sentence" }, "The studio was given no run. Start it with one, finished or still training: ", h("code", {}, "heedful studio run"), "."));
    return;
  }
  const known = state.values.runs.filter((name) => names.includes(name));
  // An address may name runs of another studio.
  if (known.length < state.values.runs.length) state.set({ runs: known.length ? known : opening(studio).runs });
  const drawing = curvesOf(state);
  const training = h("p", { class: "note training" });
  const which = several(state, "figures", { label: "Figures", options: [] });
  const rare = several(state, "figures", { label: "", options: [] });
  const colours = choice(state, "group", { label: "A colour for each", options: [["", "run"]] });
  const shown = choice(state, "part", { label: "Curves on", options: Object.entries(PARTS) });
  side.append(
    panel(colours, shown, more("Which runs", several(state, "runs", { label: "Runs", options: names })),
      more("Figures and scales", which, rare, choice(state, "axis", { label: "By", options: Object.entries(AXES) }),
        slider(state, "smooth", { label: "Smoothing", stops: SMOOTH }),
        check(state, "logx", { label: "logarithmic axis" }), choice(state, "logy", { label: "Axis of the figures", options: [["", "as the ends ask"], ["0", "linear"], ["1", "logarithmic"]] }))));
  const compared = comparison(state, drawing.lift);
  const history = textsOverTime(state, drawing.labelOf);
  const worst = worstTexts(state);
  const lines = typedLines(state, (name) => studio.places.some((place) => place.name === name && !place.compared));
  root.append(training, drawing.body);
  below.append(compared.element, history.element, worst.element, lines.element);

  let before = {};
  const look = live(training, (signal) => call("runs", "states", { runs: state.values.runs }, signal), (found) => {
    training.replaceChildren(...standing(found.runs));
    drawing.offered = [...USUAL.filter((name) => found.figures.includes(name)), ...found.figures.filter((name) => !USUAL.includes(name))];
    const offer = (usual) => drawing.offered.filter((name) => USUAL.includes(name) === usual).map((name) => [name, figureName(name)]);
    const chosen = found.runs.filter((run) => state.values.runs.includes(run.name));
    drawing.states = chosen;
    drawing.labels = labelsOf(chosen);
    which.fill(offer(true));
    rare.fill(offer(false));
    rare.hidden = !offer(false).length;
    compared.show(found);
    const groups = settingsThatDiffer(chosen);
    colours.fill([["", "run"], ...groups]);
    colours.hidden = !groups.length;
    shown.querySelector("select").value = partOf(state.values);
    colours.querySelector("select").value = groups.includes(state.values.group) ? state.values.group : "";
    const now = Object.fromEntries(["lines", "validations", "samples"].map((part) => [part, chosen.map((run) => [run.name, run[part]])]));
    const differs = (part) => JSON.stringify(now[part]) !== JSON.stringify(before[part]);
    if (differs("lines")) drawing.ask();
    if (differs("validations")) {
      compared.ask();
      lines.ask(); // validation may have found a better model
    }
    if (differs("samples")) {
      history.ask();
      worst.ask();
    }
    before = now;
  });
  state.watch((_, changed) => {
    const touches = (...settings) => settings.some((name) => changed.includes(name));
    if (touches("axis", "logx") && !touches("from")) state.set({ from: 0, to: 0 });
    if (touches("runs")) look();
    if (touches("from", "to", "logy", "part", "group")) drawing.draw();
    if (touches(...CURVES)) drawing.ask();
    if (touches("runs", "score", "target")) compared.ask();
    if (touches("sort", "find")) compared.order();
    if (touches("runs", "sentence")) history.ask();
    if (touches("runs")) worst.ask();
    if (touches("at")) history.draw();
    if (touches("runs", "lines")) lines.ask();
  });
  look();
  setInterval(() => {
    if (!document.hidden) look();
  }, EVERY);
}

/** Words on the runs that are in training, and how far they are. */
function standing(runs) {
  const running = runs.filter((run) => run.training);
  if (!running.length) return [];
  return [h("span", { class: "live-dot", "aria-hidden": "true" }), h("strong", {}, "Live: "), running.map((run) =>
    `${run.name} is at step ${number(run.step)}${run.max_steps ? ` of ${number(run.max_steps)}` : ""}${run.left > 0 ? `, about ${duration(run.left)} left` : ""}`).join("; "), `. Read again every ${EVERY / 1000} seconds.`];
}

/** Which curves are drawn where nobody has chosen: of many runs those on texts held back. */
const partOf = ({ part, runs }) => part || (runs.length > FEW ? "validation" : "both");

/** The settings of the table in which runs differ. */
const settingsThatDiffer = (runs) => Object.keys(runs[0]?.settings ?? {}).filter((name) => new Set(runs.map((run) => run.settings[name])).size > 1);

/** What runs are called in a drawing: of many those settings in which they differ, the longest row of values first, where these tell them apart. */
function labelsOf(runs) {
  const count = (name) => new Set(runs.map((run) => run.settings[name])).size;
  const differing = settingsThatDiffer(runs).sort((a, b) => count(b) - count(a));
  const labels = runs.map(({ settings }) => differing.map((name) => `${name} ${settings[name]}`).join(", "));
  return new Map(runs.length > FEW && new Set(labels).size === runs.length ? runs.map(({ name }, i) => [name, labels[i]]) : []);
}

const lowest = (points) => points.reduce((least, point) => (point[1] < least[1] ? point : least));

/** What the losses of runs say, for who sees such curves for the first time. */
function lossInWords(runs, axis, { offered, states, labelOf, group, valueOf }) {
  const read = runs.filter(({ figures: { loss } }) => loss && loss.train.length > 1 && loss.validation.length > 1);
  const at = (place) => `${axis === "step" ? "step " : ""}${number(place)}${axis === "step" ? "" : ` ${AXES[axis]}`}`;
  if (read.length > FEW) return rankedInWords(read, { labelOf, group, valueOf });
  if (read.length !== 1) return read.length ? comparedInWords(read, at, new Set(states.map((run) => run.task)).size > 1) : [];
  const [{ name, figures: { loss: { train, smoothed, validation } } }] = read;
  const [first, last, best] = [validation[0], validation.at(-1), lowest(validation)];
  const begun = states.find((run) => run.name === name)?.begun;
  const doubt = (loss) => number(Math.exp(loss), 2);
  return [
    `On texts that ${name} learns from (${smoothed.length ? "solid" : "pale"}) the loss goes from ${number(train[0][1], 3)} to ${number((smoothed.at(-1) ?? train.at(-1))[1], 3)}; on texts held back (${smoothed.length ? "dashed" : "dark"}) from ${number(first[1], 3)} to `, h("strong", {}, number(last[1], 3)), ". ",
    ...(offered.includes("perplexity") && !offered.includes("accuracy")
      ? ["That is the doubt of a choice among ", h("strong", {}, doubt(last[1])), " pieces of text (e", h("sup", {}, number(last[1], 3)), `), at first among ${doubt(first[1])}. `] : []),
    last[1] > best[1] * LEARNT_BY_HEART ? `It was lowest at ${at(best[0])} and has risen since: from there on the model learns its training texts by heart.`
      : begun ? "It goes on from a model that was trained before, so little is left to fall."
      : best === last ? "It is lowest at the end: this model did not begin to learn its texts by heart." : "",
  ];
}

/** The same of several runs: where each ends, and whether it was lower before. */
const comparedInWords = (runs, at, differ) => [
  "Loss at the end, on texts held back: ",
  ...runs.flatMap(({ name, figures: { loss: { validation } } }, i) => {
    const [last, best] = [validation.at(-1)[1], lowest(validation)];
    return [`${i ? "; " : ""}${name} `, h("strong", {}, number(last, 3)), last > best[1] * LEARNT_BY_HEART ? ` (lowest at ${at(best[0])}: ${number(best[1], 3)})` : ", its lowest"];
  }), ".", differ ? " They learn different tasks, so compare the forms of the curves, not their heights." : "",
];

/** Of many runs the best and the worst, and the means of those that share a setting. */
function rankedInWords(runs, { labelOf, group, valueOf }) {
  const ends = runs.map(({ name, figures: { loss: { validation } } }) => [name, validation.at(-1)[1]]).sort((a, b) => a[1] - b[1]);
  const [best, worst] = [ends[0], ends.at(-1)];
  const means = meansOf(runs, "loss", { part: "validation", group, valueOf });
  const verdicts = verdictsOf(means, group);
  if (verdicts.size === means.length && means.length) {
    const coloured = (value) => h("strong", { style: { color: colour(means.findIndex((each) => each.value === value)) } }, value);
    const [[best, loss], ...others] = means.map(({ value, points }) => [value, points.at(-1)[1]]).sort((a, b) => a[1] - b[1]);
    return ["Learning rate ", coloured(best), " learns best: its loss on texts held back ends at ", h("strong", {}, number(loss, 3)), ". ",
      ...others.sort((a, b) => b[0] - a[0]).flatMap(([value, end], i) => [i ? ", " : "", coloured(value), ` is ${verdicts.get(value)}: ${number(end, 3)}`]), ` (means of ${runs.length / means.length} runs).`];
  }
  return [`Of ${runs.length} runs “${labelOf(best[0])}” ends with the lowest loss on texts held back, `, h("strong", {}, number(best[1], 3)), `, and “${labelOf(worst[0])}” with the highest, ${number(worst[1], 3)}.`,
    ...(means.length ? [` By ${group}, in the mean: `, ...means.flatMap(({ value, points }, i) => [i ? "; " : "", h("strong", { style: { color: colour(i) } }, value), ` ends at ${number(points.at(-1)[1], 3)}`]), "."] : [])];
}

/** What is odd in a chart and has a reason. */
function noteOf(name, runs) {
  const parts = runs.map((run) => run.figures[name]).filter(Boolean);
  if (name === "loss" && parts.some(({ train, smoothed, validation }) => validation.length && validation.at(-1)[1] < (smoothed.at(-1) ?? train.at(-1) ?? [0, 0])[1])) return "Training counts dropout and label smoothing, validation does not: so its curve can be the lower one.";
  // After its peak every schedule falls.
  const rises = ({ train }) => train.some(([, rate], i) => i > 1 && rate > 1.05 * train[i - 1][1] && train[i - 1][1] < 0.95 * train[i - 2][1]);
  if (name === "lr" && parts.some(rises)) return "A jump: training went on with another number of steps, over which the schedule is spread anew.";
  return "";
}

/** The charts of the chosen figures, which share pointer and stretch. */
function curvesOf(state) {
  const body = h("div", {});
  const grid = h("div", { class: "multiples" });
  const told = h("p", { class: "sentence", role: "status" });
  const dashes = h("div", { class: "chart-row" });

  const places = new Map();
  let [answer, pointed] = [null, false];
  /** The value of the setting by which runs are coloured; undefined for a colour of its own. */
  const valueOf = (name) => (state.values.group ? part.states.find((run) => run.name === name)?.settings[state.values.group] : undefined);

  const spans = () => answer.runs.map((run) => run.span).filter(Boolean);
  const whole = () => [Math.min(...spans().map(([low]) => low)), Math.max(...spans().map(([, high]) => high))];
  const stretch = () => (state.values.to > state.values.from ? [state.values.from, state.values.to] : null);
  const values = lineValues((run) => part.lift(run));
  const linked = linkedCharts({ whole, told: values.at, change: (next) => state.set(next ? { from: next[0], to: next[1] } : { from: 0, to: 0 }) });
  const zoomed = button("Whole curves", () => state.set({ from: 0, to: 0 }), { quiet: true });
  const buttons = h("div", { class: "row zoom" }, button("Zoom in", () => linked.step(true), { quiet: true }), button("Zoom out", () => linked.step(false), { quiet: true }), zoomed);
  const hint = h("p", { class: "hint", title: "On a chart that you have clicked, the wheel and the keys + and − zoom, Shift with an arrow key moves on." }, "Or drag over a chart; a double click shows the whole.");
  body.append(told, dashes, grid, h("div", { class: "chart-row" }, buttons, hint));

  const part = {
    /** Lift the curves of a run in every chart; of none without a name. */
    lift(run) {
      for (const { host } of places.values()) if (host.isConnected) host.chart?.lift(run);
      values.mark(run);
    },
    body, offered: [], states: [], labels: new Map(), labelOf: (name) => part.labels.get(name) ?? name,
    draw() {
      zoomed.disabled = !stretch();
      if (!answer) return;
      const { figures, axis, logx, logy } = state.values;
      const shown = part.offered.filter((name) => figures.includes(name));
      grid.classList.toggle("one", shown.length === 1);
      const elements = shown.map((name) => {
        if (!places.has(name)) places.set(name, figure(title(name)));
        return places.get(name).element;
      });
      elements.splice(ROW, 0, values.element);
      if (elements.some((element, i) => grid.children[i] !== element) || grid.children.length !== elements.length) grid.replaceChildren(...elements);
      const rows = new Map();
      const roomy = matchMedia("(min-width: 1200px)").matches; // as in the style sheet
      for (const name of shown) {
        const first = name === shown[0]; // the figure that counts is read first
        places.get(name).element.classList.toggle("main", first);
        const lines = linesOf(answer.runs, name, { part: partOf(state.values), group: state.values.group, valueOf, labelOf: part.labelOf });
        if (first) dashes.replaceChildren(legendOf([...new Map(lines.filter(({ rest }) => rest).map(({ rest, dashed }) => [rest, { name: rest, dashed, colour: "var(--ink)" }])).values()]));
        for (const line of lines.filter(({ row, points }) => row && points.length)) rows.set(line.row, { name: line.row, run: line.run, line: rows.get(line.row)?.line ?? line, lines: { ...rows.get(line.row)?.lines, [name]: line } });
        const log = logy === "" ? isFarApart(lines, name === "lr") : logy === "1";
        const thick = first && lines.some((each) => each.unread) ? "Thick: the mean of a colour's runs. Thin: each run." : "";
        places.get(name).words.textContent = partOf(state.values) === "both" ? noteOf(name, answer.runs) : thick;
        lineChart(places.get(name).host, {
          series: lines, legend: false, ends: lines.some((each) => each.label), linked, says: first, height: first ? (roomy ? LARGE.max : LARGE.min) : roomy ? LARGE.small : 240, left: shown.length === 1 ? undefined : 48, quiet: true,
          lift: (run) => part.lift(run),
          x: { label: AXES[axis], log: logx, domain: stretch() ?? (spans().length ? whole() : undefined) }, y: { label: first ? `${figureName(name)}${log ? ", logarithmic" : ""}` : log ? "logarithmic" : "", log },
          describe: `${title(name)} of ${answer.runs.length} runs by ${AXES[axis]}, in training and in validation.`,
          empty: "None of the chosen runs has written this figure.",
        });
      }
      if (!pointed && rows.size && !part.states.some((run) => run.training)) {
        // At first runs that are complete are read where they differ most plainly, neither begun nor at their end.
        const [{ line: { points } }] = rows.values();
        pointed = true;
        linked.point(points[Math.floor(EARLY * points.length)][0]);
      }
      const end = ({ lines }) => lines.loss?.points.at(-1)[1] ?? Infinity;
      values.show([...rows.values()].sort((one, other) => (partOf(state.values) === "both" ? 0 : end(one) - end(other))), shown.map((name) => [name, figureName(name)]), AXES[axis]);
      if (!stretch()) told.replaceChildren(...(shown.includes("loss") ? lossInWords(answer.runs, axis, { ...part, group: state.values.group, valueOf }) : []));
      told.hidden = !told.childNodes.length;
      buttons.hidden = dashes.hidden = hint.hidden = !shown.length;
      if (!shown.length) grid.replaceChildren(h("p", { class: "note" }, answer.runs.length ? "Choose a figure." : "Choose a run."));
    },
  };
  part.ask = live(body, (signal) => {
    const { runs, figures, axis, smooth, logx } = state.values;
    const [low, high] = stretch() ?? [null, null];
    return call("runs", "curves", { runs, figures: part.offered.filter((name) => figures.includes(name)).slice(0, 8), axis, smooth, log: logx, low, high }, signal);
  }, (found) => {
    answer = found;
    part.draw();
  });
  return part;
}

/** Whether lines are so far apart that a linear axis would hide the lower ones: their ends or, of learning rates, which end near 0, their peaks. */
function isFarApart(lines, peaks = false) {
  const heights = lines.filter(({ points }) => points.length).map(({ points }) => points.map(([, y]) => y));
  const told = heights.map((line) => (peaks ? Math.max(...line) : line.at(-1)));
  return heights.every((line) => line.every((y) => y > 0 || peaks)) && Math.max(...told) >= FAR * Math.min(...told);
}

/**
 * The lines of runs in a chart. By a setting those of one value share a colour: their mean stands out where they are
 * many, and of two, which another setting tells apart, one is dashed.
 */
function linesOf(runs, name, { part: wanted, group, valueOf, labelOf }) {
  const part = wanted === "both" || hasFigure(runs, name, wanted) ? wanted : wanted === "train" ? "validation" : "train";
  const means = meansOf(runs, name, { part, group, valueOf });
  const colourOf = (run) => (means.length ? means.findIndex(({ value }) => value === valueOf(run.name)) : runs.indexOf(run));
  const verdicts = name === "loss" ? verdictsOf(means, group) : new Map();
  const rest = (run) => (means.length ? labelOf(run.name).split(", ").filter((setting) => !setting.startsWith(`${group} `)).join(", ") : undefined);
  const rests = [...new Set(runs.map(rest))];
  if (runs.length === means.length * rests.length && rests.length === 2) {
    const lines = runs.map((run) => ({ ...seriesOf(run, name, { title: labelOf(run.name), colour: colourOf(run), part })[0], dashed: rest(run) === rests[0], rest: rest(run), value: valueOf(run.name) }));
    return lines.map((line) => ({ ...line, strong: verdicts.get(line.value) === BEST, label: verdicts.get(line.value) ?? "" })); // of a pair both
  }
  return [...runs.flatMap((run) => seriesOf(run, name, { title: labelOf(run.name), colour: colourOf(run), alone: runs.length === 1, part, pale: means.length > 0 })),
    ...means.filter(({ points }) => points.length).map((mean) => ({ ...mean, strong: verdicts.get(mean.value) === BEST, label: verdicts.get(mean.value) ?? mean.value }))];
}

/** Whether one of the runs has written a figure in training, or in validation. */
const hasFigure = (runs, name, part) => runs.some(({ figures }) => figures[name]?.[part].length);

/** Of learning rates which ends with the lowest loss, and whether another is above or below it. */
function verdictsOf(means, group) {
  const ends = means.filter(({ points }) => points.length).map(({ value, points }) => [value, points.at(-1)[1]]);
  if (group !== "learning rate" || ends.length < 2) return new Map();
  const [best, loss] = lowest(ends);
  return new Map(ends.filter(([value, end]) => value === best || end > CLEAR * loss).map(([value]) => [value, value === best ? BEST : value > best ? "too high" : "too low"]));
}

/** For each value of a setting the mean of its runs, at the places that all of them have; none where it groups no runs. */
function meansOf(runs, name, { part, group, valueOf }) {
  const values = [...new Set(runs.map((run) => valueOf(run.name)))];
  if (values.length < 2 || values.length === runs.length) return [];
  return values.map((value, index) => {
    const curves = runs.filter((run) => valueOf(run.name) === value).map(({ figures }) => (part === "train" ? figures[name]?.smoothed : figures[name]?.validation) ?? []);
    const [first, ...others] = curves.map((points) => new Map(points));
    const points = [...first].filter(([x]) => others.every((each) => each.has(x))).map(([x, y]) => [x, others.reduce((sum, each) => sum + each.get(x), y) / curves.length]);
    return { value, name: `${group} ${value}`, colour: index, points, unread: true };
  });
}

/** The lines of a run; of several the smoothed ones alone, as those behind would cover each other. */
function seriesOf(run, name, { title: named, colour: index, alone, part, pale }) {
  const { train = [], smoothed = [], validation = [] } = run.figures[name] ?? {};
  if (part !== "both") return [{ name: named, run: run.name, row: named, colour: index, points: part === "train" ? (smoothed.length ? smoothed : train) : validation, faint: pale }];
  const row = smoothed.length || !validation.length || train.length ? `${named}, training` : undefined;
  return [
    { name: named, run: run.name, row: smoothed.length ? undefined : row, colour: index, points: alone || !smoothed.length ? train : [], faint: smoothed.length > 0 || (validation.length > 0 && train.length > 0) },
    { name: `${named}, smoothed`, run: run.name, row, colour: index, points: smoothed, faint: pale },
    { name: `${named}, validation`, run: run.name, row: `${named}, validation`, colour: index, points: validation, dots: validation.length < 40, dashed: smoothed.length > 0, faint: pale },
  ];
}
