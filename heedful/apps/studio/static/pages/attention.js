import { addressOf } from "../address.js";
import { call, live, StudioError } from "../api.js";
import { button, check, choice, more, panel, slider, tabs } from "../controls.js";
import { figure, folded, foldedSection, h, number, table } from "../dom.js";
import { heatMap } from "../draw/heat.js";
import { headGrid, markHead, nameHeads } from "../draw/head_grid.js";
import { headColour, linkPicture, shownPiece, spokenPiece } from "../draw/links.js";
import { neuronPicture } from "../draw/neurons.js";
import { hearing, hearingDefaults } from "../hearing.js";
import { relationEvidence, relationName, relationSection } from "../relation_heads.js";
import { secondText } from "../second_text.js";
import { exampleHead, noModel, notedHead, pieceOf, placesOf, subjectDefaults, subjectFields } from "../subject.js";
import { joinWords, weightMaps, wordRow } from "../words.js";

export const kinds = ["translator", "causal_lm", "encoder"];
export const wide = true;
const ALL = "all";
const MOST_CELLS = 900; // of a matrix that is drawn small beside the lines

const PARTS = {
  encoder: ["Encoder", "Words of the text attend to each other.", "Encoder self-attention"],
  decoder: ["Decoder", "Each word attends to itself and to the words before it.", "Decoder self-attention"],
  cross: ["Cross", "The word that is being written attends to the words of the text.", "Cross-attention"],
};

const SIDES = {
  encoder: ["query", "key"],
  decoder: ["query", "key"],
  cross: ["being written", "the text"],
};

export const counted = ["layer", "heads", "block"];

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), second: "", given: "", part: "", layer: -1,
  heads: [ALL], view: "lines", words: false, least: 0.02, row: -1, column: -1, corpus: "", ...hearingDefaults,
  ...notedHead(studio, subjectDefaults(studio, kinds).model),
});

