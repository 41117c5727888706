import { call, live, problem } from "../api.js";
import { button, choice, more, panel, several, slider, text } from "../controls.js";
import { engineering, figure, folded, foldedSection, h, isStill, number, section, table } from "../dom.js";
import { byLength } from "../by_length.js";
import { series } from "../draw/colours.js";
import { facts } from "../draw/facts.js";
import { heatMap } from "../draw/heat.js";
import { lineChart } from "../draw/lines.js";
import { networkPicture } from "../draw/network.js";
import { sendAlong, wordPaths } from "../draw/word_paths.js";

const READERS = ["translator", "causal_lm", "encoder"];
const SIZES = [8, 16, 24, 32, 48, 64, 96, 128];
const KINDS = { // the two that are compared come first
  recurrent: ["Recurrent", "A token reaches the last one through all that lie between."],
  attention: ["Attention", "The last token reads every other directly, near or far."],
  window: ["Attention in a window", "Every token reads its neighbours; layers widen the window."],
  convolution: ["Convolution", "Every token reads some before it."],
  dilated: ["Dilated convolution", "The same, with gaps that grow from layer to layer."],
};
const CELLS = { lstm: "LSTM", rnn: "RNN", gru: "GRU" }; // the first one is compared
const COLOURS = { lstm: 1, rnn: 2, gru: 4, transformer: 0, window: 5 };
const DRAWS = 3; // of weights and tokens, whose mean is drawn
const DECADES = 3; // of a signal that are told apart by shades
const KEPT = 200; // measured pieces that are not asked for again
const RUN = 4000; // milliseconds of a signal on its way, in both pictures
const [HOP, JUMP] = [400, 700]; // milliseconds of a step at most, and of attention's one

// The last word means the first one: who reads it must still know that.
const SENTENCE = "Anna told us one cold evening after supper by the old stove how the wind had once torn the roof right off above her".split(" ");
const wordsOf = (length) => (length <= SENTENCE.length ? SENTENCE.slice(-length) : null);
const firstWord = (length) => (wordsOf(length) ? `“${wordsOf(length)[0]}”` : "the first token");
const lastWord = (length) => (wordsOf(length) ? `“${wordsOf(length).at(-1)}”` : "the last token");

export const wide = true;
export const defaults = () => ({
  length: SENTENCE.length, width: 64, layers: 2, window: 4, kernel: 3, cells: Object.keys(CELLS), keep: 0, norms: "post", seed: 1,
  shown: "relative", model: "", stack: "", text: "",
});

