import { call, live, StudioError } from "../api.js";
import { button, check, choice, more, panel, tabs, text } from "../controls.js";
import { decimalsOf, fixed, h, number } from "../dom.js";
import { captioned, equation, matrix } from "../draw/matrix.js";
import { arrive, BIAS, exponential, followed, followDefaults, inPlace, KINDS, MASK, reached, reads, sums, tinted } from "../model_steps.js";
import { stageRow } from "../draw/stage_row.js";
import { saves } from "../save.js";
import { renewWords } from "../words.js";

export const kinds = KINDS;
export const wide = true;

// Worked examples: small enough to follow with a pencil.
const EXAMPLES = {
  tokens: {
    name: "What “it” takes from “cat”: two channels", labels: "cat sat it", query: 3,
    x: "2 0 0\n0 1 1\n1 0 1", q: "1 1\n2 0\n0 1", k: "0 2\n0 1\n2 0", v: "4 0\n0 3\n0 1",
  },
  love: {
    name: "I love cats: four channels", labels: "I love cats",
    q: "1 0 1 0\n0 1 1 0\n1 1 0 1", k: "1 1 0 0\n0 1 1 1\n1 0 1 0", v: "1 0 0 0\n0 1 0 0\n0 0 1 0",
  },
  it: {
    name: "What “it” means: one query", labels: "mat sat cat",
    q: "1 0 -1 2", k: "2 1 0 1\n0 -1 1 0\n1 0 -1 3", v: "1 0\n0 1\n1 1",
  },
  spread: {
    name: "Scores 16, 0, −16: no scale", labels: "a b c", scale: "1",
    q: "8", k: "2\n0\n-2", v: "1 0 0\n0 1 0\n0 0 1",
  },
  reference: {
    name: "A head that finds “cat”", labels: "cat sat tired",
    q: "0.9 0.1", k: "0.8 0.2\n0.1 0.9\n0.2 0.3", v: "1 0 0\n0 1 0\n0 0 1", scale: "1",
  },
  causal: {
    name: "A causal mask: four words", labels: "Attention is very cool", mask: "causal",
    q: "1 0\n0 1\n1 1\n0 1", k: "1 0\n1 1\n0 1\n1 -1", v: "1 0\n0 1\n1 1\n-1 1",
  },
};

const { name: _, x: WORDS, ...OPENED } = EXAMPLES.tokens;

export const counted = ["layer", "head"];

export const defaults = (studio) => ({
  ...OPENED, x: "", scale: "", mask: "everything", bias: "none", stage: 1, all: false, ...followDefaults(studio),
});

const STAGES = ["Queries, keys, values", "q · k", "÷ √dₖ", "+ bias", "Mask", "Softmax", "Weighted sum"];

/** The formula in parts, each with the stages that compute it. */
const FORMULA = [["softmax", [5]], ["( ", []], ["Q K", [0, 1]], ["ᵀ", [1]], [" ÷ √dₖ", [2]], [" + bias", [BIAS]], [", masked", [MASK]], [" ) ", []], ["V", [0, 6]]];

/** The stages there are: without a bias or a mask, none for it. */
const stagesOf = ({ bias, mask }) => STAGES.map((_, i) => i).filter((i) => (i !== BIAS || bias) && (i !== MASK || mask));