export function mount({ root, below, side, state, studio }) {
  const models = placesOf(studio, kinds);
  if (!models.length) {
    root.append(noModel("a translator, a language model or a text encoder"));
    return;
  }
  openAtOwnHead(state, studio);
  const kindOf = () => models.find((place) => place.name === state.values.model)?.kind ?? "";
  const second = secondText(state, kindOf);
  const part = choice(state, "part", { label: "Attention of", options: [["", "…"], ...Object.entries(PARTS).map(([name, [title]]) => [name, title])] });
  const layer = choice(state, "layer", { label: "Layer", options: [[-1, "the last"], ...(state.values.layer < 0 ? [] : [[state.values.layer, String(state.values.layer + 1)]])] });
  const heads = h("fieldset", { class: "field several" });
  const body = h("div", { class: "result" });
  const whole = figure("All heads");
  whole.element.classList.add("overview");
  const view = tabs(state, "view", { label: "Drawn as", options: [["lines", "Lines"], ["matrix", "Matrix"], ["strips", "All heads, one word"], ["neurons", "Query · key"]] });
  const others = more("More settings", ...second.elements, slider(state, "least", { label: "Lines from this weight on", min: 0, max: 0.9, step: 0.01 }), check(state, "words", { label: "Join pieces to words" }));
  others.open = state.differs(["given", "second", "least", "words"]);
  side.append(panel(...subjectFields(state, studio, kinds, { rows: 1, hint: "Up to 4,000 characters, and as many pieces as the model takes." }), others));
  const evidence = h("p", { class: "note" });
  const measured = folded("What was measured of this head", evidence);
  const matrix = figure("The same as a matrix");
  const beside = h("div", {}, whole.element, heads, measured, matrix.element);
  const which = h("div", { class: "row which" }, view, part, layer);
  root.append(which, h("div", { class: "pair" }, body, beside));
  const hears = hearing(below, state, second);
  const named = labelled(below, state, (head) => relationName(studio, state.values.model, head));
  const relations = h("div", {});
  named.element.append(relations);
  const relate = () => relations.replaceChildren(relationSection(studio, state.values.model,
    (each) => state.set({ part: each.part === last?.part ? state.values.part : each.part, layer: each.layer - 1, heads: [String(each.head - 1)] }, { step: true })));

  let last = null;
  let clicked = false;
  let awaited = true; // whether what is asked for has not come yet: names of heads may come before it
  let opens = !/[?&](row|column)=/.test(location.search); // nobody has chosen a word yet
  const choose = (next) => {
    clicked = true; // the picture shows it already
    state.set({ row: next?.side === "row" ? next.index : -1, column: next?.side === "column" ? next.index : -1 }, { step: true });
    clicked = false;
  };
  /** Choose the word that the model's card points at, where the text has it; of a decoder without one the last word. */
  function point(word) {
    opens = false;
    clicked = true;
    const final = last.part === "decoder" && state.values.part === "decoder" ? last.rows.pieces.findLastIndex((piece, i) => !last.rows.special[i] && /\p{L}/u.test(piece)) : -1;
    state.set({ row: word ? pieceOf(last.rows.pieces, word) : final });
    clicked = false;
  }
  const ask = live(body, async (signal) => {
    const asked = second.asked();
    if (asked.text.trim() === "") return null;
    const { part: wanted, layer: number, heads: on } = state.values;
    const chosen = on.includes(ALL) ? null : on.map(Number).sort((a, b) => a - b);
    const of = (some) => call("attention", "show", { ...asked, part: wanted, layer: number, heads: some }, signal);
    const all = await of(null);
    // Of a long text not all heads fit into an answer: those that are missing are asked for by name.
    const narrow = chosen?.some((head) => !all.heads?.includes(head)) && all.parts.length > 0;
    const found = narrow ? await of(chosen) : all;
    return found.parts.length === 0 ? found : { ...found, narrow, maps: weightMaps(found) };
  }, (found) => {
    last = found;
    awaited = false;
    show();
  });

  function on() {
    const chosen = state.values.heads;
    return chosen.includes(ALL) ? [...last.maps.keys()] : chosen.map(Number).sort((a, b) => a - b);
  }
  function show() {
    const region = [...body.children].filter((child) => !child.classList.contains("problem"));
    for (const old of region) old.remove();
    const weightless = last?.parts.length === 0;
    heads.hidden = last === null;
    for (const each of [which, beside, named.element]) each.hidden = weightless;
    if (last === null) {
      body.append(h("p", { class: "note" }, "Type a text, or choose an example."));
      return;
    }
    second.written(last.target);
    if (weightless) {
      hears.open(); // the only measure of such a model
      body.append(second.answer, h("p", { class: "sentence" }, `No layer of this model has attention weights: its tokens exchange information by ${last.mixers.join(", ")}. Who hears whom, and how much, is measured all the same: it stands below.`));
      return;
    }
    const place = models.find(({ name }) => name === state.values.model);
    if (opens && !awaited && state.values.row < 0) point(exampleHead(studio, place.name, last.part)?.word);
    const own = last.parts.find((each) => each.part === last.part);
    part.fill(last.parts.map((each) => [each.part, PARTS[each.part][0]]));
    part.querySelector("select").value = last.part;
    layer.fill(own.blocks.map((block, i) => [i, i === own.blocks.length - 1 ? `${block + 1}, the last` : String(block + 1)]));
    layer.querySelector("select").value = String(last.layer);
    headButtons(heads, { state, own, on: on(), last, named: named.found(), relationOf: (head) => relationName(studio, state.values.model, { ...last, head }) });
    evidence.textContent = on().length === 1 ? relationEvidence(studio, state.values.model, { ...last, head: on()[0] }) : "";
    measured.hidden = evidence.textContent === "";
    draw(body, { state, last: { ...last, answer: second.answer, requested: second.asked(), kind: place?.kind }, own, on: on(), choose, matrix });
    mark();
  }
  const mark = () => markHead(whole.host, last.layer, on());
  /** What rows and columns are, and a dotted frame where there is one. */
  const explain = () => {
    const named = [...whole.host.querySelectorAll(".named")].some((each) => each.getAttribute("aria-pressed") !== "true");
    whole.words.replaceChildren("A row for each layer, a column for each head. Click one.", ...(named ? [" ", h("span", { class: "thumb named example" }), " has a name: point at it."] : []));
  };
  const oversee = live(whole.element, (signal) => {
    const asked = second.asked();
    if (asked.text.trim() === "") return null;
    return unlessRefused(() => call("attention", "overview", { ...asked, part: state.values.part }, signal)); // the lines say why
  }, (found) => {
    whole.element.hidden = found === null;
    if (found === null) return;
    headGrid(whole.host, found, (l, head) => state.set({ layer: l, heads: [String(head)] }, { step: true }), nameOf);
    explain();
    if (last) mark();
  });

  state.watch((values, changed) => {
    if (clicked) return;
    state.set(begun(changed, notedHead(studio, values.model), exampleHead(studio, values.model, values.part)));
    opens = ["model", "part"].includes(changed[0]) || (opens && !changed.includes("row") && !changed.includes("column"));
    second.arrange();
    if (changed.includes("model")) relate();
    const local = changed.every((name) => ["heads", "view", "row", "column", "corpus", "least", "words", ...Object.keys(hearingDefaults)].includes(name));
    if (local && drawable()) show();
    else {
      awaited = true;
      ask();
    }
    if (changed.some((name) => ["model", "text", "second", "given", "part"].includes(name))) oversee();
    hears.changed(changed);
  });
  const nameOf = (l, head) => {
    const answer = named.found();
    const label = answer && answer.part === (last?.part ?? answer.part) ? answer.labels.find((each) => each.layer === l && each.head === head) : null;
    const pattern = label?.clear ? label.kind : undefined;
    const relation = last ? relationName(studio, state.values.model, { part: last.part, layer: l, head }) : undefined;
    return namesOf(pattern, relation);
  };
  // What is drawn may be of the part before, while the weights of the chosen one are on their way.
  const drawable = () => last && (last.parts.length === 0 || (on().every((head) => last.maps.has(head)) && !(last.narrow && state.values.heads.includes(ALL))));
  named.watch(() => {
    nameHeads(whole.host, nameOf);
    explain();
    if (drawable()) show();
  });
  second.arrange();
  relate();
  ask();
  oversee();
  hears.ask();
}