export function mount({ root, side, state, studio }) {
  const models = studio.places.filter((place) => READERS.includes(place.kind));
  const [drawings, rest] = [h("div", {}), h("div", {})];
  const charts = h("div", {});
  const bar = progressBar();
  side.append(settings(state, models));
  const run = button("Play", () => send());
  run.hidden = isStill();
  const asked = h("h2", {});
  const price = h("section", {});
  root.before(h("section", { class: "first-sight" }, h("div", { class: "row sending" }, asked, run, h("span", { class: "note" }, "More colour: more of the word arrives. Weights are random.")), drawings));
  root.append(h("div", { class: "columns halves" }, byLength(), price), section("What arrives of each token", bar.element, charts), rest);

  const { draw, fade, send } = stepped(drawings, rest, price, state);
  let opening = !run.hidden && !state.differs(Object.keys(defaults())); // an address with settings shows its picture at once
  const steps = live(drawings, (signal) => {
    const { length, width, layers, window, kernel } = state.values;
    return call("paths", "steps", { length, width, num_layers: layers, window, kernel }, signal);
  }, (found) => {
    asked.textContent = `How does ${lastWord(found.here[0].lengths[0])} know of ${firstWord(found.here[0].lengths[0])}?`;
    draw(found);
  });
  steps();
  const { measure, stop } = measuring(state, charts);
  bar.stop.addEventListener("click", () => (bar.running ? stop() : measure()));
  state.watch((_, changed) => {
    if (changed.some((name) => ["length", "width", "layers", "window", "kernel"].includes(name))) steps();
    if (changed.some((name) => name !== "kernel")) measure();
  });
  measure();

  /** Measures piece by piece: every network, draw by draw, then the model of one's own. */
  function measuring(settings, host) {
    const pieces = new Map();
    let halt = new AbortController();
    const arrive = arrived(host, settings);
    const show = (found) => {
      fade(found.reaches);
      arrive(found);
      if (opening && found.reaches.has("transformer")) {
        opening = false;
        send();
      }
    };
    async function piece(name, asked, signal) {
      const key = JSON.stringify([name, asked]);
      if (!pieces.has(key)) {
        pieces.set(key, await call("paths", name, asked, signal));
        if (pieces.size > KEPT) pieces.delete(pieces.keys().next().value);
      }
      return pieces.get(key);
    }
    const ask = live(host, async (signal) => {
      const { length, width, layers, window, cells, keep, norms, seed, model, stack, text: written } = settings.values;
      halt = new AbortController();
      const either = AbortSignal.any([signal, halt.signal]);
      const networks = [...Object.keys(CELLS).filter((cell) => cells.includes(cell)), "transformer", "window"];
      const found = { reaches: new Map(), own: null, length };
      const withOwn = Boolean(model && written.trim());
      const all = DRAWS * networks.length + (withOwn ? 1 : 0);
      let done = 0;
      bar.begin();
      try {
        for (let draw = 0; draw < DRAWS; draw += 1) {
          for (const network of networks) {
            bar.tell(done, all, `${named(network, window)}, draw ${draw + 1} of ${DRAWS}`);
            const asked = { network, length, width, num_layers: layers, seed: seed + draw };
            if (network === "window") asked.window = window;
            if (network in CELLS) asked.keep_bias = keep;
            else asked.norm_placement = norms;
            const reach = await piece("measure", asked, either);
            found.reaches.set(network, [...(found.reaches.get(network) ?? []), reach]);
            done += 1;
            show(found);
          }
        }
        if (withOwn) {
          bar.tell(done, all, model);
          found.own = await piece("own", { model, stack, text: written }, either).catch((error) => {
            if (error.name === "AbortError" || error.away) throw error;
            return { error }; // the new networks can be shown all the same
          });
        }
        bar.end("");
      } catch (error) {
        if (error.name === "AbortError" && halt.signal.aborted && !signal.aborted) bar.end(`Stopped after ${done} of ${all}.`, "Measure the rest");
        else {
          if (!signal.aborted) bar.end("");
          throw error;
        }
      }
      return found;
    }, show);
    return { measure: ask, stop: () => halt.abort() };
  }
}

const named = (network, window) => CELLS[network] ?? (network === "window" ? `Transformer, window ${window}` : "Transformer");

/** How far the measuring is, and a button that stops it. */
function progressBar() {
  const line = h("progress", { max: 1, value: 0, "aria-label": "Measured so far" });
  const words = h("span", { class: "note", role: "status" });
  const press = button("Stop", () => {}, { quiet: true });
  const element = h("p", { class: "row measuring" }, line, words, press);
  return {
    element, stop: press, running: false,
    begin() {
      this.running = true;
      element.hidden = false;
      press.textContent = "Stop";
    },
    tell(done, all, what) {
      line.value = done / all;
      words.textContent = `Measuring ${what} (${done + 1} of ${all})`;
    },
    /** Say how it ended; without words there is nothing more to see. */
    end(said, again = null) {
      this.running = false;
      element.hidden = !said;
      words.textContent = said;
      if (again) press.textContent = again;
    },
  };
}