const setIn = ({ bias, mask }) => ({ bias: bias !== "none", mask: mask !== "everything" });

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
  // An address without matrices opens on words, which stand in it from then on: queries, keys and values of an address without X are these themselves.
  const named = new URLSearchParams(location.search);
  if (!["q", "k", "v", "x"].some((name) => named.has(name))) state.set({ x: WORDS });
  const example = h("select", { id: "example" }, h("option", { value: "" }, "as typed"),
    Object.entries(EXAMPLES).map(([key, each]) => h("option", { value: key }, each.name)));
  example.addEventListener("change", () => {
    if (!example.value) return;
    const { q, k, v, x = "", labels, scale = "", mask = "everything", query = 1 } = EXAMPLES[example.value];
    state.set({ q, k, v, x, labels, scale, mask, bias: "none", query }, { step: true });
  });
  const stagesHere = () => stagesOf(state.values.on === "model" ? model.has() : setIn(state.values));
  const go = (by) => state.set({ stage: reached(stagesHere(), state.values) + 1 + by }); // at the ends their buttons are off
  const back = button("Back", () => go(-1), { quiet: true });
  const next = button("Next step", () => go(1));
  const where = h("span", { class: "note", role: "status" });
  const names = { q: "Queries Q", k: "Keys K", v: "Values V", x: "Tokens X" };
  const areas = Object.fromEntries(["q", "k", "v", "x"].map((name) => [name,
    text(state, name, { label: names[name], rows: 4, code: true })]));
  const body = h("div", {});
  const fields = [areas.q, areas.k, areas.v, text(state, "mask", { label: "Mask", code: true }), text(state, "labels", { label: "Names of the keys (optional)" }),
    text(state, "scale", { label: "Scale", hint: "Empty: 1/√dₖ. 1: no scale." }),
    choice(state, "bias", { label: "Bias", options: [["none", "none"], ["alibi", "ALiBi, slope of a single head"]] }), areas.x];
  const own = more("Type your own numbers", ...fields);
  own.open = Object.entries(EXAMPLES).every(([, each]) => each.q !== state.values.q);
  const typed = [h("div", { class: "field wide" }, h("label", { for: "example" }, "Examples"), example), own];
  const model = followed(state, studio, { names: STAGES, stagesOf, arrived: () => arrange() });
  const follow = reads(studio).length ? tabs(state, "on", { label: "Follow", options: [["typed", "Small matrices"], ["model", "A word in a model"]] }) : null;
  const result = h("div", {});
  const formula = h("p", { class: "formula", role: "math", "aria-label": "softmax of Q times K transposed over the square root of the width of a key, times V" });
  const overview = h("div", {});
  root.append(h("div", { class: "row" }, follow, formula), h("div", { class: "row" }, back, next, where, check(state, "all", { label: "All steps below each other" })), overview, result, saves(result, () => where.textContent));
  for (const field of fields) field.classList.remove("wide");

  const ask = live(body, (signal) => {
    const { q, k, v, x, scale, mask, bias } = state.values;
    const asked = { q: read(q, "Q"), k: read(k, "K"), v: read(v, "V"), mask, bias };
    if (x.trim()) asked.x = read(x, "X");
    if (scale.trim()) asked.scale = read(scale, "Scale")[0][0];
    return call("steps", "attend", asked, signal);
  }, (found) => show(found));

  let last = null;
  let kept = null; // the step that is open: {stage, number: among those there are}
  const [words, host] = [h("div", {}), h("div", {})];
  body.append(words, host);
  function show(found) {
    last = found;
    arrange();
    const { queries, row } = namesOf(found, state.values);
    renewWords(words, { pieces: queries, chosen: row, choose: (index) => state.set({ query: index + 1 }, { step: true }), label: "Click a query to follow it" });
    host.replaceChildren(...stages(found, state));
    const there = stagesOf(setIn(state.values));
    oversee(stagesInShort(found, state.values), there, { row, word: queries[row], colour: row });
  }
  const oversee = (short, there, query) => stageRow(overview, short.filter(({ stage }) => there.includes(stage)), { at: there[reached(there, state.values)], ...query, choose: (stage) => state.set({ stage: there.indexOf(stage) + 1 }, { step: true }) });
  const arrange = () => {
    const { x, on } = state.values;
    if (side.firstChild === null || own.isConnected !== (on === "typed")) {
      side.replaceChildren(panel(...(on === "model" ? model.fields : typed).filter(Boolean)));
      result.replaceChildren(on === "model" ? model.body : body);
    }
    const there = stagesHere();
    // With a mask or a bias more or less, the same step has another number; an address may name one past the last.
    const isKnown = on === "model" ? model.inShort().length > 0 : last !== null;
    const at = kept && kept.number === state.values.stage ? Math.max(0, there.findIndex((stage) => stage >= kept.stage)) : reached(there, state.values);
    if (isKnown) {
      kept = { stage: there[at], number: at + 1 };
      if (at + 1 !== state.values.stage) state.set({ stage: at + 1 });
    }
    if (on === "model") oversee(model.inShort(), there, { row: 0, ...model.query() });
    formula.replaceChildren(...FORMULA.filter(([, stages]) => !stages.length || stages.some((each) => there.includes(each)))
      .flatMap(([words, stages]) => [stages.includes(there[at]) ? h("mark", {}, words) : words]));
    back.disabled = at <= 0;
    next.disabled = at >= there.length - 1;
    where.textContent = `Step ${at + 1} of ${there.length}: ${STAGES[there[at]]}`;
    const weights = x.trim() !== "";
    for (const name of ["q", "k", "v"]) areas[name].querySelector("label").textContent = weights ? `Weights W${{ q: "Q", k: "K", v: "V" }[name]}` : names[name];
    const found = Object.entries(EXAMPLES).find(([, each]) => each.q === state.values.q && each.k === state.values.k && each.v === state.values.v && (each.x ?? "") === x);
    example.value = found ? found[0] : "";
  };
  state.watch((_, changed) => {
    arrange();
    if (state.values.on === "model") model.changed(changed);
    else if (last && changed.every((name) => ["query", "stage", "labels", "all"].includes(name))) {
      show(last);
      if (changed.includes("stage")) {
        host.querySelector(".reached .equation")?.play();
        arrive(host);
      }
    }
    else ask();
  });
  arrange();
  if (state.values.on === "model") model.changed([]);
  else ask();
}

