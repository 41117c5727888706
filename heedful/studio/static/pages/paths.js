import { call, live, problem } from "../api.js";
import { button, choice, panel, several, slider, text } from "../controls.js";
import { engineering, figure, folded, h, number, section, table } from "../dom.js";
import { facts } from "../draw/bars.js";
import { lineChart } from "../draw/lines.js";
import { networkPicture } from "../draw/network.js";

const READERS = ["translator", "causal_lm", "encoder"];
const SIZES = [8, 16, 24, 32, 48, 64, 96, 128];
const KINDS = {
  attention: ["Attention", "Every token reads every other one."],
  recurrent: ["Recurrent", "Every state reads the one before it."],
  window: ["Attention in a window", "Every token reads its neighbours; layers widen the window."],
  convolution: ["Convolution", "Every token reads some before it."],
  dilated: ["Dilated convolution", "The same, with gaps that grow from layer to layer."],
};
const CELLS = { rnn: "RNN", lstm: "LSTM", gru: "GRU" };

export const defaults = () => ({
  length: 64, width: 64, layers: 2, window: 4, kernel: 3, cells: ["rnn", "lstm", "gru"], keep: 1, norms: "post", seed: 1,
  shown: "relative", model: "", stack: "", text: "",
});

export function mount({ root, side, state, studio }) {
  const models = studio.places.filter((place) => READERS.includes(place.kind));
  const drawings = h("div", {});
  const charts = h("div", {});
  side.append(
    panel(slider(state, "length", { label: "Tokens", stops: [2, 4, ...SIZES] }),
      slider(state, "width", { label: "Width", stops: SIZES }),
      slider(state, "layers", { label: "Layers", min: 1, max: 4 }),
      slider(state, "window", { label: "Window, to each side", min: 2, max: 32 }),
      slider(state, "kernel", { label: "Kernel size of the convolution", min: 2, max: 9 })));
  root.append(section("Steps from the first token to the last", drawings), section("What arrives", measured(state, models, charts), charts));

  const draw = stepped(drawings);
  const steps = live(drawings, (signal) => {
    const { length, width, layers, window, kernel } = state.values;
    return call("paths", "steps", { length, width, num_layers: layers, window, kernel }, signal);
  }, draw);
  steps();
  const known = {};
  /** An answer, asked for anew only when what is asked has changed. */
  async function kept(name, asked, signal) {
    const key = JSON.stringify(asked);
    if (known[name]?.key !== key) known[name] = { key, found: await call("paths", name, asked, signal) };
    return known[name].found;
  }
  async function ofOwn(signal) {
    const { model, stack, text: written } = state.values;
    if (!model || written.trim() === "") return null;
    try {
      return await kept("own", { model, stack, text: written }, signal);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return { error }; // the new networks can be shown all the same
    }
  }
  const measure = live(charts, async (signal) => {
    const { length, width, layers, window, cells, keep, norms, seed } = state.values;
    const found = await kept("measure", { length, width, num_layers: layers, window, cells, keep_bias: keep, norm_placement: norms, seed }, signal);
    return { found, own: await ofOwn(signal) };
  }, arrived(charts, state));
  state.watch((_, changed) => {
    if (changed.some((name) => ["length", "width", "layers", "window", "kernel"].includes(name))) steps();
    if (changed.some((name) => name !== "kernel")) measure();
  });
  measure();
}

function stepped(host) {
  const pictures = Object.fromEntries(Object.entries(KINDS).map(([kind, [title, about]]) => [kind, figure(title, about)]));
  const curves = {
    path: figure("Longest path", "Connections between the first token and the last, with as many layers as needed."),
    steps: figure("Sequential steps", "Operations that must follow one another, however large the machine."),
    operations: figure("Operations", "Multiply-adds of the layers' main products."),
  };
  const numbers = h("div", {});
  const drawn = h("p", { class: "note" });
  host.append(numbers, drawn, h("div", { class: "columns" }, Object.values(pictures).map((each) => each.element)),
    h("div", { class: "columns" }, Object.values(curves).map((each) => each.element)));
  return ({ costs, here, networks }) => {
    const length = here[0].lengths[0];
    const path = Object.fromEntries(here.map((each) => [each.kind, each.path[0]]));
    numbers.replaceChildren(
      facts([["path, recurrent", number(path.recurrent), "path-recurrent"], ["path, attention", number(path.attention), "path-attention"],
        ["sequential steps, recurrent", number(here.find((each) => each.kind === "recurrent").steps[0]), "steps-recurrent"],
        ["sequential steps, attention", number(here.find((each) => each.kind === "attention").steps[0]), "steps-attention"]]),
      folded(`All of it for ${length} tokens`, () => table(`For ${length} tokens`, ["layer", "operations", "sequential steps", "longest path"],
        here.map((each) => [KINDS[each.kind][0], engineering(each.operations[0]), number(each.steps[0]), number(each.path[0])]))));
    const small = networks[0].length;
    drawn.textContent = small < length ? `Drawn for ${small} tokens; the numbers are for ${length}.` : "";
    for (const network of networks) {
      const [title, about] = KINDS[network.kind];
      const place = pictures[network.kind];
      const count = network.route.length - 1;
      place.element.querySelector("h3").textContent = `${title}: ${number(path[network.kind])} ${path[network.kind] === 1 ? "step" : "steps"}`;
      place.words.textContent = about;
      networkPicture(place.host, { ...network, describe: `${title}: ${count} ${count === 1 ? "step" : "steps"} from the first of ${small} tokens to the last.` });
    }
    for (const [name, place] of Object.entries(curves)) {
      lineChart(place.host, {
        series: costs.map((each, i) => ({ name: KINDS[each.kind][0], colour: i, dashed: each.kind === "dilated", points: each.lengths.map((n, j) => [n, each[name][j]]) })),
        x: { label: "tokens", log: true, base: 2 }, y: { label: place.element.querySelector("h3").textContent.toLowerCase(), log: true },
        describe: `${place.element.querySelector("h3").textContent} by the number of tokens, for five kinds of layer.`,
      });
    }
  };
}