/** The names of a head, of its pattern and of what it finds; undefined without one. */
const namesOf = (pattern, relation) => [relation, pattern].filter(Boolean).join("; ") || undefined;

const NOBODY = { row: -1, column: -1 };

/** What begins anew when one thing alone is chosen: what was set for another text or model. */
function begun(changed, noted, own) {
  if (changed.length !== 1) return {};
  if (changed[0] === "model") return { ...NOBODY, ...hearingDefaults, part: "", layer: -1, heads: [ALL], given: "", second: "", ...noted };
  if (changed[0] === "part") return { ...NOBODY, layer: -1, heads: [ALL], ...headOf(own) };
  return ["text", "second", "given"].includes(changed[0]) ? NOBODY : {};
}

/** The defaults are those of the first model and its noted part: others, of the address or of the page before, have their own. */
function openAtOwnHead(state, studio) {
  const { model, part } = state.values;
  const query = new URLSearchParams(location.search);
  if (model === subjectDefaults(studio, kinds).model && !query.has("part")) return;
  const own = { part: "", layer: -1, heads: [ALL], ...(query.has("part") ? headOf(exampleHead(studio, model, part)) : notedHead(studio, model)) };
  state.set(Object.fromEntries(Object.entries(own).filter(([name]) => !query.has(name))));
}

const headOf = (own) => own && { layer: own.layer - 1, heads: [String(own.head - 1)] };

/** A button for each head of the layer, in its colour and with its name where it has one. */
function headButtons(place, { state, own, on, last, named, relationOf }) {
  const set = (heads) => state.set({ heads: heads.length === own.heads ? [ALL] : heads.map(String) }, { step: true });
  const all = Array.from({ length: own.heads }, (_, head) => head);
  const focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(h("legend", { title: "A click turns a head on or off, a double click leaves it alone" }, "Heads"), ...all.map((head) => {
    const label = named?.part === last.part ? named.labels.find((each) => each.layer === last.layer && each.head === head) : null;
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = headColour(head, own.heads);
    const relation = relationOf(head);
    return h("button", {
      type: "button", class: "quiet head", "aria-pressed": String(on.includes(head)), title: label?.why, "data-head": head,
      onclick: (event) => set(event.detail === 2 ? [head] : all.filter((each) => on.includes(each) !== (each === head))),
    }, swatch, String(head + 1), relation ? h("span", { class: "label" }, relation) : null, label?.clear ? h("span", { class: "label" }, label.kind) : null);
  }), button("All", () => state.set({ heads: [ALL] }, { step: true }), { quiet: true }), button("None", () => set([]), { quiet: true }));
  if (focused > 0) place.children[focused]?.focus();
}

