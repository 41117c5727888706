import { call, live } from "../api.js";
import { tabs } from "../controls.js";
import { figure, folded, foldedSection, h, number, table } from "../dom.js";
import { series } from "../draw/colours.js";
import { rankedBars } from "../draw/ranked.js";
import { scatterChart } from "../draw/scatter.js";

export const wide = true;
export const defaults = () => ({ pair: "en_de", system: "Transformer, big", group: "" });

/** What differs where the base model falls short, which is in French: facts of the paper. */
const SHORT = " It trained no longer than for German, on eight times as many sentences (36 million, not 4.5); the paper gives no reason.";
const PAIRS = { en_de: "English to German", en_fr: "English to French" };
/** What was varied, by what it is of. */
const CHANGED = { "Size": ["layers", "width", "feed-forward", "big"], "Attention and positions": ["heads", "key width", "positions"], "Against learning by heart": ["dropout", "label smoothing"] };
const TRAINED = ["this corpus only", "more text", "several tasks", "as a generator"]; // parsers of one colour had the same
const KINDS = ["Transformer", "recurrent", "convolution", "mixture of experts"];

export function mount({ root, state }) {
  const said = h("p", { class: "sentence", role: "status" });
  const cost = figure("Quality by cost of training: click a system");
  const bleu = h("div", {});
  const variants = Object.keys(CHANGED).map((title) => figure(title));
  const changed = h("h2", {}, "One change at a time");
  const numbers = h("div", {});
  const parsing = figure("Quality of the trees", "Labelled F1 of constituency parsing, in brackets and by colour what else the system was trained on. The Transformer was hardly adapted to this task.");
  root.append(tabs(state, "pair", { label: "Languages", options: Object.entries(PAIRS) }), said, cost.element,
    folded("What is BLEU, and how much are two?", bleu),
    h("section", {}, changed, h("div", { class: "multiples" }, variants.map((each) => each.element)), folded("Perplexity and parameters", numbers)),
    foldedSection("Beyond translation: trees of sentences", parsing.element));
  let found = null;
  const ask = live(root, (signal) => found ?? call("results", "tables", {}, signal), (answer) => {
    found = answer;
    drawSystems(found.systems.filter((each) => each[state.values.pair]), state, cost, said);
    bleu.replaceChildren(...counted(found));
    const base = found.variants.find((each) => each.group === "base");
    changed.textContent = `One change at a time: BLEU beside the base model's ${number(base.bleu)} (newstest2013)`;
    const rows = found.variants.filter((each) => each !== base).map((each) => ({ of: each.group, name: each.change, value: Number((each.bleu - base.bleu).toFixed(2)), own: each.group === state.values.group, text: signed(each.bleu - base.bleu) }));
    const reach = [Math.min(...rows.map((row) => row.value)), Math.max(...rows.map((row) => row.value))];
    Object.entries(CHANGED).forEach(([title, groups], i) => rankedBars(variants[i].host, rows.filter((row) => groups.includes(row.of)).map((row) => ({ ...row, colour: groups.indexOf(row.of) })), { kept: true, reach, describe: `${title}: BLEU of variants, above or below that of the base model.` }));
    Object.values(CHANGED).forEach((groups, i) => variants[i].words.replaceChildren(h("span", { class: "legend" }, groups.map((name, colour) => h("span", { style: { color: series(colour) } }, `▬ ${name}`)))));
    numbers.replaceChildren(table("Variants of the base model", ["variant", "BLEU", "perplexity of a piece", "parameters"], found.variants.map((each) => [each.change, each.bleu.toFixed(1), each.perplexity.toFixed(2), `${number((each.parameters ?? base.parameters) / 1e6)} M`])),
      h("p", { class: "note" }, "Newstest2013, English to German. Parameters as the paper prints them, rounded; where it prints none, those of the base model. Counted with its 37,000 pieces, the base model has the 63.1 M of the Builder."));
    rankedBars(parsing.host, found.parsing.map((each) => ({ name: each.trained === "this corpus only" ? each.name : `${each.name} (${each.trained})`, value: each.f1, own: each.own, colour: TRAINED.indexOf(each.trained) })),
      { label: "F1", dots: true, describe: `F1 of ${found.parsing.length} parsers.` });
  });
  state.watch(ask);
  ask();
}