function stepped(host, rest, price, state) {
  const pictures = Object.fromEntries(Object.entries(KINDS).map(([kind, [title, about]]) => [kind, figure(title, about)]));
  const curves = {
    path: figure("Longest path", "Connections between the first token and the last, with as many layers as needed."),
    steps: figure("Sequential steps", "Operations that must follow one another, however large the machine."),
    operations: figure("Operations", "Multiply-adds of the layers' main products."),
  };
  const numbers = h("div", {});
  const columns = (parts, sizes = "columns") => h("div", { class: sizes }, parts.map((each) => each.element));
  const [recurrent, attention, ...others] = Object.values(pictures);
  host.append(h("div", { class: "compared" }, recurrent.element, attention.element));
  rest.append(foldedSection("Other ways: windows and convolutions", columns(others)),
    foldedSection("By the number of tokens: paths, steps, operations", columns([...Object.values(curves), { element: numbers }], "columns halves")));
  const shaded = {};
  let reaches = new Map();
  const networkOf = (kind) => (kind === "attention" ? "transformer" : [...reaches.keys()].find((each) => each in CELLS));
  /** What arrives of a token so far back in a kind of network, by distance; null before it is measured. */
  const sharesOf = (kind) => (reaches.has(networkOf(kind)) ? mean(reaches.get(networkOf(kind)).map((each) => each.relative)) : null);
  /** What is left of the first token after so many steps. */
  const left = (kind, step) => {
    const [shares, { route }] = [sharesOf(kind), shaded[kind]];
    return step === 0 ? 1 : shares?.[Math.round((step / (route.length - 1)) * (shares.length - 1))] ?? 0;
  };
  const tell = (kind, step) => {
    const { words } = pictures[kind];
    if (!sharesOf(kind)) return; // others are measured meanwhile
    const steps = shaded[kind].route.length - 1;
    pictures[kind].element.querySelector("h3").textContent = `${KINDS[kind][0]}: ${step < steps ? `step ${step} of ${steps}` : stepsOf(steps)}`;
    words.replaceChildren(kind === "recurrent" ? "One word at a time." : "All words at once.",
      // What is left on the way says nothing yet beside what attention brings to the end.
      ...(step < steps ? [] : [` Of ${firstWord(shaded[kind].length)} `, h("strong", {}, arrives(left(kind, step))), ` arrives${kind === "recurrent" ? ` (${CELLS[networkOf(kind)]})` : ""}`]));
  };
  /** Draw the two that are compared; their tokens are as pale as what arrives of them, the first one as the first of all tokens. */
  const shade = () => {
    for (const [kind, picture] of Object.entries(shaded)) {
      const shares = sharesOf(kind);
      const last = picture.length - 1;
      const shades = shares && Array.from({ length: picture.length }, (_, token) => strength(shares[Math.round(((last - token) / last) * (shares.length - 1))]));
      if (shares) pictures[kind].element.querySelector("h3").style.color = series(COLOURS[networkOf(kind)]);
      wordPaths(pictures[kind].host, { ...picture, words: wordsOf(picture.length), direct: kind === "attention", shades, colour: COLOURS[networkOf(kind)] });
      if (!shares) pictures[kind].words.textContent = KINDS[kind][1];
      else if (!pictures[kind].host.sending) tell(kind, picture.route.length - 1);
    }
  };
  /** Send the first token's signal along both routes: step by step, and in one. */
  const send = () => {
    for (const kind of Object.keys(shaded).filter(sharesOf)) {
      const { host: place } = pictures[kind];
      const steps = shaded[kind].route.length - 1;
      const travel = steps === 1 ? JUMP : Math.min(RUN, HOP * steps);
      place.sending = true;
      sendAlong(place, { steps, travel, rest: RUN + 200, left: (step) => strength(left(kind, step)), told: (step) => {
        place.sending = step < steps;
        tell(kind, step);
      } });
    }
  };
  const draw = ({ costs, here, networks }) => {
    const length = here[0].lengths[0];
    const path = Object.fromEntries(here.map((each) => [each.kind, each.path[0]]));
    numbers.replaceChildren(table(`For ${length} tokens and ${state.values.layers} ${state.values.layers === 1 ? "layer" : "layers"}`, ["layer", "operations", "sequential steps", "longest path"],
      here.map((each) => [KINDS[each.kind][0], engineering(each.operations[0]), number(each.steps[0]), number(each.path[0])])));
    for (const network of networks) {
      const [title, about] = KINDS[network.kind];
      const place = pictures[network.kind];
      const count = network.route.length - 1;
      // The title says what is drawn; a network of several levels is drawn for some of the tokens.
      place.element.querySelector("h3").textContent = `${title}: ${stepsOf(count)}${network.length < length ? ` for ${network.length} tokens` : ""}`;
      place.words.textContent = network.length < length ? `${about} All ${length} tokens: ${stepsOf(path[network.kind])}.` : about;
      const picture = { ...network, describe: `${title}: ${stepsOf(count)} from the first of ${network.length} tokens to the last.` };
      if (network.kind === "recurrent" || network.kind === "attention") shaded[network.kind] = picture;
      else networkPicture(place.host, picture);
    }
    shade();
    costOf(price, costs, state.values.width);
    for (const [name, place] of Object.entries(curves)) {
      lineChart(place.host, {
        series: together(costs.map((each, i) => ({ name: KINDS[each.kind][0], colour: i, points: each.lengths.map((n, j) => [n, each[name][j]]) }))),
        x: { label: "tokens", log: true, base: 2 }, y: { label: place.element.querySelector("h3").textContent.toLowerCase(), log: true },
        describe: `${place.element.querySelector("h3").textContent} by the number of tokens, for five kinds of layer.`,
      });
    }
  };
  const fade = (found) => {
    reaches = found;
    shade();
  };
  return { draw, fade, send };
}