/** The controls of what is measured. */
function measured(state, models, charts) {
  const stack = choice(state, "stack", { label: "Its", options: [["", "last stack"], ["encoder", "encoder"], ["decoder", "decoder"]] });
  const sentences = text(state, "text", { label: "Sentences for your model", rows: 2, hint: "Up to 8, a line each; the curve is their mean." });
  const arrange = () => {
    const kind = models.find((place) => place.name === state.values.model)?.kind;
    stack.hidden = kind !== "translator";
    sentences.hidden = !state.values.model;
    if (kind && kind !== "translator" && state.values.stack) state.set({ stack: "" });
  };
  state.watch(arrange);
  const controls = panel(
    several(state, "cells", { label: "Recurrent cells", options: Object.keys(CELLS) }),
    slider(state, "keep", { label: "Bias of the forget gate", min: -2, max: 6, step: 0.5 }),
    choice(state, "norms", { label: "The Transformer's norms", options: [["post", "after each sum (2017)"], ["pre", "before each sub-layer"]] }),
    choice(state, "shown", { label: "Gradients", options: [["relative", "against the last token's own"], ["mean", "as they are"]] }),
    models.length ? choice(state, "model", { label: "Your own model", options: [["", "none"], ...models.map((place) => [place.name, place.name])] }) : null,
    models.length ? stack : null, models.length ? sentences : null,
    button("Draw others", () => state.set({ seed: state.values.seed + 1 }, { step: true }), { quiet: true }));
  for (const [cell, name] of Object.entries(CELLS)) controls.querySelector(`input[value="${cell}"] + span`).textContent = name;
  arrange();
  return controls;
}

function arrived(host, state) {
  const picture = figure("Gradient of the last token's output by each token's embedding",
    "The Frobenius norm of the Jacobian, estimated from some directions of the output; the mean of three draws of weights and tokens. These networks are untrained: training moves all these curves. Exact zeros are not drawn.");
  const numbers = h("div", {});
  const written = h("div", { class: "own" });
  host.append(numbers, picture.element, written,
    h("p", { class: "note" }, "The state of a plain RNN goes through one matrix and one tanh at each step, so that the gradient shrinks by about the same factor each time; an LSTM and a GRU have a gate that can let it through. The last token of a Transformer depends mostly on itself, through the residual stream, and on far tokens as much as on near ones."));
  return ({ found, own }) => {
    const { shown, model } = state.values;
    const series = found.recurrent.map((each) => ({ name: CELLS[each.name], colour: { rnn: 1, lstm: 2, gru: 4 }[each.name], reach: each }));
    series.push({ name: "Transformer", colour: 0, reach: found.transformer },
      { name: `Transformer, window ${state.values.window}`, colour: 5, dashed: true, reach: found.window });
    if (own?.reach) series.push({ name: `${own.stack} of ${model}`, colour: 3, reach: own.reach });
    for (const each of series) each.points = each.reach[shown].map((value, distance) => [distance, value]);
    const far = found.transformer.relative.length - 1;
    numbers.replaceChildren(facts(series.filter((each) => each.reach.relative.length > far).map((each) => [`at distance ${far}, ${each.name}`, number(each.reach[shown][far], 3), `far-${each.reach.name}${each.dashed ? "-window" : ""}`])));
    const texts = own?.targets?.filter((target) => target) ?? [];
    written.replaceChildren(own?.error ? problem(own.error) : h("p", { class: "note", dir: "auto" },
      texts.length ? `${model} wrote: ${texts.join(" / ")}` : model && !own ? "Type some sentences, and the curve of your model is drawn too." : ""));
    lineChart(picture.host, {
      series, x: { label: "distance" }, y: { label: shown === "relative" ? "against its own" : "norm", log: true }, height: 380,
      describe: "Size of the gradient by distance from the last token, on a logarithmic axis.",
    });
  };
}