/** The matrices of each stage; words that are typed come before their queries, keys and values. */
function stagesInShort(found, { x }) {
  const hidden = found.visible.map((line) => line.map((seen) => !seen));
  const matrices = [[{ values: found.q }, { values: found.k, followed: null }, { values: found.v, followed: null }], [{ values: found.raw }], [{ values: found.scaled }], [{ values: found.scores }], [{ values: found.scores, hidden }],
    [{ values: found.weights, kind: "share", hidden }], [{ values: found.output }]];
  if (x.trim()) {
    matrices[0][0].made = true;
    matrices[0].unshift({ values: read(x, "X") });
  }
  return matrices.map((each, stage) => ({ stage, name: STAGES[stage], matrices: each }));
}

/** Names of queries and keys, the row of the query that is followed, and how far colours of keys lie from those of queries. */
function namesOf(found, values) {
  const given = values.labels.trim().split(/\s+/).filter((word) => word !== "");
  const keys = found.k.map((_, i) => given[i] ?? `key ${i + 1}`);
  const queries = found.q.map((_, i) => (found.q.length === keys.length && given[i] ? given[i] : `query ${i + 1}`));
  const shift = queries.every((name, i) => name === keys[i]) ? 0 : 1; // one colour for a word, as query, key and value
  return { keys, queries, row: Math.min(found.q.length, Math.max(1, values.query)) - 1, shift };
}

const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
const highest = (found, row) => Math.max(...found.scores[row].filter((_, j) => found.visible[row][j]));