/** What the two that are compared compute, by the number of tokens, and from where on attention computes more. */
function costOf(host, costs, width) {
  const { element, host: place } = figure("Multiply-adds by the length of the text");
  host.replaceChildren(h("h2", {}, `What does it cost? Past ${number(width)} tokens attention computes more`), element,
    h("p", { class: "note" }, `Every token reads every other: twice the tokens, four times the work. A recurrent network’s work only doubles. They meet at the width of the vectors, here ${number(width)}.`));
  lineChart(place, {
    series: ["attention", "recurrent"].map((kind, colour) => {
      const { lengths, operations } = costs.find((each) => each.kind === kind);
      return { name: kind, colour, points: lengths.map((length, i) => [length, operations[i]]) };
    }),
    x: { label: "tokens", log: true, base: 2 }, y: { label: "multiply-adds", log: true }, height: 210, ends: true, mark: [width, `${number(width)} tokens`],
    describe: "Multiply-adds of attention and of a recurrent network, by the number of tokens.",
  });
}

const stepsOf = (count) => `${number(count)} ${count === 1 ? "step" : "steps"}`;

/** Lines that cover each other as one, with the names of all. */
function together(lines) {
  const alike = (one, other) => String(one.points) === String(other.points);
  return lines.filter((line, i) => lines.findIndex((each) => alike(each, line)) === i)
    .map((line) => ({ ...line, name: lines.filter((each) => alike(each, line)).map(({ name }, i) => (i ? name.toLowerCase() : name)).join(", ") }));
}

/** The controls: tokens, and the others in a fold, open if one of them is not as at first. */
function settings(state, models) {
  const stack = choice(state, "stack", { label: "Stack of your model", options: [["", "the last"], ["encoder", "encoder"], ["decoder", "decoder"]] });
  const sentences = text(state, "text", { label: "Sentences for your model", rows: 2, hint: "Up to 8, a line each; the curve is their mean." });
  const arrange = () => {
    const kind = models.find((place) => place.name === state.values.model)?.kind;
    stack.hidden = kind !== "translator";
    sentences.hidden = !state.values.model;
    if (kind && kind !== "translator" && state.values.stack) state.set({ stack: "" });
  };
  state.watch(arrange);
  const others = more("More settings",
    slider(state, "keep", { label: "Bias of the forget gate: open above 0", min: -2, max: 6, step: 0.5 }),
    several(state, "cells", { label: "Recurrent cells", options: Object.keys(CELLS) }),
    slider(state, "layers", { label: "Layers", min: 1, max: 4 }),
    slider(state, "width", { label: "Width", stops: SIZES }),
    slider(state, "window", { label: "Window, the word itself included", min: 2, max: 32 }),
    slider(state, "kernel", { label: "Kernel size of the convolution", min: 2, max: 9 }),
    choice(state, "norms", { label: "The Transformer's norms", options: [["post", "after each sum (2017)"], ["pre", "before each sub-layer"]] }),
    choice(state, "shown", { label: "Gradients", options: [["relative", "against the last token's own"], ["mean", "as they are"]] }),
    models.length ? choice(state, "model", { label: "Your own model", options: [["", "none"], ...models.map((place) => [place.name, place.name])] }) : null,
    models.length ? stack : null, models.length ? sentences : null,
    button("Draw other random weights", () => state.set({ seed: state.values.seed + 1 }, { step: true }), { quiet: true }));
  others.open = state.differs(Object.keys(defaults()).filter((name) => !["length", "seed"].includes(name)));
  const controls = panel(
    slider(state, "length", { label: "Tokens", stops: [2, 4, ...SIZES] }),
    others);
  for (const [cell, name] of Object.entries(CELLS)) controls.querySelector(`input[value="${cell}"] + span`).textContent = name;
  arrange();
  return controls;
}