/** The chart, the chosen system beside the one it is measured by, and both in a sentence. */
function drawSystems(systems, state, { host, words }, said) {
  const { pair, system } = state.values;
  const priced = systems.filter((each) => each[`flops_${pair}`]);
  const flops = (each) => each[`flops_${pair}`];
  const base = priced.find((each) => each.name === "Transformer, base");
  const before = priced.filter((each) => !each.own).reduce((best, each) => (each[pair] > best[pair] ? each : best));
  const chosen = priced.find((each) => each.name === system) ?? priced.find((each) => each.name === "Transformer, big");
  const measure = chosen.own ? before : base;
  const gain = signed(chosen[pair] - measure[pair]);
  const ratio = flops(chosen) / flops(measure);
  const times = ratio < 1 ? `1/${Math.round(1 / ratio)}` : `${number(ratio, 2)} times`;
  scatterChart(host, {
    points: priced.map((each) => ({ name: each.name, kind: each.kind, below: each.own ? null : each.kind, short: each.own ? [each.name] : each.name.split(", "), group: KINDS.indexOf(each.kind), x: flops(each) / flops(base), y: each[pair], own: each.own, open: each.ensemble })),
    x: { label: "training cost, in trainings of the base model", axis: "← cheaper · training cost (base model: 1)", log: true, text: (cost) => `${number(cost, 2)} (${operations(cost * flops(base))} operations)` },
    y: { label: "BLEU", axis: "BLEU, better →" }, zone: { name: before.name, words: ["better and cheaper", "than the best before"] }, ring: "ensemble", chosen: chosen.name, choose: ({ name }) => state.set({ system: name }, { step: true }),
    compare: { name: measure.name, across: `${times} the cost`, up: `${gain} BLEU` },
    describe: `BLEU of ${priced.length} systems by the cost of their training, ${PAIRS[pair]}.`,
  });
  const left = systems.filter((each) => !priced.includes(each)).map((each) => ` ${each.name} (${each[pair]} BLEU) has no cost in the paper.`);
  words.replaceChildren("Along the lower axis equal steps multiply. A ring: an ensemble, several models that translate together. Test: newstest2014.", ...left);
  const fact = (name, value) => h("strong", { "data-fact": name }, value);
  const kind = chosen.own ? "" : ` (${chosen.kind}${chosen.ensemble ? ", several models together" : ""})`;
  const score = [h("strong", {}, chosen.name), `${kind}: `, fact("bleu", `${chosen[pair]} BLEU`)];
  said.replaceChildren(...(chosen.own
    ? [...score, ", ", fact("gain", gain.replace(/^\+(.*)/, "$1 more").replace(/^−(.*)/, "$1 less")), ` than the best before it (${before.name}), at `, fact("cost", times), " of its training cost: ", fact("time", chosen.hours < 48 ? `${chosen.hours} hours` : `${number(chosen.hours / 24)} days`), " on eight GPUs.", chosen[pair] < before[pair] ? SHORT : ""]
    : [...score, " at ", fact("cost", times), ` the training cost of the base Transformer, which has ${base[pair]} (`, fact("gain", gain), ")."]));
}

/** BLEU, counted in two translations of a sentence. */
function counted({ bleu }) {
  const person = ` ${bleu[0].words.join(" ")} `;
  const has = (run) => person.includes(` ${run} `);
  const runs = (words) => words.reduce((all, word) => {
    const longer = `${all.at(-1)} ${word}`;
    return has(longer) ? [...all.slice(0, -1), longer] : [...all, word];
  }, []);
  return [
    h("p", {}, "BLEU counts the words of a translation, and its runs of two, three and four words, that a person's translation has too. It is the geometric mean of the four shares; a translation that is too short loses more."),
    table("BLEU of one sentence: words, and runs of 2, 3 and 4, that the person wrote too", ["translation", "words", "2", "3", "4", "BLEU"], bleu.map(({ about, words, shared, score }) => [
      h("span", {}, runs(words).flatMap((run) => [h("span", { class: has(run) ? "new-word" : "differs" }, run), " "]), h("small", {}, about)),
      ...shared.map(([same, all]) => `${same}/${all}`), score.toFixed(1)]), { class: "figures written" }),
    h("p", {}, "Two BLEU, from 26.4 to 28.4, are about two words in a hundred: if errors were single words spread evenly, 60.4 of 100 words would be the person's, not 58.7. Two layers instead of six cost the base model as much (below)."),
  ];
}

const signed = (value) => (Math.abs(value) < 0.05 ? "±0" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`);

/** Operations by their power of ten, as the paper writes them. */
function operations(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  return `${number(value / 10 ** exponent, 3)}·10${[...String(exponent)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}
