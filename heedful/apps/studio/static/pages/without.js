import { call, live } from "../api.js";
import { choice, panel, slider } from "../controls.js";
import { figure, folded, h, number, section, table } from "../dom.js";
import { drawRuns, FIGURES, liveTraining, mark, percent, runColour } from "../small_runs.js";

export const wide = true;
export const defaults = () => ({ shown: ["everything", "positions", "residual"], figure: "valid_bleu", train: "positions", seed: 4 });

export function mount({ root, below, side, state }) {
  const exact = figure("Dates that are exactly right", "Upright mark: the same model with everything. Thin line: from the lowest run to the highest.");
  const choose = exact.host;
  const picture = figure("As training goes on");
  const reasons = h("div", { class: "reasons" });
  const scores = h("div", {});
  const samples = h("div", {});
  const made = h("div", {});
  const writes = h("div", {});
  // The curve that grows while a model trains stands beside the bars, below the button that begins it.
  const body = h("div", { class: "ablation" }, exact.element, h("div", {}, picture.element, writes, reasons));
  const train = choice(state, "train", { label: "Train one: about half a minute", options: [["everything", "with everything"]] });
  let [found, told] = [null, null];
  let training = null;
  const variant = (name) => found?.variants.find((each) => each.name === name) ?? null;
  const rootOf = (each) => (each.reference ? rootOf(variant(each.reference)) : each);
  const trainable = () => found.variants.filter((each) => each.small);
  const titleOf = (components) => (found ? trainable().find((each) => same(each.components, components)) : null)?.title ?? "a choice of the builder";
  const trainer = liveTraining({
    components: () => variant(state.values.train)?.components ?? {}, seed: () => state.values.seed, names: titleOf, writes,
    changed: (now) => {
      training = now;
      if (found) draw();
    },
  });
  root.append(body);
  below.append(section("What each writes", samples), folded("Scores of all, and how they were measured", scores, made));
  side.append(panel(train, slider(state, "seed", { label: "Seed", min: 1, max: 20 }), trainer, choice(state, "figure", { label: "Curves of", options: Object.entries(FIGURES) })));

  function draw() {
    const { shown, figure: name } = state.values;
    const focused = document.activeElement?.dataset.variant;
    told = found.samples.reduce((short, line) => (line.reference.length <= short.reference.length ? line : short)); // the last of the shortest
    exact.element.querySelector("h3").textContent = `Dates that are exactly right, and what each writes for “${told.source}”`;
    const groups = found.variants.filter((each) => !each.reference).map((whole) => found.variants.filter((each) => each === whole || rootOf(each) === whole));
    const chosen = found.variants.filter((each) => shown.includes(each.name));
    choose.replaceChildren(...groups.flatMap((group) => [
      h("p", { class: "ablated-by" }, `${group[0].reason.split(/[,.]/)[0]}, ${number(group[0].steps)} updates each`),
      h("ul", { class: "beside ablated", "aria-label": group[0].title }, group.map((each) => bar(each, chosen))),
    ]));
    if (focused) choose.querySelector(`[data-variant="${focused}"]`)?.focus();
    drawRuns(picture.host, chosen, training, name, 270);
    picture.words.textContent = `${name === "valid_bleu" ? `On ${found.validated} lines that are translated during training, not the ${number(found.data.test)} of the bars: the scores differ a little. ` : ""}Means over the runs of each${training ? "; dashed: the one trained here" : ""}.`;
    reasons.replaceChildren(...chosen.filter((each) => each.reference).map((each) => h("p", {}, h("strong", {}, sentence(each.title)), " ", each.reason, " ", verdict(each, variant(each.reference)))), ...[...new Set(chosen.map(rootOf))].map(unfinished));
    samples.replaceChildren(table("The same lines, by the first run of each", ["English", "right", ...chosen.map((each) => each.title)],
      found.samples.map((line) => [line.source, line.reference, ...chosen.map((each) => mark(line.texts[each.name], line.reference))]), { words: true, class: "figures pairs" }));
  }

  function bar(each, chosen) {
    const { shown } = state.values;
    const on = chosen.includes(each);
    const box = h("input", { type: "checkbox", "data-variant": each.name, checked: on });
    box.addEventListener("change", () => state.set({ shown: found.variants.map((one) => one.name).filter((name) => (name === each.name ? box.checked : shown.includes(name))) }, { step: true }));
    const { mean, low, high } = each.scores.exact;
    const length = h("span", { class: "length" });
    const whole = each.reference ? variant(each.reference) : null;
    const against = whole && h("span", { class: "against", title: `${whole.title}: ${percent(whole.scores.exact)}` });
    if (whole) against.style.left = `${100 * whole.scores.exact.mean}%`;
    length.style.width = `${Math.max(0.5, 100 * mean)}%`;
    if (on) length.style.background = runColour(chosen.indexOf(each)); // that of its curve
    const reach = h("span", { class: "reach", title: `lowest to highest of the runs: ${percent(each.scores.exact)}` });
    reach.style.left = `${100 * low}%`;
    reach.style.width = `${100 * (high - low)}%`;
    return h("li", { class: on ? "own" : null, "data-value": mean }, h("label", { class: "who check" }, box, h("span", {}, each.title, !whole || isApart(each.scores.exact, whole.scores.exact) ? "" : h("small", { class: "note" }, "no clear difference"))),
      h("span", { class: "track" }, length, reach, against), h("span", { class: "count" }, `${number(Math.round(1000 * mean) / 10, 3)} %`), mark(told.texts[each.name], told.reference));
  }

  const ask = live(body, (signal) => found ?? call("without", "recorded", {}, signal), (answer) => {
    found = answer;
    train.fill(trainable().map((each) => [each.name, each.title]));
    scores.replaceChildren(table("Scores: mean, and lowest to highest where there are several runs", ["model", "runs", "exactly right", "BLEU", "validation loss"],
      found.variants.map((each) => [each.title, number(each.runs.length), percent(each.scores.exact), over(each.scores.bleu), over(each.scores.loss)])));
    made.replaceChildren(h("p", {}, `Each model trained on ${number(found.data.pairs)} generated dates, about 500 tokens an update, then translated ${number(found.data.test)} that are not among them. On ${found.machine.processor}, ${found.threads === 1 ? "one thread" : `${number(found.threads)} threads`}, ${found.date}.`),
      h("p", {}, "To record it again: ", h("code", {}, found.command)));
    trainer.retell(); // draws, too
  });
  state.watch(ask);
  ask();
}

