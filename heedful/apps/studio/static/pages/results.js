import { call, live } from "../api.js";
import { choice, panel } from "../controls.js";
import { figure, folded, h, number, section, table } from "../dom.js";
import { rankedBars } from "../draw/ranked.js";
import { scatterChart } from "../draw/scatter.js";

export const wide = true;
export const defaults = () => ({ pair: "en_de", group: "" });

/** What differs where the base model falls short, which is in French: facts of the paper. */
const SHORT = " It falls short here. It trained no longer than for German, on eight times as many sentences (36 million, not 4.5); the paper gives no reason.";
const PAIRS = { en_de: "English to German", en_fr: "English to French" };

export function mount({ root, side, state }) {
  const summary = h("p", { class: "sentence" });
  const quality = figure("BLEU of each system", "On newstest2014. The Transformer is blue. A system without a cost in the paper, such as ByteNet, is here alone.");
  const cost = figure("BLEU by cost of training", "Up is better, left is cheaper; along the lower axis equal steps multiply. A ring: several models that translate together.");
  const variants = figure("What each part is worth", "Difference in BLEU to the base model when one thing is changed: newstest2013, English to German.");
  const numbers = h("div", {});
  const parsing = figure("Trees of sentences", "Labelled F1 of constituency parsing, in brackets what else the system was trained on. The Transformer was hardly adapted to this task.");
  const group = choice(state, "group", { label: "Changed", options: [["", "anything"]] });
  side.append(panel(choice(state, "pair", { label: "Languages", options: Object.entries(PAIRS) })));
  root.append(summary, cost.element, folded("BLEU of each system, one below the other", quality.element), section("One change at a time", h("div", { class: "panel" }, group), variants.element, folded("Perplexity and parameters", numbers)), section("Beyond translation", parsing.element));
  let found = null;
  const ask = live(root, (signal) => found ?? call("results", "tables", {}, signal), (answer) => {
    found = answer;
    const { pair, group: chosen } = state.values;
    group.fill([["", "anything"], ...[...new Set(found.variants.map((each) => each.group))].filter((name) => name !== "base")]);
    drawSystems(found.systems.filter((each) => each[pair]), pair, { quality, cost, summary });
    const base = found.variants.find((each) => each.group === "base");
    const shown = found.variants.filter((each) => chosen === "" || each.group === chosen || each === base);
    rankedBars(variants.host, shown.map((each) => ({ name: each.change, value: Number((each.bleu - base.bleu).toFixed(2)), own: each === base, text: each === base ? number(each.bleu) : `${each.bleu.toFixed(1)} (${signed(each.bleu - base.bleu)})` })),
      { label: "BLEU above or below the base model", describe: `BLEU of ${shown.length} variants, and its difference to the base model.` });
    numbers.replaceChildren(table("Variants of the base model", ["variant", "BLEU", "perplexity of a piece", "parameters"], shown.map((each) => [each.change, each.bleu.toFixed(1), each.perplexity.toFixed(2), each.parameters ? `${number(each.parameters / 1e6)} M` : "as base"])),
      h("p", { class: "note" }, "Parameters as the paper prints them, rounded. Counted with its 37,000 pieces, the base model has the 63.1 M of the Builder."));
    rankedBars(parsing.host, found.parsing.map((each) => ({ name: each.trained === "this corpus only" ? each.name : `${each.name} (${each.trained})`, value: each.f1, own: each.own })),
      { label: "F1", dots: true, describe: `F1 of ${found.parsing.length} parsers.` });
  });
  state.watch(ask);
  ask();
}

function drawSystems(systems, pair, { quality, cost, summary }) {
  rankedBars(quality.host, systems.map((each) => ({ name: each.name, value: each[pair], own: each.own })),
    { label: `BLEU, ${PAIRS[pair]}`, dots: true, describe: `BLEU of ${systems.length} systems, ${PAIRS[pair]}.` });
  const priced = systems.filter((each) => each[`flops_${pair}`]);
  const flops = (each) => each[`flops_${pair}`];
  const base = flops(priced.find((each) => each.own));
  scatterChart(cost.host, {
    points: priced.map((each) => ({ name: each.name, x: flops(each) / base, y: each[pair], own: each.own, open: each.ensemble })),
    x: { label: "training cost, in trainings of the base model", log: true, text: (times) => `${number(times, 2)} (${operations(times * base)} operations)` },
    y: { label: "BLEU" }, best: "none is both better and cheaper",
    describe: `BLEU of ${priced.length} systems by the cost of their training, ${PAIRS[pair]}.`,
  });
  const others = priced.filter((each) => !each.own);
  const before = others.reduce((best, each) => (each[pair] > best[pair] ? each : best));
  const sizes = systems.filter((each) => each.own).reverse();
  summary.replaceChildren(...sizes.flatMap((each, i) => {
    const size = each.name.split(", ")[1];
    const fact = (name, words) => h("strong", { "data-fact": `${size}-${name}` }, words);
    return [i ? " The base one: " : "The big Transformer: ", fact("gain", `${signed(each[pair] - before[pair])} BLEU`), " for ", fact("cost", `1/${Math.round(flops(before) / flops(each))}`), i ? ", " : ` of the training of the best before it (${before.name}), `,
      fact("time", each.hours < 48 ? `${each.hours} hours` : `${number(each.hours / 24)} days`), i ? "." : " on eight GPUs."];
  }), sizes.some((each) => each[pair] < before[pair]) ? SHORT : "");
}

const signed = (value) => (Math.abs(value) < 0.05 ? "±0" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`);

/** Operations by their power of ten, as the paper writes them. */
function operations(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  return `${number(value / 10 ** exponent, 3)}·10${[...String(exponent)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}
