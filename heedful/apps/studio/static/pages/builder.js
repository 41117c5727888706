import { addressOf } from "../address.js";
import { call, live } from "../api.js";
import { button, check, choice, copyable, more, panel, slider } from "../controls.js";
import { engineering, figure, folded, foldedSection, h, isStill, number, section, table } from "../dom.js";
import { assemblyPicture, drawnParameters } from "../draw/assembly.js";
import { passOf, SENTENCE, WRITTEN } from "../draw/assembly_numbers.js";
import { facts } from "../draw/facts.js";
import { redrawn } from "../draw/colours.js";
import { labelBars } from "../draw/patches.js";
import { FAMILIES, FEATURES, isTransformer, leftOut, mixerChoices, mixerInText, mixerOf, positionsOf, present, steps, TOGGLES, told, upcoming } from "../parts.js";
import { lineChart } from "../draw/lines.js";
import { saves } from "../save.js";
import { placeNamed } from "../subject.js";
import { drawRuns, liveTraining, mark, percent } from "../small_runs.js";

const COMPLETE = 99;
const START = -1; // a page without settings opens with the first parts, in whose attention the words already meet
const OPENED = 3;
const WRITER = "en-de"; // whose next word the complete translator writes: a model of these parts

// The 2017 base model, which the sizes of everything since are compared with.
export const defaults = () => ({
  task: "translation", family: "blocks", mixer: "attention", encoder_mixer: "attention", features: "elu", attention_every: 0, state_size: 0, channel_mix: false,
  cell: "lstm", attends: "additive", kernel_width: 3, parts: START, flow: true, residual: true, network: true, scale: true, seed: 1,
  width: 512, encoder_layers: 6, decoder_layers: 6, num_heads: 8, num_kv_heads: 0, feedforward: 2048,
  num_experts: 0, experts_per_token: 2, activation: "relu", norm: "layer", norm_placement: "post", positions: "sinusoidal",
  window: 0, share_embeddings: "all", dropout: 0.1, bias: true, max_length: 256, vocabulary: 37000, tokens: 25, beam: 4, batch_tokens: 4096,
});

const onlyView = new Set(["parts", "flow", "seed"]); // settings that change no model
const SWITCHED = ["residual", "network", "scale", "norm_placement", "positions", "num_heads"]; // by the switches, too
const PLANNED = Object.keys(defaults()).filter((name) => !onlyView.has(name) && !SWITCHED.includes(name));
const TASKS = [["translation", "Translator: encoder and decoder"], ["causal_lm", "Language model: decoder"], ["masked_lm", "Masked language model: encoder"]];
const DIALS = ["width", "encoder_layers", "decoder_layers", "num_heads", "activation", "norm", "norm_placement", "positions", "residual", "share_embeddings", "dropout", "bias", "max_length"];
const HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 32, 64, 96];
const UNSET_AT_0 = ["num_kv_heads", "window"];
const COMMON = ["width", "encoder_layers", "decoder_layers", "positions", "share_embeddings", "dropout", "max_length"]; // of every family of layers

/** How a recurrent decoder reads the source, as in the papers; a language model reads none. */
const READING = {
  none: { attention: "none" },
  additive: { attention: "additive", feeding: "context", readout: "maxout" },
  general: { attention: "general", feeding: "output", readout: "tanh" },
};

/** Settings of layers that are no blocks of attention; null for blocks. */
function otherLayers({ family, task, cell, attends, kernel_width }) {
  if (family === "recurrent") return { recurrent: { cell, ...(task === "translation" ? READING[attends] : {}) } };
  return family === "convolution" ? { convolution: { kernel_width } } : null;
}

/** The mixers of blocks: those that are in their usual state are left out. */
function mixersIn(values) {
  const has = (...names) => names.some((name) => [values.task === "masked_lm" ? "" : values.mixer, values.task === "causal_lm" ? "" : values.encoder_mixer].includes(name));
  const chosen = {};
  if (values.task !== "masked_lm" && values.mixer !== "attention") chosen.mixer = values.mixer;
  if (values.task !== "causal_lm" && values.encoder_mixer !== "attention") chosen.encoder_mixer = values.encoder_mixer;
  if (has("linear_attention") && values.features !== "elu") chosen.features = values.features;
  if (Object.keys(chosen).length && values.attention_every) chosen.attention_every = values.attention_every;
  if (has("s4d", "mamba") && values.state_size) chosen.state_size = values.state_size;
  if (values.task !== "masked_lm" && values.channel_mix && values.network) chosen.network = "channel_mix";
  return chosen;
}

