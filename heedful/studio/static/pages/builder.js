import { call, live } from "../api.js";
import { button, check, choice, copyable, panel, slider } from "../controls.js";
import { engineering, figure, h, number, section, table } from "../dom.js";
import { assemblyPicture } from "../draw/assembly.js";
import { facts } from "../draw/facts.js";
import { redrawn } from "../draw/colours.js";
import { leftOut, present, steps, TOGGLES, told, upcoming } from "../parts.js";
import { drawRuns, liveTraining, percent } from "../small_runs.js";

const COMPLETE = 99;

// The 2017 base model, which the sizes of everything since are compared with.
export const defaults = () => ({
  task: "translation", parts: COMPLETE, flow: true, residual: true, network: true, scale: true, seed: 1,
  width: 512, encoder_layers: 6, decoder_layers: 6, num_heads: 8, num_kv_heads: 0, feedforward: 2048,
  num_experts: 0, experts_per_token: 2, activation: "relu", norm: "layer", norm_placement: "post", positions: "sinusoidal",
  window: 0, share_embeddings: "all", dropout: 0.1, bias: true, max_length: 256, vocabulary: 37000, tokens: 25, beam: 4, batch_tokens: 4096,
});

const TASKS = [["translation", "Translator: encoder and decoder"], ["causal_lm", "Language model: decoder"], ["masked_lm", "Masked language model: encoder"]];
const DIALS = ["width", "encoder_layers", "decoder_layers", "num_heads", "activation", "norm", "norm_placement", "positions", "residual", "share_embeddings", "dropout", "bias", "max_length"];
const HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 32, 64, 96];
const UNSET_AT_0 = ["num_kv_heads", "window"];

function asked(values) {
  const model = Object.fromEntries(DIALS.map((name) => [name, values[name]]));
  for (const name of UNSET_AT_0) if (values[name]) model[name] = values[name];
  model.feedforward = values.network ? values.feedforward : 0;
  if (!values.scale) model.attention_scale = 1;
  if (values.num_experts && values.network) Object.assign(model, { num_experts: values.num_experts, experts_per_token: values.experts_per_token });
  const { task, vocabulary, tokens, beam, batch_tokens } = values;
  return { task, model, vocabulary, tokens, beam, batch_tokens };
}

/** The same choice for the small translator, which has at most eight heads and few layers. */
function smallParts({ residual, norm, norm_placement, positions, network, activation, scale, num_heads, encoder_layers, decoder_layers }) {
  const heads = [8, 4, 2, 1].find((each) => each <= num_heads);
  return { residual, norm, norm_placement, positions, feedforward: network, activation, scale, num_heads: heads, encoder_layers: Math.min(2, encoder_layers), decoder_layers: Math.min(2, decoder_layers) };
}

