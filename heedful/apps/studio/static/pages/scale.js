import { addressOf } from "../address.js";
import { call, live } from "../api.js";
import { button, panel, slider } from "../controls.js";
import { figure, folded, h, number, percent, section } from "../dom.js";
import { barChart, facts } from "../draw/bars.js";
import { lineChart } from "../draw/lines.js";
import { scoreCell, shareCell, softmax, wordShares } from "../word_shares.js";

export const wide = true;
export const defaults = () => ({ width: 64, keys: 12, seed: 1, row: -1 });

const FOLLOWED = "it"; // the word whose row is shown where none is chosen
const WIDTHS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];

export function mount({ root, side, state }) {
  const one = h("div", {});
  const many = h("div", {});
  side.append(
    panel(
      slider(state, "width", { label: "Width of a head, dₖ", stops: WIDTHS }),
      slider(state, "keys", { label: "Keys", min: 2, max: 64 }),
      button("Draw others", () => state.set({ seed: state.values.seed + 1 }, { step: true }), { quiet: true })));
  const proof = h("p", { class: "note" }, "Query and keys are drawn at random, with variance 1 in each channel. Their product adds dₖ random numbers of variance 1, so its variance is dₖ, and dividing by √dₖ makes it 1 again. In training it decides: ", h("a", { href: addressOf("without", "shown=wide&shown=scale") }, "a translator with keys of 512 channels, with the division and without"), ".");
  root.append(one, proof, section("At every width"), many);
  realHead(state, (element) => root.before(element));
  const pictures = compared(one);
  const curves = atEveryWidth(many);
  const ask = () => {
    const { width, keys, seed } = state.values;
    return { width, keys, seed };
  };
  const compare = live(one, (signal) => call("scale", "compare", ask(), signal), (found) => pictures(found, state.values));
  let swept = null;
  const sweep = live(many, (signal) => call("scale", "sweep", { keys: ask().keys, seed: ask().seed }, signal), (found) => {
    swept = found;
    curves(found, state.values);
  });
  state.watch((_, changed) => {
    if (changed.every((name) => name === "row")) return;
    compare();
    if (changed.some((name) => name !== "width")) sweep();
    else if (swept) curves(swept, state.values);
  });
  compare();
  sweep();
}

/** A trained head at work, once it is known that its model is at hand: the row of a word with the division and without. */
function realHead(state, place) {
  const { element, host, words } = figure("");
  element.classList.add("first-sight", "tall");
  let found = null;
  const draw = () => {
    if (!found?.scores) return;
    if (!element.isConnected) place(element);
    const names = found.words;
    const chosen = Math.min(state.values.row < 0 ? names.indexOf(FOLLOWED) : state.values.row, names.length - 1);
    const before = (row) => row[chosen].slice(0, chosen + 1); // it is a decoder's: words look back
    const line = (row, cell) => [...row.map(cell), ...names.slice(chosen + 1).map(() => ({ kind: "out" }))];
    const [raw, divided] = [before(found.products), before(found.scores)];
    const [without, shares] = [softmax(raw), softmax(divided)];
    element.querySelector("h3").textContent = `A real head: where “${names[chosen]}” looks, without the division by √${found.width} and with it`;
    wordShares(host, { words: names, chosen, choose: (row) => state.set({ row }, { step: true }), rows: [
      ["score q·k", line(raw, scoreCell)],
      ["without", line(without, (weight) => shareCell(weight, 1, "bar undivided"))],
      [`q·k / √${found.width}`, line(divided, scoreCell)],
      ["with", line(shares, (weight) => shareCell(weight, 1))],
    ] });
    const best = without.indexOf(Math.max(...without));
    const strong = (share, key) => h("strong", { "data-fact": key }, percent(share));
    words.replaceChildren(`Without the division “${names[best]}” gets `, strong(without[best], "real-without"), ", with it ", strong(shares[best], "real-with"),
      `: the order stays, and other words are heard too. Layer ${found.layer}, head ${found.head} of ${found.model}, dₖ = ${found.width}.`);
  };
  live(element, (signal) => call("masks", "head", {}, signal), (answer) => {
    found = answer;
    draw();
  })();
  state.watch((_, changed) => {
    if (changed.includes("row")) draw();
  });
}

function compared(host) {
  const sides = [["without", "Random keys: softmax of q·k", 1], ["with", "Random keys: softmax of q·k / √dₖ", 0]].map(([side, title, colour]) => {
    const picture = figure(title);
    const about = h("div", { class: "slim" });
    picture.element.append(about);
    return { side, picture, about, colour };
  });
  host.append(h("div", { class: "columns two" }, sides.map((each) => each.picture.element)),
    h("p", {}, "These numbers are of one random query. The curve of the gradient below is the mean of 64: those whose best keys are nearly level have a far larger one."));
  return (found, { width, keys }) => {
    for (const { side, picture, about, colour } of sides) {
      const { weights, largest, effective, gradient } = found[side];
      barChart(picture.host, {
        values: weights, colour, most: 1, label: "key",
        describe: `Weights of ${keys} keys at width ${width}, ${side} the scale; the largest is ${number(largest)}.`,
      });
      about.replaceChildren(facts([
        ["largest weight", number(largest), `${side}-largest`],
        ["keys that count", number(effective, 3), `${side}-effective`],
        ["size of the gradient", number(gradient, 3), `${side}-gradient`],
      ]));
    }
  };
}

function atEveryWidth(host) {
  const pictures = {
    deviation: figure("Standard deviation of the scores", "Without the division it grows as √dₖ: a straight line, as both axes are logarithmic."),
    gradient: figure("Size of the gradient", "Derivative of the weights by the scores: the signal that training gets. The mean of 64 queries."),
    entropy: figure("Entropy of the weights", "Near 0 one key has all the weight. Dashed: all keys have the same. Keys that count: e to this entropy, as many as would share the weight equally."),
  };
  const { entropy, ...first } = pictures;
  host.append(h("div", { class: "columns two" }, Object.values(first).map((each) => each.element)),
    folded("Entropy of the weights", entropy.element));
  return (found, { width: chosen }) => {
    for (const [name, { host: place, element }] of Object.entries(pictures)) {
      const title = element.querySelector("h3").textContent;
      const series = [
        { name: "q·k", colour: 1, dots: true, points: found.widths.map((width, i) => [width, found[`${name}_without`][i]]) },
        { name: "q·k / √dₖ", colour: 0, dots: true, points: found.widths.map((width, i) => [width, found[`${name}_with`][i]]) },
      ];
      if (name === "entropy") {
        series.push({ name: "all equal", colour: 2, dashed: true, points: found.widths.map((width) => [width, found.even]) });
      }
      lineChart(place, {
        series, x: { label: "dₖ", log: true, base: 2 }, y: { label: "", zero: true, log: name === "deviation" }, ends: true,
        mark: [chosen, `dₖ = ${number(chosen)}`],
        describe: `${title} by the width of a head, with the scale and without.`,
      });
    }
  };
}
