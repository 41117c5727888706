// Who hears whom in the mixer of a block: each token falls silent, and every output is looked at.

import { call, live, StudioError } from "./api.js";
import { choice } from "./controls.js";
import { figure, folded, foldedSection, h, number } from "./dom.js";
import { heatMap } from "./draw/heat.js";
import { shownPiece } from "./draw/links.js";

export const hearingDefaults = { stack: "", block: -1 };

/** An answer, or why there is none: of a text that cannot be read the page says so above already. */
async function unlessRefused(ask) {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof StudioError && !error.away) return { why: `${error.message}.${error.remedy ? ` ${error.remedy}.` : ""}` };
    throw error;
  }
}

/**
 * Add the section to a page that has `model`, `text` and a second text.
 * @return {ask, changed: to be called with the names of changed settings}
 */
export function hearing(root, state, second) {
  const stack = choice(state, "stack", { label: "Stack", options: [["", "…"]] });
  const block = choice(state, "block", { label: "Block", options: [[-1, "the last"], ...(state.values.block < 0 ? [] : [[state.values.block, String(state.values.block + 1)]])] });
  const body = h("div", {});
  const place = foldedSection("Who hears whom, and how much",
    h("p", {}, "Each token falls silent in turn: the layer reads zeros in its place. What then changes in the output of another token is what that one had heard of it."),
    h("div", { class: "row walk" }, stack, block), body);
  place.open = state.differs(Object.keys(hearingDefaults));
  place.addEventListener("toggle", () => place.open && ask());
  root.append(place);
  const about = h("p", { class: "sentence" });
  const heard = figure("What each token hears");
  const weights = figure("Attention weights of the same layer");
  const fading = figure("By distance");
  const pictures = h("div", {}, about, h("div", { class: "columns" }, heard.element, weights.element), folded("By distance", fading.element));

  // The model reads the text once for each token, so nothing is asked for before it is seen.
  const ask = live(body, (signal) => {
    if (!place.open) return null;
    const asked = second.asked();
    return asked.text.trim() === "" ? null : unlessRefused(() => call("attention", "influence", { ...asked, stack: state.values.stack, block: state.values.block }, signal));
  }, (found) => {
    if (found === null || found.why) {
      body.replaceChildren(...(found ? [h("p", { class: "note" }, found.why)] : []));
      return;
    }
    if (!pictures.isConnected) body.replaceChildren(pictures);
    stack.hidden = Object.keys(found.stacks).length < 2;
    stack.fill(Object.keys(found.stacks).map((name) => [name, name]));
    stack.querySelector("select").value = found.stack;
    block.fill(Array.from({ length: found.stacks[found.stack] }, (_, i) => [i, String(i + 1)]));
    block.querySelector("select").value = String(found.block);
    return show(found);
  });

  async function show(found) {
    const names = found.pieces.map(shownPiece);
    const sides = { rows: { label: "output of", names }, columns: { label: "silent", names } };
    about.textContent = `Block ${found.block + 1} of the ${found.stack}, ${found.kind}.${found.kind === "attention" ? "" : ` ${found.about}`}`;
    heard.words.textContent = "How much the output of a row changes when the token of a column is silent; 0: it is not heard at all.";
    heatMap(heard.host, {
      values: found.changes, kind: "sequence", cell: 30, ...sides, describe: `What each of ${names.length} tokens hears of each other in block ${found.block + 1} of the ${found.stack}.`,
      readout: (i, j, value) => `without ${names[j]}, the output of ${names[i]} changes by ${number(value, 3)} of its length`,
    });
    weights.element.hidden = found.weights === null;
    if (found.weights !== null) {
      weights.words.textContent = "The mean of its heads. A large weight on a short value is hardly heard.";
      heatMap(weights.host, { values: found.weights, kind: "sequence", cell: 30, rows: { label: "query", names }, columns: { label: "key", names }, describe: "Attention weights, the mean of the heads." });
    }
    const line = (name, values, more = {}) => ({ name, dots: true, points: values.map((value, distance) => [distance, value]), ...more });
    const looksAhead = found.after.some((value, distance) => distance && value > 0);
    const looksBack = found.before.some((value, distance) => distance && value > 0);
    fading.words.textContent = "How much of a token is heard so many places away from it, the mean over the text.";
    const { lineChart } = await import("./draw/lines.js"); // with D3, which the page needs for no more
    lineChart(fading.host, {
      series: [looksBack || !looksAhead ? line("a token before", found.before) : null, looksAhead ? line("a token after", found.after, { colour: 1, dashed: true }) : null].filter(Boolean),
      x: { label: "distance in tokens" }, y: { label: "change", zero: true }, height: 260, describe: "What is heard of a token, by its distance.",
    });
  }

  return {
    ask,
    open() {
      place.open = true;
    },
    changed(names) {
      if (names.some((name) => name in hearingDefaults)) place.open = true;
      if (names.length === 1 && names[0] === "stack") state.set({ block: -1 });
      if (names.some((name) => ["model", "text", "second", "given", "stack", "block"].includes(name))) ask();
    },
  };
}