export async function mount({ root, side, state }) {
  const { presets } = await call("builder", "presets");
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const count = () => Math.max(0, Math.min(steps(state.values.task).length, state.values.parts));
  const go = (to) => state.set({ parts: to >= steps(state.values.task).length ? COMPLETE : Math.max(0, to) }, { step: true });
  const add = button("Add", () => go(count() + 1));
  const back = button("Take back", () => go(state.values.parts >= COMPLETE ? 0 : count() - 1), { quiet: true });
  const whole = button("Show it complete", () => go(COMPLETE), { quiet: true });
  const moving = button("Stop the flow", () => state.set({ flow: !state.values.flow }), { quiet: true });
  const map = h("ol", {});
  const route = h("nav", { class: "map", "aria-label": "Parts in their order" }, map);
  const words = h("div", { class: "told assembling", role: "status" });
  const picture = h("div", { class: "drawing assembly-drawing" });
  const total = h("div", {});
  const breaks = h("div", {});
  const runs = figure("The small translator with and without it");
  const beside = figure("Compared with published models");
  const components = h("div", {});
  const tables = h("div", { class: "columns" });
  const file = copyable("Settings of this model");
  const command = h("code", { id: "command" });
  let found = null;
  let recorded = null;
  let training = null;
  const trainer = liveTraining({
    components: () => smallParts(state.values), seed: () => state.values.seed, names: smallName,
    changed: (now) => {
      training = now;
      if (recorded) drawBreaks();
    },
  });
  const body = h("div", {}, h("div", { class: "row walk" }, add, back, whole, moving), route, words, picture, total,
    section("What breaks without a part", breaks, h("div", { class: "columns" }, runs.element, h("div", {}, h("h3", {}, "Train your choice here"),
      h("p", { class: "note" }, "A model of two layers and 64 channels with the parts chosen beside the drawing learns dates and prices, English to German, for a minute at most. Its curve grows beside the recorded ones."), trainer))),
    section("Size and cost", beside.element, components, tables),
    section("For your settings file", h("p", {}, "Save it as ", h("code", {}, "model.toml"), " and train with ", command), file.element));
  root.append(body);
  const { fields, element, start } = controls(state, presets);
  side.append(toggles(state), ...element);

  function drawPicture() {
    const { values } = state;
    assemblyPicture(picture, { values, there: present(values.task, count()), next: upcoming(values.task, count()), counts: countsOf(found, values), layers: layersOf(values), moving: values.flow });
  }

  function drawSteps() {
    const { task } = state.values;
    const all = steps(task);
    const at = count();
    const next = all[at];
    add.hidden = !next;
    if (next) add.textContent = `Add: ${next.name}`;
    back.disabled = at === 0;
    back.textContent = next ? "Take back" : "Build it from the start";
    whole.hidden = !next;
    moving.hidden = still;
    moving.textContent = state.values.flow ? "Stop the flow" : "Let it flow";
    const focused = document.activeElement?.dataset.step;
    map.replaceChildren(...all.map((each, i) => h("li", { class: i < at ? "passed" : null },
      h("button", { type: "button", "data-step": i, "aria-pressed": String(i < at), "aria-current": i === at - 1 ? "step" : null, onclick: () => go(i + 1 === at ? i : i + 1) }, each.name))));
    if (focused !== undefined) map.querySelector(`[data-step="${focused}"]`)?.focus();
    const { title, does, missing } = told(task, at);
    const lost = leftOut(state.values);
    words.replaceChildren(h("h2", {}, next ? title : "The whole model"), h("p", {}, next ? `${does} ` : "", h("strong", {}, next ? missing : lost.length ? "" : missing),
      ...lost.map((name) => h("span", { class: "lost" }, ` ${TOGGLES[name].lost}`))));
  }

  function drawBreaks() {
    const variant = (name) => recorded.variants.find((each) => each.name === name);
    const lost = leftOut(state.values);
    const whole = variant("everything");
    breaks.replaceChildren(lost.length ? h("ul", { class: "broken" }, lost.map((name) => h("li", {}, h("strong", {}, variant(TOGGLES[name].variant).title), ": ",
      `${percent(variant(TOGGLES[name].variant).scores.exact)} of the lines are exactly right in recorded runs, and ${percent(whole.scores.exact)} with everything.`)))
      : h("p", {}, "Nothing is left out. Switch off a part beside the drawing, and its recorded runs appear here. All of them stand on ", h("a", { href: "/without" }, "Without each part"), "."));
    const names = lost.length ? lost.map((name) => TOGGLES[name].variant) : ["residual", "positions"];
    drawRuns(runs.host, [whole, ...names.map(variant)], training, "valid_bleu", 260);
    runs.words.textContent = `BLEU on lines it was not trained on, means over the runs of each${training ? "; dashed: the one trained here" : ""}.`;
  }

  const ask = live(body, async (signal) => [await call("builder", "build", asked(state.values), signal), recorded ?? await call("without", "recorded", {}, signal)], ([built, runsOf]) => {
    found = built;
    recorded = runsOf;
    const near = nearest(presets, found.total);
    total.replaceChildren(facts([
      ["parameters of the whole model", number(found.total), "total"], ["in millions", `${number(found.total / 1e6, 3)} M`, "short"], ["in billions", `${number(found.total / 1e9, 3)} B`, "billions"],
      [`nearest published: ${near.name}`, engineering(near.parameters), "nearest"],
      ...Object.entries(found.operations).slice(0, 1).map(([name, value]) => [`operations for ${name}`, engineering(value), "learning"]),
      ...Object.entries(found.memory).map(([name, parts]) => [`memory, ${name}`, engineering(sum(Object.values(parts)), "B"), `memory-${name}`]),
    ]));
    drawPicture();
    drawBreaks();
    compared(beside.host, presets, found.total, near);
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
  const onlyView = new Set(["parts", "flow", "seed"]);
  const arrange = ({ task, num_experts }) => {
    fields.encoder.hidden = task === "causal_lm";
    fields.decoder.hidden = task === "masked_lm";
    fields.experts.hidden = !num_experts;
  };
  state.watch((values, changed) => {
    const heads = fitting(values, known);
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
    const { parts, flow, seed } = state.values;
    const fresh = { ...defaults(), parts, flow, seed, ...preset.model, vocabulary: preset.vocabulary };
    state.set(Object.fromEntries(Object.entries(fresh).filter(([name]) => name in state.values)), { step: true });
  });
  arrange(state.values);
  drawSteps();
  ask();
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

function controls(state, presets) {
  const start = h("select", { id: "preset" }, h("option", { value: "" }, "your own"),
    presets.filter((each) => each.dials).map((each) => h("option", { value: each.name }, each.name)));
  const fields = {
    encoder: slider(state, "encoder_layers", { label: "Layers of the encoder", min: 1, max: 96 }),
    decoder: slider(state, "decoder_layers", { label: "Layers of the decoder", min: 1, max: 96 }),
    experts: slider(state, "experts_per_token", { label: "Experts that work on a token", min: 1, max: 16 }),
  };
  const more = h("details", { class: "field wide" }, h("summary", {}, "More dials"), h("div", { class: "panel inner" },
    slider(state, "num_kv_heads", { label: "Heads of keys and values (0: as many as queries)", min: 0, max: 64 }),
    slider(state, "num_experts", { label: "Experts in a layer (0: none)", min: 0, max: 64 }), fields.experts,
    slider(state, "window", { label: "Window of self-attention (0: none)", stops: [0, 16, 32, 64, 128, 256, 512, 1024] }),
    choice(state, "norm", { label: "Norm", options: [["layer", "LayerNorm"], ["rms", "RMSNorm"]] }),
    choice(state, "norm_placement", { label: "Norm placed", options: [["post", "after the sum (2017)"], ["pre", "before each sub-layer"], ["none", "nowhere"]] }),
    choice(state, "share_embeddings", { label: "Shared embeddings", options: [["all", "source, target, output"], ["target", "target and output"], ["none", "none"]] }),
    slider(state, "dropout", { label: "Dropout", min: 0, max: 0.9, step: 0.05 }),
    slider(state, "max_length", { label: "Longest text, tokens", stops: [32, 64, 128, 256, 512, 1024, 2048, 4096] }),
    check(state, "bias", { label: "Biases in linear layers" }),
    slider(state, "tokens", { label: "A sentence has, tokens", stops: [5, 10, 25, 50, 100, 250, 500, 1000] }),
    slider(state, "beam", { label: "Beam", min: 1, max: 16 }),
    slider(state, "batch_tokens", { label: "Tokens of a training batch", stops: [512, 1024, 2048, 4096, 8192, 16384, 25000, 65536] }),
    slider(state, "seed", { label: "Seed of the training here", min: 1, max: 20 })));
  const element = [panel(choice(state, "task", { label: "Model", options: TASKS }),
    h("div", { class: "field" }, h("label", { for: "preset" }, "Begin with"), start),
    slider(state, "width", { label: "Width", stops: [32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1600, 2048, 3072, 4096, 8192, 12288] }),
    fields.encoder, fields.decoder,
    slider(state, "num_heads", { label: "Heads", stops: HEADS }),
    slider(state, "feedforward", { label: "Width of the feed-forward", stops: [64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 16384, 49152] }),
    choice(state, "activation", { label: "Activation", options: ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"] }),
    choice(state, "positions", { label: "Positions", options: ["sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative_keys", "transformer_xl"] }),
    slider(state, "vocabulary", { label: "Pieces of the vocabulary", stops: [600, 1000, 4000, 8000, 10000, 16000, 32000, 37000, 50257, 64000, 100000, 250000] }), more)];
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
function countsOf({ rows }, values) {
  const layers = layersOf(values).encoder;
  const of = (...names) => rows.find((row) => names.some((name) => row.component === name || row.component === `blocks.${name}`));
  const one = (row) => (row ? (values.task === "translation" ? row.each : row.each / layers) : 0);
  const output = rows.find((row) => row.part === "output" || row.component === "output projection" || row.part === "output_projection");
  return {
    embedding: rows[0].each, attention: one(of("self-attention", "self_attention")), feedforward: one(of("feed-forward", "feedforward", "experts")),
    norm: one(of("norms", "self_attention_norm")), output: output?.count ? output.each : 0,
  };
}

/** Words for the parts of a training: with everything, or without some of them. */
function smallName(parts) {
  const lost = Object.entries({ residual: "residual connections", feedforward: "the feed-forward network", scale: "1/√dₖ" }).filter(([name]) => !parts[name]).map(([, name]) => name);
  if (parts.norm_placement === "none") lost.push("norms");
  if (parts.positions === "none") lost.push("positions");
  if (parts.num_heads === 1) lost.push("several heads");
  return lost.length ? `without ${lost.join(", ")}` : "with all parts";
}

const apart = (a, b) => Math.abs(Math.log(a / b));
const nearest = (presets, total) => presets.reduce((best, each) => (apart(each.parameters, total) < apart(best.parameters, total) ? each : best));

/** Bars by the number of parameters, on a logarithmic axis. */
function compared(host, presets, total, near) {
  redrawn(host, () => {
    const rows = [...presets, { name: "yours", parameters: total, own: true }].sort((a, b) => a.parameters - b.parameters);
    const [low, high] = [Math.log10(rows[0].parameters) - 0.3, Math.log10(rows.at(-1).parameters)];
    host.replaceChildren(h("ul", { class: "beside sizes" }, rows.map((row) => {
      const bar = h("span", { class: "length" });
      bar.style.width = `${Math.max(1, (100 * (Math.log10(row.parameters) - low)) / (high - low))}%`;
      return h("li", { class: row.own ? "own" : row === near ? "near" : null }, h("span", { class: "who" }, row === near ? `${row.name} (nearest)` : row.name), h("span", { class: "track" }, bar),
        h("span", { class: "count" }, `${number(row.parameters / 1e6, 3)} M`), h("span", { class: "count" }, `${number(row.parameters / 1e9, 3)} B`));
    })));
  });
}