/** How dark a share of the signal is drawn, from 0 to 1: each tenth part is a step paler. */
const strength = (share) => (share > 0 ? Math.max(0, 1 + Math.log10(Math.min(1, share)) / DECADES) : 0);

/** What arrives of a token, beside the last one's own: one part in so many. */
const arrives = (share) => (share > 0.5 ? `${number(100 * share, 2)} %` : share > 0 ? `1 part in ${parts(1 / share)}` : "nothing");
const parts = (count) => (count < 1e6 ? number(Number(count.toPrecision(2))) : count < 1e9 ? `${number(count / 1e6, 2)} million` : count < 1e12 ? `${number(count / 1e9, 2)} billion` : number(count, 3));

/** The mean of some samples, number by number. */
const mean = (rows) => rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);

function arrived(host, state) {
  const signal = figure("The signal of each token that reaches the last one", "LSTM and GRU have gates; open ones, with a bias of 2, hold the signal longer, though still token by token and all in one state.");
  const farthest = h("h3", {});
  const picture = figure("Gradient of the last token's output, by distance",
    "How much that output changes when the embedding of a token so far back changes. The mean of three networks with random weights: training moves all these curves. Zeros are not drawn.");
  const numbers = h("div", { class: "slim" });
  const written = h("div", { class: "own" });
  const curves = folded("As curves, by distance", picture.element, written,
    h("p", { class: "note" }, "An RNN's state goes through the same matrix and tanh at each step, so the signal shrinks by about the same factor each time. A Transformer's token depends mostly on itself, through the residual connection, and on far tokens as much as on near ones."));
  host.append(signal.element, farthest, numbers, curves);
  return ({ reaches, own, length }) => {
    const { shown, model, window } = state.values;
    curves.open ||= Boolean(model) || state.differs(["shown"]); // what is drawn there alone
    const series = [...reaches].map(([network, samples]) => ({
      name: named(network, window), fact: network === "window" ? "transformer-window" : network, colour: COLOURS[network], dashed: network === "window",
      reach: { relative: mean(samples.map((each) => each.relative)), mean: mean(samples.map((each) => each.mean)) },
    }));
    if (own?.reach) series.push({ name: `${own.stack} of ${model}`, fact: own.reach.name, colour: 3, reach: own.reach });
    for (const each of series) each.points = each.reach[shown].map((value, distance) => [distance, value]);
    const far = length - 1;
    farthest.textContent = shown === "relative" ? `What arrives of the first token, ${far} back` : `The gradient of the first token, ${far} back`;
    numbers.replaceChildren(facts(series.filter((each) => each.reach.relative.length > far).map((each) => [each.dashed ? `Window ${window}` : each.name, (shown === "relative" ? (share) => arrives(share).replace("part ", "") : (size) => number(size, 3))(each.reach[shown][far]), `far-${each.fact}`])));
    const texts = own?.targets?.filter((target) => target) ?? [];
    written.replaceChildren(own?.error ? problem(own.error) : h("p", { class: "note", dir: "auto" },
      texts.length ? `${model} wrote: ${texts.join(" / ")}` : model && !own ? "Type some sentences, and the curve of your model is drawn too." : ""));
    const fading = series.filter((each) => each.reach.relative.length === length);
    heatMap(signal.host, {
      values: fading.map((each) => [...each.reach.relative].reverse()), kind: "sequence", cell: 40, tall: 26,
      shade: strength, ends: [`10⁻${"⁰¹²³⁴⁵⁶⁷⁸⁹"[DECADES]} or less`, "1"],
      rows: { label: "", names: fading.map((each) => (each.dashed ? `window ${window}` : each.name)) }, columns: { label: "token", names: Array.from({ length }, (_, i) => i + 1) },
      describe: "The gradient of the last token's output by each token, against the last token's own.",
      readout: (i, j, value) => `${fading[i].name}: token ${j + 1} arrives with ${number(value, 3)} of the last token's own`,
    });
    lineChart(picture.host, {
      series, x: { label: "distance" }, y: { label: shown === "relative" ? "against its own" : "norm", log: true }, height: 380,
      describe: "Size of the gradient by distance from the last token, on a logarithmic axis.",
    });
  };
}
