// The small translator: its recorded runs, and one that is trained here and now beside them.

import { call, problem } from "./api.js";
import { button } from "./controls.js";
import { h, number, table } from "./dom.js";
import { series } from "./draw/colours.js";
import { lineChart } from "./draw/lines.js";

const EVERY = 1000; // milliseconds between two looks at a training
const UNDER_WAY = ["starting", "writing sentences", "preparing", "training", "translating"];

export const FIGURES = { valid_bleu: "BLEU", loss: "validation loss", train: "training loss" };

/** The mean of a variant's runs at each step that all of them have. */
export function meanCurve(runs, name) {
  const steps = runs[0][name].map((point) => point[0]).filter((step) => runs.every((run) => run[name].some((point) => point[0] === step)));
  return steps.map((step) => [step, runs.reduce((sum, run) => sum + run[name].find((point) => point[0] === step)[1], 0) / runs.length]);
}

/** A share over the runs: 72 % (68 to 75). */
export function percent({ mean, low, high }) {
  const each = (value) => number(Math.round(1000 * value) / 10, 3);
  return low === high ? `${each(mean)}\u00a0%` : `${each(mean)}\u00a0% (${each(low)} to ${each(high)})`;
}

const WIDE = 50; // times: losses so far apart are drawn on a logarithmic axis, where the small ones can be told apart too

const [NOTHING, RAISE] = [3, 3]; // BLEU: curves that stay below it would hide each other, and lie so many pixels above one another

/** The colour of the i-th of the chosen curves. */
export const runColour = (i) => series(i);

/** Draw recorded curves, and the live one if there is one. */
export function drawRuns(host, variants, live, name = "valid_bleu", height = 300) {
  const drawn = variants.map((each, i) => ({ name: each.title, points: meanCurve(each.runs, name), colour: runColour(i), dots: name !== "train" }));
  const flat = name === "valid_bleu" ? drawn.filter(({ points }) => points.every(([, bleu]) => bleu < NOTHING)) : [];
  const recorded = drawn.map((each) => ({ ...each, raised: RAISE * Math.max(0, flat.indexOf(each)) }));
  const own = live && live[name].length ? [{ name: "trained here", points: live[name], colour: "var(--glow)", dashed: true, dots: name !== "train" }] : [];
  const values = [...recorded, ...own].flatMap((each) => each.points.map((point) => point[1]));
  const log = name !== "valid_bleu" && Math.max(...values) > WIDE * Math.min(...values);
  lineChart(host, {
    series: [...recorded, ...own], x: { label: "updates" }, y: { label: `${FIGURES[name]}${log ? ", equal steps multiply" : ""}`, log, zero: name === "valid_bleu" }, height,
    describe: `${FIGURES[name]} of ${variants.map((each) => each.title).join(", ")}${own.length ? ", and of the model trained here" : ""}, by updates.`,
  });
}

/**
 * The controls of the one training of this studio, which all its pages share.
 * @param components makes the parts to train, and `seed` a number
 * @param isOwn whether a training of these parts belongs to the page; of others only that one is under way is said
 * @param changed is called with what is known of the page's own training, or null
 * @param writes the place of what the trained model writes; by default below the controls
 */
export function liveTraining({ components, seed = () => 1, isOwn = () => true, changed, names, writes = null }) {
  const said = h("p", { class: "live-state", role: "status" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress of the training", hidden: true });
  const written = writes ?? h("div", {});
  const trouble = h("div", {});
  const train = button("Train it now", () => ask("train", { components: components(), seed: seed() }));
  const stop = button("Stop", () => ask("stop", {}), { quiet: true });
  stop.hidden = true;
  const element = h("div", { class: "live" }, h("div", { class: "row" }, train, stop, said), bar, trouble, writes ? null : written);
  let waiting = null;
  let shown = "";
  let last = null;
  const own = () => (last && isOwn(last.components) ? last : null);
  const tell = () => {
    said.textContent = own() || isBusy(last) ? words(last, names(last.components)) : "";
  };
  element.retell = () => { // names may be known later than the training, and a page may ask for other parts
    tell();
    written.replaceChildren(...(own()?.result ? [samplesOf(last.result)] : []));
    changed(own());
  };

  async function ask(name, body) {
    clearTimeout(waiting);
    train.disabled = true;
    try {
      const { training } = await call("without", name, body);
      trouble.replaceChildren();
      show(training);
    } catch (error) {
      trouble.replaceChildren(problem(error));
      train.disabled = false;
      if (name !== "progress" || error.away) waiting = setTimeout(() => ask("progress", {}), EVERY);
    }
  }

  function show(training) {
    const busy = isBusy(training);
    train.disabled = busy;
    stop.hidden = !busy;
    bar.hidden = !busy;
    if (training) {
      bar.value = training.step / training.max_steps;
      last = training;
    }
    const now = JSON.stringify([training?.number, training?.state, training?.step, training?.loss.length]);
    if (now !== shown) {
      shown = now;
      element.retell();
    } else tell();
    if (busy) waiting = setTimeout(() => ask("progress", {}), EVERY);
  }

  ask("progress", {});
  return element;
}

const isBusy = (training) => training !== null && UNDER_WAY.includes(training.state);

function words(training, name) {
  const seconds = `${number(Math.round(training.seconds))} s`;
  const at = `${number(training.step)} of ${number(training.max_steps)} updates, ${seconds}`;
  if (training.state === "failed") return `The training ${name} failed. ${training.problem ?? ""}`;
  if (training.state === "stopped") return `Stopped ${name} after ${at}.`;
  if (training.state === "done") return `Trained ${name}: ${at}. ${percentOf(training.result.exact)} of ${number(training.result.sentences)} lines are exactly right.`;
  return training.state === "training" ? `Training ${name}: ${at}.` : `Training ${name}: ${training.state}, ${seconds}.`;
}

const percentOf = (share) => `${number(Math.round(1000 * share) / 10, 3)}\u00a0%`;

const samplesOf = (result) => table("What the model trained here writes", ["English", "German"],
  result.samples.map((each) => [each.source, h("span", {}, mark(each.text, each.reference), each.text === each.reference ? "" : h("small", {}, ` right: ${each.reference}`))]), { words: true, class: "figures written" });

const SHORT = 8; // characters beyond the length of the right one; a wrong translation may go on and on

/** A translation, marked from where it is wrong. */
export function mark(text, reference) {
  const isRight = text === reference;
  let same = 0;
  while (same < text.length && text[same] === reference[same]) same += 1;
  const end = Math.max(reference.length, same) + SHORT;
  const wrong = `${text.slice(same, end)}${text.length > end ? "…" : ""}` || (text ? " (ends)" : "(nothing)");
  return h("span", { class: `sample ${isRight ? "is-right" : "is-wrong"}`, title: text }, text.slice(0, same), isRight ? "" : h("span", { class: "differs" }, wrong),
    h("span", { class: "sign-of", "aria-label": isRight ? "right" : "wrong" }, isRight ? " ✓" : " ✗"));
}