/** Queries, keys and values as products of tokens and weights that are typed. */
function fromTokens(found, values, { queries, row, dot, choose }) {
  const x = read(values.x, "X");
  const names = ["q", "k", "v"];
  const weights = names.map((name) => read(values[name], `W_${name.toUpperCase()}`));
  const made = names.map((name) => found[name]);
  const coloured = { highlight: row, colours: true, shift: 0 };
  const w = (name) => captioned(`W_${name}`);
  return [h("p", {}, "Every word is a row of X. Times ", w("Q"), " it becomes a query, times ", w("K"), " a key, times ", w("V"), " a value. Training learns the three W. We follow ", tinted(`“${queries[row]}”`, row, "row"), "."),
    ...equation(["", ...weights.map((each, i) => ({ values: each, caption: `W_${names[i].toUpperCase()}` })), { values: x, caption: "X", rowNames: queries, ...coloured }, ...made.map((each, i) => ({ values: each, caption: names[i].toUpperCase(), ...coloured }))],
      { from: (i, j, k) => [[3, "row"], [k, "column"]], results: 3, crossed: true, tell: (i, j, k) => `${names[k].toUpperCase()} of “${queries[i]}”, channel ${j + 1}: ${dot(x[i], weights[k].map((each) => each[j]), made[k][i][j])}`, choose, at: [row, 0, 0] })];
}

