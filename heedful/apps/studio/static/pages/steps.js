import { call, live, StudioError } from "../api.js";
import { button, check, choice, panel, text } from "../controls.js";
import { h, number } from "../dom.js";
import { matrix } from "../draw/matrix.js";
import { followed, followDefaults, inPlace, KINDS, reads, sums, tinted } from "../model_steps.js";
import { saves } from "../save.js";
import { renewWords } from "../words.js";

export const kinds = KINDS;

// Worked examples: small enough to follow with a pencil.
const EXAMPLES = {
  love: {
    name: "I love cats: three tokens, four channels", labels: "I love cats",
    q: "1 0 1 0\n0 1 1 0\n1 1 0 1", k: "1 1 0 0\n0 1 1 1\n1 0 1 0", v: "1 0 0 0\n0 1 0 0\n0 0 1 0",
  },
  it: {
    name: "What “it” means: one query, three keys", labels: "mat sat cat",
    q: "1 0 -1 2", k: "2 1 0 1\n0 -1 1 0\n1 0 -1 3", v: "1 0\n0 1\n1 1",
  },
  spread: {
    name: "Scores 16, 0 and −16: without a scale", labels: "a b c", scale: "1",
    q: "8", k: "2\n0\n-2", v: "1 0 0\n0 1 0\n0 0 1",
  },
  reference: {
    name: "A head that finds “cat”: two channels", labels: "cat sat tired",
    q: "0.9 0.1", k: "0.8 0.2\n0.1 0.9\n0.2 0.3", v: "1 0 0\n0 1 0\n0 0 1", scale: "1",
  },
  causal: {
    name: "Attention is very cool: a causal mask", labels: "Attention is very cool", mask: "causal",
    q: "1 0\n0 1\n1 1\n0 1", k: "1 0\n1 1\n0 1\n1 -1", v: "1 0\n0 1\n1 1\n-1 1",
  },
  tokens: {
    name: "From tokens: X with three weight matrices", labels: "the cat sat",
    x: "1 0 1 0\n0 2 0 1\n1 1 1 1", q: "1 0\n0 1\n1 1\n0 1", k: "0 1\n1 0\n1 0\n1 1", v: "1 0\n0 1\n1 1\n2 0",
  },
};

export const defaults = (studio) => ({
  q: EXAMPLES.love.q, k: EXAMPLES.love.k, v: EXAMPLES.love.v, x: "", labels: EXAMPLES.love.labels,
  scale: "", mask: "everything", bias: "none", query: 1, stage: 0, all: false, ...followDefaults(studio),
});

const STAGES = ["Queries, keys, values", "q · k", "× scale", "+ bias", "Mask", "Softmax", "Weighted sum"];

/** The formula in parts, each with the stages that compute it. */
const FORMULA = [["softmax", [5]], ["( ", []], ["Q K", [0, 1]], ["ᵀ", [1]], [" / √dₖ", [2]], [" + bias", [3]], [", masked", [4]], [" ) ", []], ["V", [0, 6]]];

/** Numbers, a row on each line; between them spaces, commas or semicolons. */
function read(written, name) {
  const rows = written.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  return rows.map((line, i) => line.replace(/[[\](),;]/g, " ").replace(/−/g, "-").trim().split(/\s+/).map((word) => {
    const value = Number(word);
    if (word === "" || !Number.isFinite(value)) {
      throw new StudioError({ what: `“${word.slice(0, 30)}” is no number`, where: `${name}, row ${i + 1}`, remedy: "Write numbers with spaces between them, a row on each line" });
    }
    return value;
  }));
}