const same = (a, b) => JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());
const over = ({ mean, low, high }) => (low === high ? number(mean, 3) : `${number(mean, 3)} (${number(low, 3)} to ${number(high, 3)})`);
const sentence = (title) => `${title[0].toUpperCase()}${title.slice(1)}.`;

const LEARNED = 0.9; // share of exact lines from which a reference has learned its task

/** What short runs cannot say, or nothing where the reference has learned its task. */
const unfinished = ({ title, scores: { exact } }) => (exact.mean >= LEARNED ? "" : h("p", { class: "note" },
  `“${title}” itself gets ${percent({ ...exact, low: exact.mean, high: exact.mean })} right: these runs say how fast a model learns, not what it can learn.`));

/** Whether the runs of one reach nowhere into those of the other. */
const isApart = (one, other) => one.high < other.low || one.low > other.high;

/** The difference in words, by every score whose runs do not reach into those of the other. */
function verdict(each, whole) {
  const [own, all] = [each.scores.exact, whole.scores.exact];
  const ends = `${percent(own)} of the lines are exactly right, and ${percent(all)} ${whole.name === "everything" ? whole.title : `of “${whole.title}”`}.${Math.min(each.runs.length, whole.runs.length) === 1 ? " One run each says little of a small difference." : ""}`;
  if (isApart(own, all)) return `${own.mean < all.mean ? "Measured" : "Here it even helps"}: ${ends}`;
  const others = [["bleu", "BLEU"], ["loss", "the validation loss"]].filter(([name]) => isApart(each.scores[name], whole.scores[name]))
    .map(([name, words]) => `${words} is ${over(each.scores[name])} against ${over(whole.scores[name])}`);
  return `No difference seen that is larger than that between runs from other first weights: ${ends}${others.length ? ` But ${others.join(", and ")}.` : ""}`;
}