function stages(found, state) {
  const { values } = state;
  const { keys, queries, row, shift } = namesOf(found, values);
  const query = () => tinted(`“${queries[row]}”`, row, "row");
  const key = (i) => tinted(keys[i], i, "column", shift);
  const own = (value, i, digits = 4) => tinted(number(value, digits), i, "column", shift);
  const decimals = decimalsOf(found.output[row].map((sum, channel) => [sum, ...found.parts[row].map((part) => part[channel])]));
  const vector = (numbers, write = (value) => fixed(value, decimals)) => `(${numbers.map((value) => write(value)).join(", ")})`;
  const hidden = found.visible.map((line) => line.map((seen) => !seen));
  const all = { rowNames: queries, columnNames: keys, highlight: row, shift };
  const choose = (i) => state.set({ query: i + 1 }, { step: true });
  const short = (value) => number(value, 3);
  const dot = (left, right, result) => `${left.map((value, channel) => `${short(value)} · ${short(right[channel])}`).join(" + ")} = ${short(result)}`;
  /** Scores before and after, of which one number comes from one. */
  const turned = (before, sign, after, how, from = "cell") => equation([{ ...before, ...all }, sign, { ...after, ...all }],
    { from: () => [[0, from]], tell: (i, j) => (hidden[i][j] && after.hidden ? `“${queries[i]}” does not see “${keys[j]}”: ${after.kind === "share" ? "its weight is 0" : "the score becomes −∞"}.` : how(i, j)), choose, at: [row, 0] });
  const seen = { values: found.scores, hidden, caption: values.mask === "everything" ? "Scores" : "Scores that are seen" };
  const parts = {
    0: () => (values.x.trim() ? fromTokens(found, values, { queries, row, dot, choose }) : [h("p", {}, "Every word has a query, a key and a value: its vector X times three matrices that training learns (", h("a", { href: "?" }, "see X become Q, K and V"), "). We follow ", query(), "."),
      h("div", { class: "columns thirds" }, matrix({ values: found.q, caption: "Q", rowNames: queries, highlight: row, colours: true }),
        matrix({ values: found.k, caption: "K", rowNames: keys, keys: true, colours: true, shift }), matrix({ values: found.v, caption: "V", rowNames: keys, keys: true, colours: true, shift }))]),
    1: () => [h("p", {}, "The query of ", query(), " is multiplied by every key, channel by channel, and the products are added up. Point at a score to see its row of Q and its column of Kᵀ."),
      ...equation([{ values: found.q, caption: "Q", rowNames: queries, highlight: row, colours: true }, "×", { values: found.k[0].map((_, channel) => found.k.map((each) => each[channel])), caption: "Kᵀ", columnNames: keys, colours: "columns", shift }, "=", { values: found.raw, caption: "Q Kᵀ", ...all }],
        { from: () => [[0, "row"], [1, "column"]], tell: (i, j) => `“${queries[i]}” · “${keys[j]}”: ${dot(found.q[i], found.k[j], found.raw[i][j])}`, choose, at: [row, 0] }),
      sums(keys.map((_, i) => [key(i), found.q[row].flatMap((value, channel) => [channel ? " + " : "", tinted(number(value, 3), row, "row"), " · ", own(found.k[i][channel], i, 3)]), own(found.raw[row][i], i)]))],
    2: () => [h("p", {}, `Every score is multiplied by ${number(found.factor)}${Math.abs(found.factor * Math.sqrt(found.k[0].length) - 1) < 1e-6 ? ` = 1 ÷ √${found.k[0].length}` : ""}, so that its spread does not grow with the width.`),
      ...turned({ values: found.raw, caption: "Q Kᵀ" }, `× ${number(found.factor)} =`, { values: found.scaled, caption: "Scaled scores" }, (i, j) => `“${queries[i]}”, “${keys[j]}”: ${short(found.raw[i][j])} × ${number(found.factor)} = ${short(found.scaled[i][j])}`),
      sums(keys.map((_, i) => [key(i), [own(found.raw[row][i], i), ` × ${number(found.factor)}`], own(found.scaled[row][i], i)]))],
    [BIAS]: () => [h("p", {}, "Each score gets a number for the positions of its query and key."),
      ...turned({ values: found.scaled, caption: "Scaled scores" }, "+ bias =", { values: found.scores, caption: "Scores with the bias" }, (i, j) => `“${queries[i]}”, “${keys[j]}”: ${short(found.scaled[i][j])} + (${short(found.added[i][j])}) = ${short(found.scores[i][j])}`),
      sums(keys.map((_, i) => [key(i), [own(found.scaled[row][i], i), ` + (${number(found.added[row][i])})`], own(found.scores[row][i], i)]))],
    [MASK]: () => [h("p", {}, `${found.sentence} The score of a hidden key becomes −∞.`),
      ...turned({ values: found.scores, caption: "Scores" }, "→", seen, (i, j) => `“${queries[i]}” sees “${keys[j]}”: the score ${short(found.scores[i][j])} stays.`)],
    5: () => [h("p", {}, "Each score s becomes eˢ, divided by the sum of its row, so that the weights of ", query(), " add up to 1. The row's highest score is taken off first: that changes no weight, and no number grows too large."),
      ...turned(seen, "softmax →", { values: found.weights, kind: "share", hidden, caption: "Weights" }, (i, j) => `“${queries[i]}”, “${keys[j]}”: exp(${short(found.scores[i][j])} − ${short(highest(found, i))}) = ${number(found.powers[i][j])}; ${number(found.powers[i][j])} ÷ ${number(total(found.powers[i]))} = ${number(found.weights[i][j])}`, "row"),
      sums(keys.map((_, i) => [key(i), found.visible[row][i] ? exponential(found.scores[row][i], highest(found, row), own(found.powers[row][i], i), total(found.powers[row])) : "hidden", own(found.weights[row][i], i)]))],
    6: () => [h("p", {}, "The values are added up, each times its weight: this is the output for ", query(), "."),
      ...equation([{ values: found.weights, kind: "share", hidden, caption: "Weights", ...all }, "×", { values: found.v, caption: "V", keys: true, colours: true, shift }, "=", { values: found.output, caption: "Output", highlight: row, colours: true }],
        { from: () => [[0, "row"], [1, "column"]], tell: (i, j) => `“${queries[i]}”, channel ${j + 1}: ${dot(found.weights[i], found.v.map((each) => each[j]), found.output[i][j])}`, choose, at: [row, 0] }),
      sums([...keys.map((_, i) => [key(i), [own(found.weights[row][i], i), " × ", tinted(vector(found.v[i], (value) => number(value, 3)), i, "column", shift)], tinted(vector(found.parts[row][i]), i, "column", shift)]),
        ["sum", "", tinted(vector(found.output[row]), row, "row")]], true)],
  };
  return inPlace(parts, values, STAGES, stagesOf(setIn(values)));
}