function asked(values) {
  const { task, vocabulary, tokens, beam, batch_tokens } = values;
  const others = otherLayers(values);
  if (others) return { task, model: { ...Object.fromEntries(COMMON.map((name) => [name, values[name]])), positions: positionsOf(values), ...others }, vocabulary, tokens, beam, batch_tokens };
  const model = { ...Object.fromEntries(DIALS.map((name) => [name, values[name]])), ...mixersIn(values) };
  for (const name of UNSET_AT_0) if (values[name]) model[name] = values[name];
  model.feedforward = values.network ? values.feedforward : 0;
  if (!values.scale) model.attention_scale = 1;
  if (values.num_experts && values.network) Object.assign(model, { num_experts: values.num_experts, experts_per_token: values.experts_per_token });
  return { task, model, vocabulary, tokens, beam, batch_tokens };
}

/** The same choice for the small translator, which has at most eight heads and few layers. */
function smallParts(values) {
  const { residual, norm, norm_placement, positions, network, activation, scale, num_heads, encoder_layers, decoder_layers } = values;
  const layers = { encoder_layers: Math.min(2, encoder_layers), decoder_layers: Math.min(2, decoder_layers) };
  const translator = { ...values, task: "translation" };
  const others = otherLayers(translator);
  if (others) return { positions: positionsOf(values), ...layers, ...others };
  const heads = [8, 4, 2, 1].find((each) => each <= num_heads);
  const { state_size: _, attention_every: every, ...chosen } = mixersIn(translator);
  return { residual, norm, norm_placement, positions, feedforward: network, activation, scale, num_heads: heads, ...layers, ...chosen, ...(every ? { attention_every: 2 } : {}) };
}

const UNSENT = { mixer: "attention", encoder_mixer: "attention", network: "feedforward", features: undefined, attention_every: undefined, recurrent: undefined, convolution: undefined };

/** Whether a training, whose parts are told in full, is that of these parts. */
function isChoice(parts, trained) {
  const same = (one, other) => one === other || (one instanceof Object && other instanceof Object && Object.keys(one).every((name) => same(one[name], other[name])));
  return same({ ...UNSENT, ...parts }, trained);
}

/** The settings of this page for a preset's model. */
function fromModel({ recurrent, convolution, ...model }) {
  if (recurrent) return { ...model, family: "recurrent", cell: recurrent.cell, attends: recurrent.attention };
  return convolution ? { ...model, family: "convolution", kernel_width: convolution.kernel_width } : model;
}

