// The answers of the page Runs: of any runs whose logs are recorded, as Python joins and thins them.

const POINTS = 400;
const AXES = ["step", "seconds", "total_tokens"];
const KINDS = ["train", "validation"];
const SET_BY_SCHEDULE = ["lr", "epoch", "total_tokens", "seconds"];
const LOWER_IS_BETTER = ["loss", "nll", "perplexity", "bits_per_token", "ter"];

const unique = (items) => [...new Set(items)];

/** A call that is answered where the logs of all its runs are recorded. */
const ofLogs = (answer) => ({ logs = {}, runs = [], ...body }) => (runs.every((name) => name in logs) ? answer(runs.map((name) => logs[name]), body, logs) : undefined);

/** The points of a figure: places on an axis and values. */
function curveOf({ places, curves }, figure, kind, axis) {
  const found = curves[kind][figure];
  return found ? [places[found[axis].places], found[axis].values] : [[], []];
}

/** Places of which none is below one before it. */
function ascending(places) {
  let most = -Infinity;
  return places.map((place) => (most = Math.max(most, place)));
}

/** The first index whose place is at least, or with `past` above, a value. */
function indexOf(ordered, value, past = false) {
  const found = ordered.findIndex((place) => (past ? place > value : place >= value));
  return found < 0 ? ordered.length : found;
}

/** The points from `low` to `high`, and one more at each end. */
function stretchOf([places, values], low, high) {
  const ordered = ascending(places);
  const first = low === null ? 0 : Math.max(0, indexOf(ordered, low) - 1);
  const last = high === null ? places.length : indexOf(ordered, high, true) + 1;
  return [places.slice(first, last), values.slice(first, last)];
}

/** The moving average, divided by the sum of its weights so far. */
function smoothed([places, values], smooth) {
  let total = 0;
  return [places, values.map((value, i) => (total = smooth * total + value) / ((1 - smooth ** (i + 1)) / (1 - smooth)))];
}

/** Of each equal part of the axis the lowest and the highest point. */
function thin([places, values], isLog) {
  const all = places.map((place, i) => [place, values[i]]);
  if (all.length <= POINTS) return all;
  const [ordered, parts] = [ascending(places), POINTS / 2];
  const last = ordered.at(-1);
  const scaled = isLog && last > 0;
  const [from, to] = scaled ? [Math.log10(ordered.find((place) => place > 0)), Math.log10(last)] : [ordered[0], last];
  const edges = Array.from({ length: parts - 1 }, (_, i) => from + ((to - from) / parts) * (i + 1)).map((edge) => (scaled ? 10 ** edge : edge));
  const bounds = unique([0, ...edges.map((edge) => indexOf(ordered, edge)), all.length]);
  const kept = new Set([0, all.length - 1]);
  for (let i = 1; i < bounds.length; i += 1) {
    const part = values.slice(bounds[i - 1], bounds[i]);
    for (const end of [Math.min, Math.max]) kept.add(bounds[i - 1] + part.indexOf(end(...part)));
  }
  return all.filter((_, i) => kept.has(i));
}

export const curves = ofLogs((logs, { figures = ["loss"], axis = "step", smooth = 0, log: isLog = false, low = null, high = null }) => ({
  runs: logs.map((log) => {
    const points = (figure, kind) => curveOf(log, figure, kind, axis);
    const places = figures.flatMap((figure) => KINDS.flatMap((kind) => points(figure, kind)[0])).filter((place) => !isLog || place > 0);
    const drawn = (curve) => thin(stretchOf(curve, low, high), isLog);
    return {
      name: log.state.name, span: places.length ? [Math.min(...places), Math.max(...places)] : null,
      figures: Object.fromEntries(figures.map((figure) => [figure, {
        train: drawn(points(figure, "train")),
        smoothed: smooth > 0 && !SET_BY_SCHEDULE.includes(figure) ? drawn(smoothed(points(figure, "train"), smooth)) : [],
        validation: drawn(points(figure, "validation")),
      }])),
    };
  }),
}));