function draw(body, { state, last, own, on, choose, matrix }) {
  const { view } = state.values;
  const shown = state.values.words && view !== "neurons" ? joinWords(last) : last;
  const [rows, columns] = [shown.rows.pieces, shown.columns.pieces];
  const [looking, lookedAt] = SIDES[last.part];
  const weightsOf = (some) => some.map((head) => ({ head, weights: shown.maps.get(head) }));
  const heads = weightsOf(on);
  // One head stands among the others of its layer, which tell how it differs.
  const others = on.length === 1 ? weightsOf([...shown.maps.keys()].filter((head) => head !== on[0])) : [];
  const picture = figure(`${PARTS[last.part][2]}, layer ${own.blocks[last.layer] + 1}${on.length === 1 ? `, head ${on[0] + 1}` : ""}`);
  const left = own.heads - last.maps.size;
  picture.words.textContent = `${PARTS[last.part][1]}${view === "lines" ? "" : ` ${rows.length} × ${columns.length} weights for each head.`}`;
  matrix.element.hidden = view !== "lines" || !heads.length || rows.length * columns.length > MOST_CELLS;
  matrix.host.replaceChildren();
  body.append(last.answer, left && state.values.heads.includes(ALL)
    ? h("p", { class: "note" }, `Of ${own.heads} heads the first ${last.maps.size} are shown, as the text is long; choose others beside it.`) : "", picture.element, effects(last), folded("In Python", () => inPython(last)));
  if (!heads.length && view !== "lines") {
    picture.host.append(h("p", { class: "note" }, "All heads are off."));
    return;
  }
  const chosen = chosenWord(state.values, shown);
  // Settings name a piece; of a word that is the first.
  const pick = (next) => choose(next && { side: next.side, index: shown === last ? next.index : last[`${next.side}s`].words.indexOf(next.index) });
  const query = chosen?.side === "row" ? chosen.index : 0;
  const words = () => wordRow({ pieces: rows, chosen: query, choose: (row) => state.set({ row: state.values.words && shown !== last ? last.rows.words.indexOf(row) : row, column: -1 }, { step: true }), label: "Click a word to make it the query" });
  const names = { rows: { label: looking, names: rows.map(shownPiece) }, columns: { label: lookedAt, names: columns.map(shownPiece) } };
  if (view === "neurons") neurons(picture, state, { head: on[0], query, words, asked: last.requested });
  else if (view === "strips") strips(picture, { heads: [...heads, ...others].sort((a, b) => a.head - b.head), alone: others.length ? on[0] : -1, query, words, own, names, columns });
  else if (view === "matrix") matrixOf(picture, { heads, rows, columns, names, chosen, pick });
  else {
    if (!matrix.element.hidden) matrixOf(matrix, { heads, rows, columns, names, chosen, pick });
    linkPicture(picture.host, {
      rows: { pieces: rows, label: looking }, columns: { pieces: columns, label: lookedAt }, heads, others, chosen,
      colour: (head) => headColour(head, own.heads), choose: pick, least: state.values.least,
    });
  }
}

/** The word that is chosen, by its index among those that are shown. */
function chosenWord({ row, column }, { rows, columns }) {
  const index = (side, piece) => (side.pieces.length === side.words.length ? piece : side.words[piece]);
  if (row >= 0 && row < rows.words.length) return { side: "row", index: index(rows, row) };
  return column >= 0 && column < columns.words.length ? { side: "column", index: index(columns, column) } : null;
}

/** A weight says how much is taken, and not how much that matters: where the effect is measured. */
function effects({ requested: { model, text }, kind }) {
  const page = { translator: "translate", causal_lm: "decoding" }[kind];
  return h("p", { class: "note" }, "A large weight is not yet a large effect: that is measured ",
    page ? [h("a", { href: addressOf(page, new URLSearchParams({ model, text }).toString()) }, "in Why this word?"), ", and for a layer below."] : "below.");
}

function inPython(last) {
  return h("p", {}, "These numbers are ", h("code", {}, `${last.address}.weights`),
    ` of heedful.inspect, ${last.rows.pieces.length} × ${last.columns.pieces.length} for each head. Python counts layers and heads from 0.`);
}

/** The mean of the heads as a matrix; a click on a row makes its word the query. */
function matrixOf(picture, { heads, rows, columns, names, chosen, pick }) {
  const mean = rows.map((_, i) => Array.from(columns, (_, j) => heads.reduce((sum, { weights }) => sum + weights[i * columns.length + j], 0) / heads.length));
  heatMap(picture.host, {
    values: mean, kind: "sequence", cell: 30, ...names, marked: chosen, choose: (i) => pick({ side: "row", index: i }),
    describe: `Attention, ${heads.length === 1 ? `head ${heads[0].head + 1}` : `mean of ${heads.length} heads`}.`,
  });
}