export async function mount({ root, below, side, state, studio }) {
  const { presets, mixers } = await call("builder", "presets");
  const still = isStill();
  // Who changes a size or switches a part off wants to see it in the whole model.
  const complete = () => {
    if (state.values.parts === START && state.differs(Object.keys(state.values).filter((name) => !onlyView.has(name)))) state.set({ parts: COMPLETE });
  };
  complete();
  const count = () => (state.values.parts === START ? OPENED : Math.max(0, Math.min(steps(state.values).length, state.values.parts)));
  const go = (to) => state.set({ parts: to >= steps(state.values).length ? COMPLETE : Math.max(0, to) }, { step: true });
  // A click on a part builds up to it; on the newest one takes it back.
  const reach = (key) => {
    const step = steps(state.values).findIndex(({ adds }) => adds.includes(key));
    if (step >= 0) go(step + 1 === count() ? step : step + 1);
  };
  const add = button("Next part", () => go(count() + 1));
  const back = button("Take back", () => go(count() === steps(state.values).length ? 0 : count() - 1), { quiet: true });
  const whole = button("Show it complete", () => go(COMPLETE), { quiet: true });
  const moving = button("Stop the flow", () => state.set({ flow: !state.values.flow }), { quiet: true });
  const legend = h("span", { class: "note assembly-legend" });
  const words = h("div", { role: "status", class: "told-part" });
  const nextWords = h("div", { class: "told-part" });
  const stage = h("div", { class: "assembling" }, words, add, nextWords);
  const picture = h("div", { class: "drawing assembly-drawing" });
  const total = h("div", {});
  const off = h("div", { class: "switched-off", role: "status" }); // beside or below the drawing, which keeps its place
  const breaks = h("div", {});
  const runs = figure("The small translator with and without it");
  const beside = figure("Compared with published models", "The nearest and the best known. From line to line to the right: ten times as many parameters.");
  const mixing = h("div", {});
  const lengths = { operations: figure("Operations by length"), state: figure("What is remembered, by length") };
  const components = h("div", {});
  const titles = { mixing: h("summary", {}), tables: h("summary", {}) };
  const tables = h("div", { class: "columns" });
  const file = copyable("Settings of this model");
  const command = h("code", { id: "command" });
  let found = null;
  let recorded = null;
  let training = null;
  let numbers = null; // what a model of these parts computes for the drawn sentence
  const trainer = liveTraining({
    components: () => smallParts(state.values), seed: () => state.values.seed, names: smallName, isOwn: (trained) => isChoice(smallParts(state.values), trained),
    changed: (now) => {
      training = now;
      if (recorded) drawBreaks();
    },
  });
  const body = h("div", {}, h("div", { class: "assembly-stage" }, stage, picture), h("div", { class: "row" }, back, whole, moving, saves(picture, () => "the model")), legend, total);
  root.append(body);
  below.append(section("What breaks without a part", breaks, h("div", { class: "columns two" }, runs.element, h("div", {}, h("h3", {}, "Train your choice here"),
      h("p", { class: "note" }, "A model of two layers and 64 channels with the parts that are chosen above learns dates, English to German, in about half a minute. Its curve grows beside the recorded ones."), trainer))));
  const { fields, element, start } = controls(state, presets, mixerChoices(mixers));
  const switches = toggles(state);
  const sizes = folded("Plan a model: sizes and other parts", ...element);
  sizes.classList.add("plan");
  sizes.addEventListener("toggle", () => {
    drawSteps();
    if (found) drawPicture();
  });
  side.append(switches, sizes);
  const wide = matchMedia("(min-width: 72rem)");
  const put = () => (wide.matches ? switches.after(off) : picture.after(off));
  wide.addEventListener("change", put);
  put();
  const costs = foldedSection("Size and cost", beside.element,
    h("details", {}, titles.mixing, mixing, h("div", { class: "columns" }, Object.values(lengths).map((each) => each.element))),
    h("details", {}, titles.tables, components, tables),
    folded("Settings file: train this model on your own data", h("p", {}, "Save it as ", h("code", {}, "model.toml"), " and train with ", command), file.element));
  below.append(costs);
  // Who changes a size plans a model; who builds or switches a part off has no need of sizes.
  const unfold = () => {
    const plans = state.differs(PLANNED);
    sizes.open ||= plans;
    costs.open ||= plans;
  };
  state.watch(unfold);
  unfold();

  /** Boxes have sizes for who plans a model, and where their parts are not those of 2017, which have lines of their own. */
  const isSized = () => sizes.open || !isTransformer(state.values);

  function drawPicture() {
    const { values } = state;
    const known = isTransformer(values) || values.task !== "translation";
    const view = { values, there: present(values, count()), sized: isSized(), next: upcoming(values, count()), newest: steps(values)[count() - 1]?.adds ?? [], reach, numbers: numbersFor(values), counts: countsOf(found, values), layers: layersOf(values), states: statesOf(found), broken: leftOut(values).length > 0 || !known, moving: values.flow };
    assemblyPicture(picture, view);
    const drawn = drawnParameters(view);
    total.replaceChildren(facts(view.next ? [[`parameters so far${drawn === found.total ? "; the rest has none of its own" : ""}`, `${engineering(drawn)} of ${engineering(found.total)}`, "so-far"]] : [
      ["parameters", number(found.total), "total"],
      ...(leftOut(values).length ? [] : [["nearest published", nearest(presets, found.total).name, "nearest"]]), // none is published without a part
      ...Object.entries(found.operations).slice(0, 1).map(([name, value]) => [`operations for ${name}`, engineering(value), "learning"]),
      ...Object.entries(found.memory).slice(0, 1).map(([name, parts]) => [`memory, ${name}`, engineering(sum(Object.values(parts)), "B"), `memory-${name}`]),
    ]));
  }

  /** Ask a model for what flows through the parts. */
  const askNumbers = live(stage, (signal) => passOf(WRITER, signal), (answer) => {
    numbers = answer;
    drawSteps();
    if (found) drawPicture();
  });
  /** The numbers, where they are those of the parts that are drawn. */
  const numbersFor = ({ task }) => (task === "translation" && isTransformer(state.values) && !leftOut(state.values).length ? numbers : null);

  function drawSteps() {
    const all = steps(state.values);
    const at = count();
    const next = all[at];
    add.hidden = !next;
    if (next) add.textContent = `Next part: ${next.name}`;
    back.disabled = at === 0;
    back.textContent = next ? "Take back" : "Build it from the start";
    whole.hidden = !next;
    moving.hidden = still || at === 0;
    legend.replaceChildren(...[numbersFor(state.values) && at ? `Strips and lines: numbers of ${WRITER}, a small translator of these parts (its first encoder block and second decoder block).` : "", moving.hidden ? "" : "Mixed colours: words that met.",
      at && isSized() && isTransformer(state.values) ? h("span", { class: "sized" }, "Sizes: words × channels; of attention heads × queries × keys.") : ""].flatMap((each) => [each, " "]));
    moving.textContent = state.values.flow ? "Stop the flow" : "Let it flow";
    const { title, does, missing } = told(state.values, at);
    const lost = leftOut(state.values);
    words.replaceChildren(h("h2", {}, next ? title : lost.length ? `Switched off: ${lost.map((name) => TOGGLES[name].label.toLowerCase()).join(", ")}` : missing), ...(next ? [h("p", {}, does), h("p", {}, h("strong", {}, missing))] : []));
    nextWords.replaceChildren(...(!next && numbersFor(state.values) ? [h("p", { class: "translated" }, `${SENTENCE.join(" ")} → ${WRITTEN.slice(1).join(" ")} `, h("strong", {}, numbers.words[0].label)), labelBars(numbers.words)] : next || !lost.length || !recorded ? [] : written(lost)));
    off.replaceChildren(...lost.map((name) => h("p", { class: "lost" }, TOGGLES[name].lost)));
  }

  /** What a recorded run without the first of these parts writes for a line that it gets wrong, where there is one. */
  function written([name]) {
    const { variant } = TOGGLES[name];
    const line = recorded.samples.find((each) => each.texts[variant] !== each.reference) ?? recorded.samples[0];
    const { title } = recorded.variants.find((each) => each.name === variant);
    return [h("p", {}, `A small translator trained ${title.startsWith("with") ? "" : "in "}${title}: `, h("a", { href: addressOf("without") }, "more of it")),
      h("p", { class: "written-without" }, `${line.source} → `, mark(line.texts[variant], line.reference)), ...(line.texts[variant] === line.reference ? [] : [h("p", { class: "note" }, `right: ${line.reference}`)])];
  }

  function drawBreaks() {
    const variant = (name) => recorded.variants.find((each) => each.name === name);
    const lost = leftOut(state.values);
    const without = (name) => variant(TOGGLES[name].variant);
    breaks.replaceChildren(lost.length ? h("ul", { class: "broken" }, lost.map(without).map((each) => h("li", {}, h("strong", {}, each.title), ": ",
      `${percent(each.scores.exact)} of the lines are exactly right in recorded runs, and ${percent(variant(each.reference).scores.exact)} ${each.reference === "everything" ? "with everything" : `of “${variant(each.reference).title}”`}.`)))
      : h("p", {}, state.values.family === "blocks" ? "Nothing is left out. Untick a part of “Switch off, and see what breaks”, and its recorded runs appear here. All of them stand on " : "Parts are switched off in blocks of attention. The recorded runs without them stand on ", h("a", { href: addressOf("without") }, "Without each part"), "."));
    const drawn = lost.length ? lost.map(without) : ["residual", "positions"].map(variant);
    drawRuns(runs.host, [...new Set(["everything", ...drawn.map((each) => each.reference)])].map(variant).concat(drawn), training, "valid_bleu", 260);
    runs.words.textContent = `BLEU on ${recorded.validated} lines that are translated during training, means over the runs of each${lost.length ? `; the shares above are of ${number(recorded.data.test)} others` : ""}${training ? "; dashed: the one trained here" : ""}.`;
  }

  const ask = live(body, async (signal) => [await call("builder", "build", asked(state.values), signal), recorded ?? await call("without", "recorded", {}, signal)], ([built, runsOf]) => {
    found = built;
    recorded = runsOf;
    drawSteps();
    drawPicture();
    trainer.retell();
    drawMixers(mixing, lengths, found, state.values);
    compared(beside.host, presets, found.total, nearest(presets, found.total));
    titles.mixing.parentElement.open ||= found.mixers.some((each) => each.name !== "Attention"); // with another mixer, its cost is the lesson
    titles.mixing.textContent = `How tokens exchange information: ${engineering(sum(found.mixers.map((each) => each.operations_here * each.layers)))} operations per token`;
    titles.tables.textContent = `All numbers: parameters of ${found.rows.length} components, operations and memory`;
    components.replaceChildren(table("Parameters by component", ["part", "component", "each", "times", "in all"], found.rows.map((row) =>
        [row.part, row.component + (row.note ? ` (${row.note})` : ""), number(row.each), row.count, number(row.total)])));
    tables.replaceChildren(...[
        Object.keys(found.operations).length ? table("Floating-point operations", ["for", "operations"], Object.entries(found.operations).map(([name, value]) => [name, engineering(value)])) : null,
        Object.entries(found.memory).map(([name, parts]) => table(`Memory for ${name}, float32`, ["for", "bytes"], [...Object.entries(parts).map(([part, size]) => [part, engineering(size, "B")]), ["in all", engineering(sum(Object.values(parts)), "B")]]))].flat().filter((each) => each !== null));
    file.set(found.toml);
    const pairs = state.values.task === "translation";
    command.textContent = `heedful train run --config model.toml --train ${pairs ? "train.en train.de" : "train.txt"} --valid ${pairs ? "valid.en valid.de" : "valid.txt"}`;
  });

  let known = state.values.num_heads;
  const chosen = (values) => JSON.stringify(Object.entries(values).filter(([name]) => !onlyView.has(name)).sort());
  let begun = { name: "transformer-base", values: chosen(defaults()) };
  const arrange = (values) => {
    const { task, family, num_experts } = values;
    start.value = chosen(values) === begun.values ? begun.name : "";
    const blocks = family === "blocks";
    const writes = task !== "masked_lm";
    const used = [writes ? mixerOf(values, true) : "", task === "causal_lm" ? "" : mixerOf(values, false)];
    fields.encoder.hidden = task === "causal_lm";
    fields.decoder.hidden = !writes;
    fields.encoder_mixer.hidden = !blocks || task === "causal_lm";
    fields.mixer.hidden = fields.channel_mix.hidden = !blocks || !writes;
    fields.features.hidden = !used.includes("linear_attention");
    fields.attention_every.hidden = !blocks || used.every((each) => !each || each === "attention");
    fields.state_size.hidden = !used.some((each) => ["s4d", "mamba"].includes(each));
    fields.cell.hidden = family !== "recurrent";
    fields.attends.hidden = family !== "recurrent" || task !== "translation";
    fields.positions.hidden = family === "recurrent";
    fields.kernel_width.hidden = family !== "convolution";
    for (const each of [switches, ...fields.ofBlocks]) each.hidden = !blocks;
    fields.experts.hidden = !blocks || !num_experts;
  };
  state.watch((_, changed) => {
    complete();
    const { values } = state; // with what was completed
    const heads = values.family === "blocks" ? fitting(values, known) : values.num_heads;
    known = values.num_heads;
    if (heads !== values.num_heads && !changed.includes("task")) {
      known = heads;
      state.set({ num_heads: heads });
      return;
    }
    arrange(values);
    drawSteps();
    if (!changed.every((name) => onlyView.has(name))) ask();
    else if (found) drawPicture();
  });
  start.addEventListener("change", async () => {
    if (!start.value) return;
    const preset = await call("builder", "preset", { name: start.value });
    const { flow, seed } = state.values;
    const parts = state.values.parts === START ? COMPLETE : state.values.parts;
    const fresh = { ...defaults(), parts, flow, seed, ...fromModel(preset.model), vocabulary: preset.vocabulary };
    const taken = Object.fromEntries(Object.entries(fresh).filter(([name]) => name in state.values));
    begun = { name: preset.name, values: chosen({ ...state.values, ...taken }) };
    state.set(taken, { step: true });
  });
  arrange(state.values);
  drawSteps();
  ask();
  if (placeNamed(studio, WRITER)) askNumbers();
}

