import { call, live, problem, StudioError } from "../api.js";
import { button, choice, panel, slider } from "../controls.js";
import { figure, h, number, section, table } from "../dom.js";
import { heatMap } from "../draw/heat.js";
import { headGrid, markHead } from "../draw/head_grid.js";
import { headColour, linkPicture, shownPiece } from "../draw/links.js";
import { neuronPicture } from "../draw/neurons.js";
import { secondText } from "../second_text.js";
import { noModel, placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const kinds = ["translator", "causal_lm", "encoder"];
const ALL = "all";
const MOST_COLOURS = 8; // that a chart tells apart

const PARTS = {
  encoder: ["Encoder", "Words of the text attend to each other."],
  decoder: ["Decoder", "Each word attends to itself and to the words before it."],
  cross: ["Cross", "The word that is being written attends to the words of the text."],
};

const SIDES = {
  encoder: ["query", "key"],
  decoder: ["query", "key"],
  cross: ["being written", "words of the text"],
};

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), second: "", given: "", part: "", layer: -1,
  heads: [ALL], view: "lines", least: 0.02, row: -1, column: -1, corpus: "",
});

/** Numbers from base64, row after row, a head at a time. */
function unpack({ shape, float32 }) {
  const bytes = Uint8Array.from(atob(float32), (letter) => letter.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  const size = shape[1] * shape[2];
  return Array.from({ length: shape[0] }, (_, i) => numbers.subarray(i * size, (i + 1) * size));
}

export function mount({ root, side, state, studio }) {
  const models = placesOf(studio, kinds);
  if (!models.length) {
    root.append(noModel("a translator, a language model or a text encoder"));
    return;
  }
  const kindOf = () => models.find((place) => place.name === state.values.model)?.kind ?? "";
  const second = secondText(state, kindOf);
  const part = choice(state, "part", { label: "Attention of", options: [["", "…"], ...Object.entries(PARTS).map(([name, [title]]) => [name, title])] });
  const layer = choice(state, "layer", { label: "Layer", options: [[-1, "the last"], ...(state.values.layer < 0 ? [] : [[state.values.layer, String(state.values.layer + 1)]])] });
  const heads = h("fieldset", { class: "field several" });
  const body = h("div", { class: "result" });
  const whole = figure("All heads");
  whole.element.classList.add("overview");
  side.append(
    panel(...subjectFields(state, studio, kinds, { hint: "Up to 4,000 characters, and as many pieces as the model takes." }),
      ...second.elements, part, layer,
      choice(state, "view", { label: "Drawn as", options: [["lines", "lines between words"], ["matrix", "a matrix"], ["neurons", "query and keys, channel by channel"]] }),
    slider(state, "least", { label: "Lines from this weight on", min: 0, max: 0.9, step: 0.01 }), heads));
  root.append(h("div", { class: "pair" }, body, whole.element));
  const named = labelled(root, state);

  let last = null;
  let clicked = false;
  const choose = (next) => {
    clicked = true; // the picture shows it already
    state.set({ row: next?.side === "row" ? next.index : -1, column: next?.side === "column" ? next.index : -1 }, { step: true });
    clicked = false;
  };
  const ask = live(body, async (signal) => {
    const asked = second.asked();
    if (asked.text.trim() === "") return null;
    const { part: wanted, layer: number, heads: on } = state.values;
    const chosen = on.includes(ALL) ? null : on.map(Number).sort((a, b) => a - b);
    const found = await call("attention", "show", { ...asked, part: wanted, layer: number, heads: chosen?.length ? chosen : null }, signal);
    return { ...found, maps: new Map(unpack(found.weights).map((weights, i) => [found.heads[i], weights])) };
  }, (found) => {
    last = found;
    show();
  });

  function on() {
    const chosen = state.values.heads;
    return chosen.includes(ALL) ? [...last.maps.keys()] : chosen.map(Number).sort((a, b) => a - b);
  }
  function show() {
    const region = [...body.children].filter((child) => !child.classList.contains("problem"));
    for (const old of region) old.remove();
    heads.hidden = last === null;
    if (last === null) {
      body.append(h("p", { class: "note" }, "Type a text, or choose an example."));
      return;
    }
    const own = last.parts.find((each) => each.part === last.part);
    part.fill(last.parts.map((each) => [each.part, PARTS[each.part][0]]));
    part.querySelector("select").value = last.part;
    layer.fill(Array.from({ length: own.layers }, (_, i) => [i, i === own.layers - 1 ? `${i + 1}, the last` : String(i + 1)]));
    layer.querySelector("select").value = String(last.layer);
    second.written(last.target);
    headButtons(heads, { state, own, on: on(), last, named: named.found() });
    draw(body, { state, last: { ...last, answer: second.answer, asked: second.asked() }, own, on: on(), choose });
    if (on().length && state.values.view !== "neurons") body.append(savers(second.asked, last, on(), state.values.view));
    mark();
  }
  const mark = () => markHead(whole.host, last.layer, on());
  const oversee = live(whole.element, (signal) => {
    const asked = second.asked();
    if (asked.text.trim() === "") return null;
    return unlessRefused(() => call("attention", "overview", { ...asked, part: state.values.part }, signal)); // the lines say why
  }, (found) => {
    whole.element.hidden = found === null;
    if (found === null) return;
    whole.words.textContent = `A row for each layer, a column for each head: ${found.shape[0]} × ${found.shape[1]}. Dark is much attention. Click one to open it.`;
    headGrid(whole.host, found, (l, head) => state.set({ layer: l, heads: [String(head)] }, { step: true }));
    if (last) mark();
  });

  state.watch((values, changed) => {
    if (clicked) return;
    state.set(begun(changed));
    second.arrange();
    const local = changed.every((name) => ["heads", "view", "row", "column", "corpus", "least"].includes(name));
    if (local && last && on().every((head) => last.maps.has(head))) show();
    else ask();
    if (changed.some((name) => ["model", "text", "second", "given", "part"].includes(name))) oversee();
  });
  named.watch(() => last && show());
  second.arrange();
  ask();
  oversee();
}

const NOBODY = { row: -1, column: -1 };

/** What begins anew when one thing alone is chosen: what was set for another text or model. */
function begun(changed) {
  if (changed.length !== 1) return {};
  if (changed[0] === "model") return { ...NOBODY, part: "", layer: -1, heads: [ALL], given: "", second: "" };
  if (changed[0] === "part") return { ...NOBODY, layer: -1, heads: [ALL] };
  return ["text", "second", "given"].includes(changed[0]) ? NOBODY : {};
}

/** A button for each head of the layer, in its colour and with its name where it has one. */
function headButtons(place, { state, own, on, last, named }) {
  const set = (heads) => state.set({ heads: heads.length === own.heads ? [ALL] : heads.map(String) }, { step: true });
  const all = Array.from({ length: own.heads }, (_, head) => head);
  const focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(h("legend", {}, "Heads (double-click: one alone)"), ...all.map((head) => {
    const label = named?.part === last.part ? named.labels.find((each) => each.layer === last.layer && each.head === head) : null;
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = headColour(head, own.heads);
    return h("button", {
      type: "button", class: "quiet head", "aria-pressed": String(on.includes(head)), title: label?.why, "data-head": head,
      onclick: (event) => set(event.detail === 2 ? [head] : all.filter((each) => on.includes(each) !== (each === head))),
    }, swatch, String(head + 1), label ? h("span", { class: "label" }, label.kind) : null);
  }), button("All", () => state.set({ heads: [ALL] }, { step: true }), { quiet: true }), button("None", () => set([]), { quiet: true }));
  if (focused > 0) place.children[focused]?.focus();
}

function draw(body, { state, last, own, on, choose }) {
  const { row, column, view } = state.values;
  const [rows, columns] = [last.rows.pieces, last.columns.pieces];
  const [looking, lookedAt] = SIDES[last.part];
  const stack = last.part === "cross" ? "decoder" : last.part;
  const address = `${stack}.${last.layer}.${last.part === "cross" ? "cross" : "self"}.weights`;
  const heads = on.map((head) => ({ head, weights: last.maps.get(head) }));
  const picture = figure(`${PARTS[last.part][0]}, layer ${last.layer + 1}`);
  picture.asked = last.asked;
  picture.words.append(`${PARTS[last.part][1]} `, h("code", {}, address), `, ${rows.length} × ${columns.length}; where layers and heads are counted from 0.`);
  const left = own.heads - last.maps.size;
  body.append(last.answer, left && state.values.heads.includes(ALL)
    ? h("p", { class: "note" }, `Of ${own.heads} heads the first ${last.maps.size} are shown, as the text is long; choose others above.`) : "", picture.element);
  if (view === "neurons") {
    if (!heads.length) picture.host.append(h("p", { class: "note" }, "All heads are off."));
    else neurons(picture, state, on[0], rows);
    return;
  }
  if (view === "matrix") {
    const mean = rows.map((_, i) => Array.from(columns, (_, j) => heads.reduce((sum, { weights }) => sum + weights[i * columns.length + j], 0) / (heads.length || 1)));
    if (!heads.length) picture.host.append(h("p", { class: "note" }, "All heads are off."));
    else {
      heatMap(picture.host, {
        values: mean, kind: "sequence", cell: 30, rows: { label: looking, names: rows.map(shownPiece) }, columns: { label: lookedAt, names: columns.map(shownPiece) },
        describe: `Attention, ${heads.length === 1 ? `head ${on[0]}` : `mean of ${heads.length} heads`}.`,
      });
    }
    return;
  }
  const chosen = row >= 0 && row < rows.length ? { side: "row", index: row } : column >= 0 && column < columns.length ? { side: "column", index: column } : null;
  linkPicture(picture.host, {
    rows: { pieces: rows, label: looking }, columns: { pieces: columns, label: lookedAt }, heads, chosen,
    colour: (head) => headColour(head, own.heads),
    choose,
    least: state.values.least,
  });
  if (chosen?.side === "row") body.append(strips(heads, chosen.index, { rows, columns, own, lookedAt }));
}

/** What each head gives the chosen word: a strip of colours for each. */
function strips(heads, row, { rows, columns, own, lookedAt }) {
  const picture = figure(`Each head alone, for “${shownPiece(rows[row])}”`);
  queueMicrotask(() => heatMap(picture.host, {
    values: heads.map(({ weights }) => [...weights.subarray(row * columns.length, (row + 1) * columns.length)]), kind: "share", cell: 30,
    rows: { label: "head", names: heads.map(({ head }) => `head ${head + 1}`) }, columns: { label: lookedAt, names: columns.map(shownPiece) },
    describe: `The attention of ${heads.length} of ${own.heads} heads to each key.`,
  }));
  return picture.element;
}

/** Query, keys and products of one head, for the word that is chosen. */
function neurons(picture, state, head, rows) {
  const row = Math.min(rows.length - 1, Math.max(0, state.values.row));
  const word = h("select", { "aria-label": "The word to follow" }, rows.map((piece, i) => h("option", { value: i }, `${i + 1}: ${shownPiece(piece)}`)));
  word.value = String(row);
  word.addEventListener("change", () => state.set({ row: Number(word.value), column: -1 }, { step: true }));
  const host = h("div", { class: "drawing" });
  picture.host.append(h("p", { class: "row" }, h("label", {}, `Head ${head + 1}, the query of `, word)), host);
  const { part, layer } = state.values;
  const region = picture.element;
  live(region, (signal) => call("attention", "neurons", { ...picture.asked, part, layer, head, row }, signal),
    (found) => neuronPicture(host, found))();
}

/** Buttons that save what is shown as a file: the chart that `heedful inspect -o` writes. */
function savers(asked, last, heads, view) {
  const place = h("p", { class: "row" }, h("span", {}, "Save the picture as"), ...["svg", "png", "html"].map((kind) => button(kind.toUpperCase(), async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    place.parentElement.querySelector(".unsaved")?.remove();
    try {
      const file = await call("attention", "picture", { ...asked(), part: last.part, layers: [last.layer], heads, view, each: heads.length > 1 && heads.length <= MOST_COLOURS, kind });
      const bytes = Uint8Array.from(atob(file.content), (letter) => letter.charCodeAt(0));
      const address = URL.createObjectURL(new Blob([bytes], { type: file.type }));
      h("a", { href: address, download: file.name }).click();
      URL.revokeObjectURL(address);
    } catch (error) {
      place.after(h("div", { class: "unsaved" }, problem(error)));
    }
    pressed.disabled = false;
  }, { quiet: true })));
  return place;
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

/** Names of heads, from sentences that a person gives. */
function labelled(root, state) {
  const area = h("textarea", { id: "corpus", rows: 5, spellcheck: "false", dir: "auto" });
  area.value = state.values.corpus;
  const measure = button("Measure the heads", () => state.set({ corpus: area.value }, { step: true }));
  const host = h("div", {});
  const place = section("Labels of the heads",
    h("p", {}, "A head gets a name where its pattern is clear over at least ten sentences and a hundred words: for example if most of its attention is on the word before. Most heads do several things and get none. With no sentences of yours, those that come with the model are taken."),
    h("div", { class: "field wide" }, h("label", { for: "corpus" }, "Sentences, one a line; a tab before a translation or second text"), area),
    h("p", { class: "row" }, measure), host);
  root.append(place);
  let found = null;
  let tell = () => {};
  const ask = live(host, (signal) => {
    const { corpus, model, part } = state.values;
    const measured = () => call("attention", "labels", { corpus, model, part }, signal);
    return corpus.trim() ? measured() : unlessRefused(measured); // a model may have no sentences
  }, (answer) => {
    found = answer;
    for (const old of [...host.children]) if (!old.classList.contains("problem")) old.remove();
    if (answer) host.append(...evidence(answer));
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
  return { found: () => found, watch: (watcher) => { tell = watcher; } };
}

function evidence(answer) {
  const read = `${number(answer.sentences)} sentences, ${number(answer.rows)} rows of attention`;
  if (!answer.enough) {
    return [h("p", { class: "sentence" }, `${read}: too few to name a head. It takes ${answer.fewest[0]} sentences and ${answer.fewest[1]} rows.`)];
  }
  return [h("p", { class: "sentence" }, `${read}: ${number(answer.labels.length)} of ${number(answer.count)} heads of this part have a clear pattern.`),
    answer.labels.length ? table(`Heads with a name, ${PARTS[answer.part][0].toLowerCase()}`, ["layer.head", "name", "evidence", "why"],
      answer.labels.map((each) => [`${each.layer + 1}.${each.head + 1}`, each.kind, number(each.evidence, 2), each.why])) : ""];
}