/** What each head gives the query: a strip of colours for each. */
function strips(picture, { heads, alone, query, words, columns, own, names }) {
  const host = h("div", { class: "drawing" });
  picture.host.append(h("p", { class: "note" }, "A strip for each head. Click a word to make it the query."), words(), host);
  heatMap(host, {
    values: heads.map(({ weights }) => [...weights.subarray(query * columns.length, (query + 1) * columns.length)]), kind: "share", cell: 34,
    rows: { label: "head", names: heads.map(({ head }) => `head ${head + 1}`) }, columns: names.columns,
    marked: alone < 0 ? undefined : { side: "row", index: heads.findIndex(({ head }) => head === alone) },
    describe: `What ${heads.length} of ${own.heads} heads give “${spokenPiece(names.rows.names[query])}”.`,
  });
}

/** Query, keys and products of one head, for the word that is chosen. */
function neurons(picture, state, { head, query, words, asked }) {
  const host = h("div", { class: "drawing" });
  picture.host.append(h("p", { class: "note" }, `Head ${head + 1}. Click a word to make it the query.`), words(), host);
  const { part, layer } = state.values;
  live(picture.element, (signal) => call("attention", "neurons", { ...asked, part, layer, head, row: query }, signal),
    (found) => neuronPicture(host, found))();
}

/** An answer, or null where the studio has none for good reasons. */
async function unlessRefused(ask) {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof StudioError && !error.away) return null;
    throw error;
  }
}

/** Names of heads, from sentences of the model or of the person. */
function labelled(below, state, relationOf) {
  const area = h("textarea", { id: "corpus", rows: 5, spellcheck: "false", dir: "auto" });
  area.value = state.values.corpus;
  const measure = button("Measure the heads", () => state.set({ corpus: area.value }, { step: true }));
  const host = h("div", {});
  const place = foldedSection("Names of the heads",
    h("p", {}, "A head has a name where its pattern is clear over many sentences: “previous” looks at the word before."), host,
    h("div", { class: "field wide" }, h("label", { for: "corpus" }, "Sentences of your own, one a line; a tab before a translation or second text"), area),
    h("p", { class: "row" }, measure));
  place.open = state.values.corpus !== "";
  below.append(place);
  let found = null;
  let tell = () => {};
  const clear = () => {
    for (const old of [...host.children]) if (!old.classList.contains("problem")) old.remove();
  };
  const ask = live(host, (signal) => {
    const { corpus, model, part } = state.values;
    clear();
    host.append(h("p", { class: "note", role: "status" }, "Measuring the heads on the sentences …"));
    const measured = () => call("attention", "labels", { corpus, model, part }, signal);
    return corpus.trim() ? measured() : unlessRefused(measured); // a model may have no sentences
  }, (answer) => {
    found = answer;
    clear();
    host.append(...(answer ? patterns(answer, relationOf) : [h("p", { class: "note" }, "This model comes with no sentences: type ten or more.")]));
    tell();
  });
  state.watch((values, changed) => {
    if (changed.includes("corpus")) area.value = values.corpus;
    if (["corpus", "model", "part"].some((name) => changed.includes(name))) {
      found = null;
      ask();
    }
  });
  ask();
  return { element: place, found: () => found, watch: (watcher) => { tell = watcher; } };
}

function patterns(answer, relationOf) {
  if (!answer.enough) {
    return [h("p", { class: "sentence" }, `${number(answer.sentences)} sentences, ${number(answer.rows)} rows of attention: too few to name a head. It takes ${answer.fewest[0]} sentences and ${answer.fewest[1]} rows.`)];
  }
  const [clear, lean] = [true, false].map((wanted) => answer.labels.filter((each) => each.clear === wanted));
  const rows = (labels) => table(`Heads with a pattern, ${PARTS[answer.part][0].toLowerCase()}`, ["layer.head", "name", "evidence", "why"],
    labels.map((each) => [`${each.layer + 1}.${each.head + 1}`, namesOf(each.kind, relationOf({ ...each, part: answer.part })), number(each.evidence, 2), each.why]));
  return [h("p", { class: "sentence" }, `${number(clear.length)} of ${number(answer.count)} heads ${clear.length === 1 ? "has" : "have"} a clear pattern on ${number(answer.sentences)} sentences.`),
    clear.length ? rows(clear) : "", lean.length ? folded(`${number(lean.length)} that only lean to a pattern`, () => rows(lean)) : ""];
}