function differences(logs) {
  const known = logs.filter((log) => log.settings);
  if (known.length < 2) return [];
  const begun = known.filter((log) => log.state.begun);
  const isLeftOut = (key) => key === "init" || (key.startsWith("model.") && begun.some(({ settings }) => (settings[key] ?? null) === null));
  return unique(known.flatMap(({ settings }) => Object.keys(settings))).filter((key) => !isLeftOut(key))
    .map((setting) => ({ setting, values: known.map(({ settings }) => settings[setting] ?? "–") }))
    .filter(({ values }) => new Set(values).size > 1);
}

export const states = ofLogs((logs, _, all) => ({
  runs: Object.values(all).map(({ state }) => state),
  figures: unique(logs.flatMap((log) => KINDS.flatMap((kind) => Object.keys(log.curves[kind])))),
  differences: differences(logs),
}));

/** The step and value of the best validation. */
function bestOf([steps, values], sign) {
  const index = values.indexOf(sign > 0 ? Math.max(...values) : Math.min(...values));
  return [steps[index], values[index]];
}

/** Where on each axis a score first reached a target. */
function reachedOf(log, score, sign, target) {
  const found = Object.fromEntries(AXES.map((axis) => {
    const [places, values] = curveOf(log, score, "validation", axis);
    return [axis, places[values.findIndex((value) => sign * value >= sign * target)] ?? null];
  }));
  return found.step === null ? null : found;
}

export const compare = ofLogs((logs, { score: wanted = "", target: given = null }) => {
  const scores = unique(logs.flatMap((log) => Object.keys(log.curves.validation)));
  const deciding = logs.map((log) => log.choose_by).find((name) => scores.includes(name)) ?? scores[0] ?? "";
  const score = scores.includes(wanted) ? wanted : deciding;
  const sign = LOWER_IS_BETTER.includes(score) ? -1 : 1;
  const found = logs.map((log) => curveOf(log, score, "validation", "step"));
  const best = found.map((curve) => (curve[0].length ? bestOf(curve, sign) : null));
  const reached = best.filter(Boolean).map(([, value]) => value);
  const target = given ?? (reached.length ? (sign > 0 ? Math.min(...reached) : Math.max(...reached)) : null);
  const runs = logs.map((log, i) => {
    const { name, step, seconds, total_tokens: tokens } = log.state;
    const of = best[i] && { best_step: best[i][0], best: best[i][1], newest: found[i][1].at(-1), difference: best[i][1] - reached[0], reached: target === null ? null : reachedOf(log, score, sign, target) };
    return { name, best: null, newest: null, reached: null, ...of, step, seconds, total_tokens: tokens };
  });
  return { scores, score, lower_is_better: sign < 0, target, runs };
});

const written = ({ words }) => words.map(([word]) => word).join("");

export const history = ofLogs((logs, { sentence = -1 }) => {
  const all = new Map();
  for (const each of logs.flatMap((log) => log.samples)) {
    const before = all.get(each.source) ?? { ...each, forms: new Set() };
    for (const text of each.texts) before.forms.add(written(text));
    all.set(each.source, before);
  }
  const sentences = [...all.values()];
  if (!sentences.length) return { sentences: [], source: null, reference: null, runs: [] };
  const long = ({ source }) => [...source].length;
  const changesMore = (a, b) => a.forms.size > b.forms.size || (a.forms.size === b.forms.size && long(a) > long(b));
  const { source, reference } = sentence < 0 ? sentences.reduce((most, each) => (changesMore(each, most) ? each : most)) : sentences[Math.min(sentence, sentences.length - 1)];
  const runs = logs.map((log) => ({ name: log.state.name, texts: log.samples.find((each) => each.source === source)?.texts ?? [] }));
  return { sentences: sentences.map((each) => each.source), source, reference, runs: runs.filter(({ texts }) => texts.length) };
});

export const worst = ofLogs((logs) => ({ runs: logs.filter((log) => log.worst).map((log) => ({ name: log.state.name, ...log.worst })) }));

/** Of runs without a model nothing is written; what a model writes is not recorded. */
export const samples = ofLogs((logs, { lines: given = [] }) => {
  const lines = given.filter((line) => line.trim());
  if (lines.length && logs.some((log) => !log.compared)) return undefined;
  return { samples: logs.map((log) => ({ run: log.state.name, texts: [], problem: null })), lines };
});
