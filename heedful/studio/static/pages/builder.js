import { call, live } from "../api.js";
import { check, choice, copyable, panel, slider } from "../controls.js";
import { engineering, figure, h, number, section, table } from "../dom.js";
import { facts } from "../draw/bars.js";
import { redrawn } from "../draw/colours.js";

// The 2017 base model, which the sizes of everything since are compared with.
export const defaults = () => ({
  task: "translation", width: 512, encoder_layers: 6, decoder_layers: 6, num_heads: 8, num_kv_heads: 0, feedforward: 2048,
  num_experts: 0, experts_per_token: 2, activation: "relu", norm: "layer", norm_placement: "post", positions: "sinusoidal",
  window: 0, share_embeddings: "all", dropout: 0.1, bias: true, max_length: 256, vocabulary: 37000, tokens: 25, beam: 4, batch_tokens: 4096,
});

const TASKS = [["translation", "Translator: encoder and decoder"], ["causal_lm", "Language model: decoder"], ["masked_lm", "Masked language model: encoder"]];
const DIALS = ["width", "encoder_layers", "decoder_layers", "num_heads", "feedforward", "activation", "norm", "norm_placement", "positions", "share_embeddings", "dropout", "bias", "max_length"];
const HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 20, 25, 32, 64, 96];
const UNSET_AT_0 = ["num_kv_heads", "num_experts", "window"];

function asked(values) {
  const model = Object.fromEntries(DIALS.map((name) => [name, values[name]]));
  for (const name of UNSET_AT_0) if (values[name]) model[name] = values[name];
  if (values.num_experts) model.experts_per_token = values.experts_per_token;
  const { task, vocabulary, tokens, beam, batch_tokens } = values;
  return { task, model, vocabulary, tokens, beam, batch_tokens };
}

