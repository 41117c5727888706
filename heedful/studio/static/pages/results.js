import { call, live } from "../api.js";
import { choice, panel } from "../controls.js";
import { engineering, figure, h, number, section, table } from "../dom.js";
import { headColour } from "../draw/links.js";
import { lineChart } from "../draw/lines.js";
import { rankedBars } from "../draw/ranked.js";

export const defaults = () => ({ pair: "en_de", group: "" });

const PAIRS = { en_de: "English to German", en_fr: "English to French" };

export function mount({ root, side, state }) {
  const quality = figure("BLEU of each system", "On newstest2014. Single models and ensembles of several; the Transformer's bars are dark.");
  const cost = figure("Quality by cost of training", "Up is better, left is cheaper. Floating-point operations as the paper estimates them.");
  const variants = figure("What each part is worth", "BLEU of the base model with one thing changed, on newstest2013, English to German.");
  const numbers = h("div", {});
  const group = choice(state, "group", { label: "Changed", options: [["", "anything"]] });
  side.append(panel(choice(state, "pair", { label: "Languages", options: Object.entries(PAIRS) }), group));
  root.append(h("div", { class: "columns" }, quality.element, cost.element), section("Without each component", variants.element, numbers));
  let found = null;
  const ask = live(root, (signal) => found ?? call("results", "tables", {}, signal), (answer) => {
    found = answer;
    const { pair, group: chosen } = state.values;
    group.fill([["", "anything"], ...[...new Set(found.variants.map((each) => each.group))].filter((name) => name !== "base")]);
    const systems = found.systems.filter((each) => each[pair]);
    rankedBars(quality.host, systems.map((each) => ({ name: each.name, value: each[pair], own: each.own })), { from: pair === "en_de" ? 22 : 36 });
    const priced = systems.filter((each) => each[`flops_${pair}`]);
    lineChart(cost.host, {
      series: priced.map((each, i) => ({ name: each.name, colour: headColour(i, Math.max(7, priced.length)), points: [[each[`flops_${pair}`], each[pair]]] })),
      x: { label: "operations of training", log: true }, y: { label: "BLEU" },
      describe: `BLEU of ${priced.length} systems by the operations of their training, ${PAIRS[pair]}.`,
    });
    const base = found.variants.find((each) => each.group === "base");
    const shown = found.variants.filter((each) => chosen === "" || each.group === chosen || each === base);
    rankedBars(variants.host, shown.map((each) => ({ name: each.change, value: each.bleu, own: each === base, note: each === base ? "" : signed(each.bleu - base.bleu) })), { from: 23 });
    numbers.replaceChildren(table("Variants of the base model", ["variant", "BLEU", "perplexity of a piece", "parameters"], shown.map((each) => [each.change, number(each.bleu), number(each.perplexity), each.parameters ? engineering(each.parameters) : "as base"])));
  });
  state.watch(ask);
  ask();
}

const signed = (value) => (Math.abs(value) < 0.05 ? "±0" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`);