export function mount({ root, side, state, studio }) {
  const example = h("select", { id: "example" }, h("option", { value: "" }, "as typed"),
    Object.entries(EXAMPLES).map(([key, each]) => h("option", { value: key }, each.name)));
  example.addEventListener("change", () => {
    if (!example.value) return;
    const { q, k, v, x = "", labels, scale = "", mask = "everything" } = EXAMPLES[example.value];
    state.set({ q, k, v, x, labels, scale, mask, bias: "none", query: 1 }, { step: true });
  });
  const back = button("Back", () => state.set({ stage: Math.max(0, state.values.stage - 1) }), { quiet: true });
  const next = button("Next step", () => state.set({ stage: Math.min(6, state.values.stage + 1) }));
  const where = h("span", { class: "note", role: "status" });
  const names = { q: "Queries Q", k: "Keys K", v: "Values V", x: "Tokens X" };
  const areas = Object.fromEntries(["q", "k", "v", "x"].map((name) => [name,
    text(state, name, { label: names[name], rows: 4, code: true })]));
  for (const area of Object.values(areas)) area.classList.remove("wide");
  const body = h("div", {});
  const typed = h("div", {},
    panel(h("div", { class: "field wide" }, h("label", { for: "example" }, "Examples"), example), areas.q, areas.k, areas.v, areas.x,
      text(state, "labels", { label: "Names of the keys (optional)" }),
      text(state, "scale", { label: "Scale", hint: "Empty: 1/√dₖ. 1: no scale." }),
      text(state, "mask", { label: "Mask", code: true }),
      choice(state, "bias", { label: "Bias", options: [["none", "none"], ["alibi", "ALiBi, slope of a single head"]] })));
  const model = followed(state, studio, STAGES);
  const kinds = [["typed", "matrices that you type"], ["model", "a word in a head of a model"]];
  if (reads(studio).length) side.append(panel(choice(state, "on", { label: "Follow", options: kinds })));
  const [settings, result] = [h("div", {}), h("div", {})];
  side.append(settings, panel(check(state, "all", { label: "All steps so far below each other" })));
  const formula = h("p", { class: "formula", role: "math", "aria-label": "softmax of Q times K transposed over the square root of the width of a key, times V" });
  root.append(h("p", { class: "row" }, back, next, where), formula, result, saves(result, () => where.textContent));
  for (const name of ["labels", "scale", "mask"]) typed.querySelector(`[id^="${name}-"]`).closest(".field").classList.remove("wide");

  const ask = live(body, (signal) => {
    const { q, k, v, x, scale, mask, bias } = state.values;
    const asked = { q: read(q, "Q"), k: read(k, "K"), v: read(v, "V"), mask, bias };
    if (x.trim()) asked.x = read(x, "X");
    if (scale.trim()) asked.scale = read(scale, "Scale")[0][0];
    return call("steps", "attend", asked, signal);
  }, (found) => show(found));

  let last = null;
  const [words, host] = [h("div", {}), h("div", {})];
  body.append(words, host);
  function show(found) {
    last = found;
    const { queries, row } = namesOf(found, state.values);
    renewWords(words, { pieces: queries, chosen: row, choose: (index) => state.set({ query: index + 1 }, { step: true }), label: "Click a query to follow it" });
    host.replaceChildren(...stages(found, state.values));
  }
  const arrange = () => {
    const { stage, x, on } = state.values;
    if (settings.firstChild === null || model.panel.isConnected !== (on === "model")) {
      settings.replaceChildren(on === "model" ? model.panel : typed);
      result.replaceChildren(on === "model" ? model.body : body);
    }
    formula.replaceChildren(...FORMULA.flatMap(([words, stages]) => [stages.includes(stage) ? h("mark", {}, words) : words]));
    back.disabled = stage <= 0;
    next.disabled = stage >= 6;
    where.textContent = `Step ${stage + 1} of 7: ${STAGES[stage]}`;
    const weights = x.trim() !== "";
    for (const name of ["q", "k", "v"]) areas[name].querySelector("label").textContent = weights ? `Weights W${{ q: "Q", k: "K", v: "V" }[name]}` : names[name];
    const found = Object.entries(EXAMPLES).find(([, each]) => each.q === state.values.q && each.k === state.values.k && each.v === state.values.v && (each.x ?? "") === x);
    example.value = found ? found[0] : "";
  };
  state.watch((_, changed) => {
    arrange();
    if (state.values.on === "model") model.changed(changed);
    else if (last && changed.every((name) => ["query", "stage", "labels", "all"].includes(name))) show(last);
    else ask();
  });
  arrange();
  if (state.values.on === "model") model.changed([]);
  else ask();
}