export async function mount({ root, side, state }) {
  const { presets } = await call("builder", "presets");
  const start = h("select", { id: "preset" }, h("option", { value: "" }, "your own"),
    presets.filter((each) => each.dials).map((each) => h("option", { value: each.name }, each.name)));
  start.addEventListener("change", async () => {
    if (!start.value) return;
    const found = await call("builder", "preset", { name: start.value });
    const fresh = { ...defaults(), task: "translation", ...found.model, vocabulary: found.vocabulary };
    const known = Object.keys(state.values);
    state.set(Object.fromEntries(Object.entries(fresh).filter(([name]) => known.includes(name))), { step: true });
  });
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
    choice(state, "norm_placement", { label: "Norm placed", options: [["post", "after the sum (2017)"], ["pre", "before each sub-layer"]] }),
    choice(state, "share_embeddings", { label: "Shared embeddings", options: [["all", "source, target, output"], ["target", "target and output"], ["none", "none"]] }),
    slider(state, "dropout", { label: "Dropout", min: 0, max: 0.9, step: 0.05 }),
    slider(state, "max_length", { label: "Longest text, tokens", stops: [32, 64, 128, 256, 512, 1024, 2048, 4096] }),
    check(state, "bias", { label: "Biases in linear layers" }),
    slider(state, "tokens", { label: "A sentence has, tokens", stops: [5, 10, 25, 50, 100, 250, 500, 1000] }),
    slider(state, "beam", { label: "Beam", min: 1, max: 16 }),
    slider(state, "batch_tokens", { label: "Tokens of a training batch", stops: [512, 1024, 2048, 4096, 8192, 16384, 25000, 65536] })));
  const total = h("div", {});
  const picture = figure("The model and its parameters");
  const beside = figure("Compared with published models");
  const components = h("div", {});
  const tables = h("div", { class: "columns" });
  const file = copyable("Settings of this model");
  const body = h("div", {}, total, h("div", { class: "columns" }, picture.element, beside.element), components, tables,
    section("For your settings file", h("p", {}, "Save it as ", h("code", {}, "model.toml"), " and train with ", h("code", { id: "command" })), file.element));
  side.append(
    panel(choice(state, "task", { label: "Model", options: TASKS }),
      h("div", { class: "field" }, h("label", { for: "preset" }, "Begin with"), start),
      slider(state, "width", { label: "Width", stops: [32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1600, 2048, 3072, 4096, 8192, 12288] }),
      fields.encoder, fields.decoder,
      slider(state, "num_heads", { label: "Heads", stops: HEADS }),
      slider(state, "feedforward", { label: "Width of the feed-forward", stops: [64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 16384, 49152] }),
      choice(state, "activation", { label: "Activation", options: ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"] }),
      choice(state, "positions", { label: "Positions", options: ["sinusoidal", "learned", "none", "rotary", "alibi", "t5", "relative_keys"] }),
      slider(state, "vocabulary", { label: "Pieces of the vocabulary", stops: [600, 1000, 4000, 8000, 10000, 16000, 32000, 37000, 50257, 64000, 100000, 250000] }), more));
  root.append(body);
  const arrange = ({ task, num_experts }) => {
    fields.encoder.hidden = task === "causal_lm";
    fields.decoder.hidden = task === "masked_lm";
    fields.experts.hidden = !num_experts;
  };
  const ask = live(body, (signal) => call("builder", "build", asked(state.values), signal), (found) => {
    total.replaceChildren(facts([
      ["parameters", number(found.total), "total"], ["in short", engineering(found.total), "short"],
      ...Object.entries(found.operations).slice(0, 1).map(([name, value]) => [`operations for ${name}`, engineering(value), "learning"]),
      ...Object.entries(found.memory).map(([name, parts]) => [`memory, ${name}`, engineering(sum(Object.values(parts)), "B"), `memory-${name}`]),
    ]));
    assembled(picture.host, found, state.values);
    compared(beside.host, presets, found.total);
    components.replaceChildren(table("Parameters by component", ["part", "component", "each", "times", "in all"], found.rows.map((row) =>
        [row.part, row.component + (row.note ? ` (${row.note})` : ""), number(row.each), row.count, number(row.total)])));
    tables.replaceChildren(...[
        Object.keys(found.operations).length ? table("Floating-point operations", ["for", "operations"], Object.entries(found.operations).map(([name, value]) => [name, engineering(value)])) : null,
        Object.entries(found.memory).map(([name, parts]) => table(`Memory for ${name}, float32`, ["for", "bytes"], [...Object.entries(parts).map(([part, size]) => [part, engineering(size, "B")]), ["in all", engineering(sum(Object.values(parts)), "B")]]))].flat().filter((each) => each !== null));
    file.set(found.toml);
    const pairs = state.values.task === "translation";
    document.getElementById("command").textContent = `heedful train run --config model.toml --train ${pairs ? "train.en train.de" : "train.txt"} --valid ${pairs ? "valid.en valid.de" : "valid.txt"}`;
  });
  state.watch((values, changed) => {
    const heads = fitting(values, known);
    known = values.num_heads;
    if (heads !== values.num_heads && !changed.includes("task")) {
      known = heads;
      state.set({ num_heads: heads });
      return;
    }
    arrange(values);
    ask();
  });
  let known = state.values.num_heads;
  arrange(state.values);
  ask();
}

/** The number of heads that divides the width: the next one in the direction of the change. */
function fitting({ width, num_heads: heads }, before) {
  if (width % heads === 0) return heads;
  const divisors = HEADS.filter((each) => width % each === 0);
  const next = heads > before ? divisors.find((each) => each > heads) : divisors.findLast((each) => each < heads);
  return next ?? divisors.at(-1);
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

/** Stacks as boxes, from the input at the bottom to the output at the top. */
function assembled(host, found, values) {
  const of = (part) => found.rows.filter((row) => row.part === part);
  const box = (row, extra = "") => h("div", { class: `part ${extra}` }, h("span", {}, row.component.replaceAll("_", " ").replaceAll(".", " · ")), h("span", { class: "count" }, row.count === 0 ? "shared" : engineering(row.each)));
  const stack = (part, layers) => {
    const rows = of(part);
    if (!rows.length) return null;
    const inside = rows.filter((row) => values.task !== "translation" || row.count > 1 || layers === 1);
    const outside = rows.filter((row) => !inside.includes(row));
    return h("div", { class: "stack" }, h("p", { class: "name" }, part), outside.map((row) => box(row, "outside")),
      h("div", { class: "layer" }, h("span", { class: "times" }, `${layers} ×`), inside.map((row) => box(row)).reverse()),
      h("p", { class: "count" }, engineering(sum(rows.map((row) => row.total)))));
  };
  const embeddings = found.rows.filter((row) => !["encoder", "decoder", "output"].includes(row.part));
  host.replaceChildren(h("div", { class: "assembly" },
    h("div", { class: "ends" }, of("output").map((row) => box(row, "outside"))),
    h("div", { class: "stacks" }, stack("encoder", values.encoder_layers), stack("decoder", values.decoder_layers)),
    h("div", { class: "ends" }, embeddings.map((row) => box(row, "outside")))));
}

/** Bars by the number of parameters, on a logarithmic axis. */
function compared(host, presets, total) {
  redrawn(host, () => {
    const rows = [...presets, { name: "yours", parameters: total, own: true }].sort((a, b) => a.parameters - b.parameters);
    const [low, high] = [Math.log10(rows[0].parameters) - 0.3, Math.log10(rows.at(-1).parameters)];
    host.replaceChildren(h("ul", { class: "beside" }, rows.map((row) => {
      const bar = h("span", { class: "length" });
      bar.style.width = `${Math.max(1, (100 * (Math.log10(row.parameters) - low)) / (high - low))}%`;
      return h("li", { class: row.own ? "own" : null }, h("span", { class: "who" }, row.name), h("span", { class: "track" }, bar), h("span", { class: "count" }, engineering(row.parameters)));
    })));
  });
}