/** Switches of what can be left out, above the other settings. */
function toggles(state) {
  const boxes = Object.entries(TOGGLES).map(([name, { label, has, set }]) => {
    const box = h("input", { type: "checkbox", "data-toggle": name });
    box.addEventListener("change", () => state.set(set(box.checked), { step: true }));
    const follow = (values) => {
      box.checked = has(values);
    };
    state.watch(follow);
    follow(state.values);
    return h("label", { class: "check" }, box, h("span", {}, label));
  });
  return h("fieldset", { class: "panel toggles" }, h("legend", {}, "Switch off, and see what breaks"), boxes);
}

function controls(state, presets, mixers) {
  const start = h("select", { id: "preset" }, h("option", { value: "" }, "your own"),
    presets.filter((each) => each.dials).map((each) => h("option", { value: each.name }, each.name)));
  const fields = {
    encoder: slider(state, "encoder_layers", { label: "Layers of the encoder", min: 1, max: 96 }),
    decoder: slider(state, "decoder_layers", { label: "Layers of the decoder", min: 1, max: 96 }),
    experts: slider(state, "experts_per_token", { label: "Experts that work on a token", min: 1, max: 16 }),
    encoder_mixer: choice(state, "encoder_mixer", { label: "Words of the encoder meet by", options: mixers }),
    mixer: choice(state, "mixer", { label: "Words of the decoder meet by", options: mixers }),
    features: choice(state, "features", { label: "Feature map of linear attention", options: FEATURES }),
    attention_every: slider(state, "attention_every", { label: "Attention in every … block (0: none)", stops: [0, 2, 3, 4, 6, 8, 12] }),
    state_size: slider(state, "state_size", { label: "Numbers that a channel remembers (0: as usual)", stops: [0, 2, 4, 8, 16, 32, 64, 128] }),
    channel_mix: check(state, "channel_mix", { label: "RWKV's channel mix as the decoder's network" }),
    cell: choice(state, "cell", { label: "Cell", options: ["lstm", "gru", "rnn"] }),
    attends: choice(state, "attends", { label: "The decoder reads the text by", options: [["none", "one vector (Sutskever 2014)"], ["additive", "additive attention (Bahdanau 2015)"], ["general", "multiplicative attention (Luong 2015)"]] }),
    kernel_width: slider(state, "kernel_width", { label: "Words that an output is made of", min: 1, max: 9, step: 2 }),
    positions: choice(state, "positions", { label: "Positions", options: ["sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative_keys", "transformer_xl"] }),
    ofBlocks: [
      slider(state, "num_heads", { label: "Heads", stops: HEADS }),
      slider(state, "feedforward", { label: "Width of the feed-forward", stops: [64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 16384, 49152] }),
      choice(state, "activation", { label: "Activation", options: ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"] }),
      slider(state, "num_kv_heads", { label: "Heads of keys and values (0: as many as queries)", min: 0, max: 64 }),
      slider(state, "num_experts", { label: "Experts in a layer (0: none)", min: 0, max: 64 }),
      slider(state, "window", { label: "Window of self-attention (0: none)", stops: [0, 16, 32, 64, 128, 256, 512, 1024] }),
      choice(state, "norm", { label: "Norm", options: [["layer", "LayerNorm"], ["rms", "RMSNorm"]] }),
      choice(state, "norm_placement", { label: "Norm placed", options: [["post", "after the sum (2017)"], ["pre", "before each sub-layer"], ["none", "nowhere"]] }),
      check(state, "bias", { label: "Biases in linear layers" }),
    ],
  };
  const [heads, feedforward, activation, kvHeads, experts, window, norm, placement, bias] = fields.ofBlocks;
  const dials = more("More dials",
    activation,
    fields.positions,
    slider(state, "vocabulary", { label: "Pieces of the vocabulary", stops: [600, 1000, 4000, 8000, 10000, 16000, 32000, 37000, 50257, 64000, 100000, 250000] }),
    kvHeads, experts, fields.experts, window, norm, placement,
    choice(state, "share_embeddings", { label: "Shared embeddings", options: [["all", "source, target, output"], ["target", "target and output"], ["none", "none"]] }),
    slider(state, "dropout", { label: "Dropout", min: 0, max: 0.9, step: 0.05 }),
    slider(state, "max_length", { label: "Longest text, tokens", stops: [32, 64, 128, 256, 512, 1024, 2048, 4096] }),
    bias,
    slider(state, "tokens", { label: "A sentence has, tokens", stops: [5, 10, 25, 50, 100, 250, 500, 1000] }),
    slider(state, "beam", { label: "Beam", min: 1, max: 16 }),
    slider(state, "batch_tokens", { label: "Tokens of a training batch", stops: [512, 1024, 2048, 4096, 8192, 16384, 25000, 65536] }),
    slider(state, "seed", { label: "Seed of the training here", min: 1, max: 20 }));
  const others = more("Other layers than attention",
    choice(state, "family", { label: "Layers", options: FAMILIES }),
    fields.encoder_mixer, fields.mixer, fields.features, fields.attention_every, fields.state_size, fields.channel_mix, fields.cell, fields.attends, fields.kernel_width);
  others.open = state.values.family !== "blocks" || Object.keys(mixersIn(state.values)).length > 0;
  const element = [panel(choice(state, "task", { label: "Model", options: TASKS }),
    h("div", { class: "field" }, h("label", { for: "preset" }, "Begin with"), start),
    slider(state, "width", { label: "Width", stops: [32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1600, 2048, 3072, 4096, 8192, 12288] }),
    fields.encoder, fields.decoder, heads, feedforward, others, dials)];
  return { fields, element, start };
}

/** The number of heads that divides the width: the next one in the direction of the change. */
function fitting({ width, num_heads: heads }, before) {
  if (width % heads === 0) return heads;
  const divisors = HEADS.filter((each) => width % each === 0);
  const next = heads > before ? divisors.find((each) => each > heads) : divisors.findLast((each) => each < heads);
  return next ?? divisors.at(-1);
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

const layersOf = ({ task, encoder_layers, decoder_layers }) => ({ encoder: task === "causal_lm" ? decoder_layers : encoder_layers, decoder: decoder_layers });

/** The parameters of each box; models of one stack are counted over all layers together. */
function countsOf({ rows, mixers: own }, values) {
  const layers = layersOf(values).encoder;
  const of = (...names) => rows.find((row) => names.some((name) => row.component === name || row.component === `blocks.${name}`));
  const one = (row) => (row ? (values.task === "translation" ? row.each : row.each / layers) : 0);
  const output = rows.find((row) => row.part === "output" || row.component === "output projection" || row.part === "output_projection");
  const mixer = (stack) => own.find((each) => each.stack === stack)?.parameters ?? 0;
  const only = values.task === "causal_lm" ? "decoder" : "encoder";
  // A recurrent decoder is one mixer of all layers, with what reads the text above them.
  const ofDecoder = own.find((each) => each.stack === "decoder")?.inner_layers ?? [];
  const [inside, shared] = [sum(ofDecoder), values.share_embeddings];
  return {
    embedding: rows[0].each, self: mixer(only), d_self: inside ? inside / ofDecoder.length : mixer("decoder"), d_uneven: new Set(ofDecoder).size > 1,
    cross: inside ? mixer("decoder") - inside : one(of("cross-attention")), shared: { d_embedding: shared === "all", output: shared !== "none" },
    feedforward: one(of("feed-forward", "feedforward", "experts", "channel-mix", "channel_mix")),
    norm: one(of("norms", "self_attention_norm", "mixer_norm")), output: (output?.count ? output.each : 0) + sum(rows.filter((row) => row.part === "heads").map((row) => row.total)),
  };
}

/** Bytes of the state of a decoder's layer. */
function statesOf({ mixers: own }) {
  const decoder = own.find((each) => each.stack === "decoder");
  return decoder ? { decoder: decoder.state_here } : {};
}

/** What the mixers compute, and what they cost by length beside attention. */
function drawMixers(host, figures, { mixers: own, compared: others }, { tokens }) {
  const stacks = new Set(own.map((each) => each.stack));
  const name = (each) => (stacks.size > 1 ? `${each.name}, ${each.stack}` : each.name);
  host.replaceChildren(
    ...[...new Map(own.filter((each) => each.name !== "Attention").map((each) => [each.name, each.about]))].map(([title, about]) => h("p", {}, h("strong", {}, `${title}: `), about)),
    table(`A layer, for ${number(tokens)} tokens`, ["mixer", "layers", "parameters", "operations per token", "state of a text"],
      [...own, ...others.map((each) => ({ ...each, name: "Attention instead", layers: "–" }))].map((each) => [name(each), each.layers, number(each.parameters), engineering(each.operations_here), each.state_here === null ? "none" : engineering(each.state_here, "B")])));
  const drawn = [...own.map((each) => ({ ...each, label: name(each) })), ...others.map((each) => ({ ...each, label: `attention instead, ${each.stack}`, dashed: true }))];
  const series = (what) => drawn.map((each, colour) => ({ name: each.label, dashed: each.dashed, colour, points: each[what] })).filter((each) => each.points.length);
  figures.operations.words.textContent = "Of one layer's mixer for each token: in an encoder of a whole text, in a decoder for one more token. A curve ends where the mixer reads no longer text.";
  lineChart(figures.operations.host, { series: series("operations"), x: { label: "tokens", log: true, base: 2 }, y: { label: "operations", log: true }, describe: "Operations of a mixer for each token, by the length of the text." });
  figures.state.element.hidden = series("state").length === 0;
  if (figures.state.element.hidden) return;
  figures.state.words.textContent = "Bytes that one layer of the decoder keeps of a text, in float32. What is level costs the same however long the text.";
  lineChart(figures.state.host, { series: series("state"), x: { label: "tokens", log: true, base: 2 }, y: { label: "bytes", log: true }, describe: "Bytes that a layer remembers, by the length of the text." });
}

/** Words for the parts of a training: with everything, other mixers, or without some of them. */
function smallName(parts) {
  if (parts.recurrent) return `with ${parts.recurrent.cell.toUpperCase()} layers`;
  if (parts.convolution) return "with gated convolutions";
  const others = [["encoder", parts.encoder_mixer], ["decoder", parts.mixer]].filter(([, mixer]) => mixer && mixer !== "attention").map(([stack, mixer]) => `${mixerInText(mixer)} in the ${stack}`);
  const lost = Object.entries({ residual: "residual connections", feedforward: "the feed-forward network", scale: "1/√dₖ" }).filter(([name]) => !parts[name]).map(([, name]) => name);
  if (parts.norm_placement === "none") lost.push("norms");
  if (parts.positions === "none") lost.push("positions");
  if (parts.num_heads === 1) lost.push("several heads");
  const without = lost.length ? `without ${lost.join(", ")}` : "";
  if (others.length) return `with ${others.join(" and ")}${parts.attention_every ? ", attention in every second layer" : ""}${without ? `, ${without}` : ""}`;
  return without || "with all parts";
}

/** A number of parameters, in millions or in billions. */
const size = (count) => (count < 1e9 ? `${number(count / 1e6, 3)} M` : `${number(count / 1e9, 3)} B`);

const apart = (a, b) => Math.abs(Math.log(a / b));
const KNOWN = ["transformer-base", "bert-base", "gpt2", "gpt3", "llama-7b"];
const SHOWN = 4; // presets on both sides together
const nearest = (presets, total) => presets.reduce((best, each) => (apart(each.parameters, total) < apart(best.parameters, total) ? each : best));

/** Dots by the number of parameters, on a logarithmic axis with its powers of ten. */
function compared(host, presets, total, near) {
  redrawn(host, () => {
    const closest = [...presets].sort((a, b) => apart(a.parameters, total) - apart(b.parameters, total)).slice(0, SHOWN);
    const rows = [...presets.filter((each) => closest.includes(each) || KNOWN.includes(each.name)), { name: "yours", parameters: total, own: true }].sort((a, b) => a.parameters - b.parameters);
    const [low, high] = [Math.floor(Math.log10(rows[0].parameters)), Math.ceil(Math.log10(rows.at(-1).parameters))];
    const at = (parameters, attributes, ...words) => h("span", { ...attributes, style: { left: `${(100 * (Math.log10(parameters) - low)) / (high - low)}%` } }, ...words);
    const powers = Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i));
    const track = (...marks) => h("span", { class: "track" }, marks.flat());
    host.replaceChildren(
      h("div", { class: "beside powers", "aria-hidden": "true" }, h("span", {}), track(powers.map((power) => at(power, {}, size(power)))), h("span", {})),
      h("ul", { class: "beside sizes" }, rows.map((row) => h("li", { class: row.own ? "own" : row === near ? "near" : null }, h("span", { class: "who" }, row === near ? `${row.name} (nearest)` : row.name),
        track(powers.map((power) => at(power, { class: "power" })), at(row.parameters, { class: "dot" })), h("span", { class: "count" }, size(row.parameters))))));
  });
}