/** Names of queries and keys, and the row of the query that is followed. */
function namesOf(found, values) {
  const given = values.labels.trim().split(/\s+/).filter((word) => word !== "");
  const keys = found.k.map((_, i) => given[i] ?? `key ${i + 1}`);
  const queries = found.q.map((_, i) => (found.q.length === keys.length && given[i] ? given[i] : `query ${i + 1}`));
  return { keys, queries, row: Math.min(found.q.length, Math.max(1, values.query)) - 1 };
}

function stages(found, values) {
  const { keys, queries, row } = namesOf(found, values);
  const query = () => tinted(`“${queries[row]}”`, row, "row");
  const key = (i) => tinted(keys[i], i, "column");
  const own = (value, i, digits = 4) => tinted(number(value, digits), i, "column");
  const vector = (numbers, digits = 3) => `(${numbers.map((value) => number(value, digits)).join(", ")})`;
  const hidden = found.visible.map((line) => line.map((seen) => !seen));
  const all = { rowNames: queries, columnNames: keys, highlight: row };
  const parts = [
    () => [h("p", {}, "Every word has a query, a key and a value. Queries have the colours of their rows, keys and values those of their columns. We follow ", query(), "."),
      h("div", { class: "columns thirds" }, matrix({ values: found.q, caption: "Q", rowNames: queries, highlight: row, colours: true }),
        matrix({ values: found.k, caption: "K", rowNames: keys, keys: true, colours: true }), matrix({ values: found.v, caption: "V", rowNames: keys, keys: true, colours: true }))],
    () => [h("p", {}, "The query of ", query(), " is multiplied with every key, channel by channel, and the products are added up."),
      sums(keys.map((_, i) => [key(i), found.q[row].flatMap((value, channel) => [channel ? " + " : "", tinted(number(value, 3), row, "row"), " · ", own(found.k[i][channel], i, 3)]), own(found.raw[row][i], i)])),
      matrix({ values: found.raw, caption: "Q Kᵀ", ...all })],
    () => [h("p", {}, `Every score is multiplied with ${number(found.factor)}, so that its spread does not grow with the width.`),
      sums(keys.map((_, i) => [key(i), [own(found.raw[row][i], i), ` × ${number(found.factor)}`], own(found.scaled[row][i], i)])),
      matrix({ values: found.scaled, caption: "Scaled scores", ...all })],
    () => (found.added === null ? [h("p", { class: "note" }, "No bias is added.")]
      : [sums(keys.map((_, i) => [key(i), [own(found.scaled[row][i], i), ` + (${number(found.added[row][i])})`], own(found.scores[row][i], i)])),
        matrix({ values: found.scores, caption: "Scores with the bias", ...all })]),
    () => [h("p", {}, found.sentence), matrix({ values: found.scores, hidden, caption: "Visible keys of each query", ...all })],
    () => [h("p", {}, "Each score becomes its exponential (less the row's highest score, which changes no weight), divided by the sum of the row. So the weights of ", query(), " add up to 1."),
      sums(keys.map((_, i) => [key(i), found.visible[row][i] ? h("span", { class: "term" }, own(found.powers[row][i], i), ` ÷ ${number(found.powers[row].reduce((a, b) => a + b, 0))}`) : "hidden", own(found.weights[row][i], i)])),
      matrix({ values: found.weights, kind: "share", hidden, caption: "Weights", ...all })],
    () => [h("p", {}, "The values are added up, each times its weight: this is the output for ", query(), "."),
      sums([...keys.map((_, i) => [key(i), [own(found.weights[row][i], i), " × ", tinted(vector(found.v[i]), i, "column")], tinted(vector(found.parts[row][i]), i, "column")]),
        ["sum", "", tinted(vector(found.output[row], 4), row, "row")]], true),
      matrix({ values: found.output, caption: "Output", rowNames: queries, highlight: row, colours: true })],
  ];
  return inPlace(parts, values, STAGES);
}
