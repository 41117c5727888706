import { call, live } from "../api.js";
import { button, choice, panel, slider, text } from "../controls.js";
import { figure, folded, h, number } from "../dom.js";
import { facts } from "../draw/facts.js";
import { heatMap } from "../draw/heat.js";

export const defaults = () => ({
  mask: "causal", length: 16, padding: 0, segments: 1, bias: "none", heads: 8, head: 1, max_distance: 16,
});

const EXAMPLES = [
  ["causal", "Causal: a decoder"],
  ["everything", "Everything: an encoder"],
  ["window(3)", "Window: near on both sides"],
  ["causal & window(4)", "Causal window"],
  ["causal | prefix(5)", "Prefix language model"],
  ["window(3) | prefix(2)", "Window and global tokens"],
  ["causal & segment", "Packed texts, causal"],
  ["causal & strided(4)", "Strided (Sparse Transformer)"],
  ["causal & fixed(4, 1)", "Fixed (Sparse Transformer)"],
  ["dilated(3, 2)", "Dilated window"],
  ["window(2) | global(1)", "Window and global tokens (Longformer)"],
  ["window(2) | global(1) | random(2, 1, 16, 1)", "With random blocks (BigBird)"],
  ["window_2d(4, 2, 2)", "Window of an image, 4 columns"],
];
const PACKED = "causal & segment";
const SENTENCE = "The cat sat on the mat because it was tired and the sun was so warm".split(" ");

export async function mount({ root, side, state }) {
  const known = call("masks", "words");
  const words = folded("All words of masks", () => {
    const list = h("ul", { class: "note" });
    known.then((found) => list.append(...found.words.map(({ name, settings, about }) =>
      h("li", {}, h("code", {}, settings.length ? `${name}(${settings.join(", ")})` : name), ` ${about}`))));
    return list;
  });
  const examples = EXAMPLES.map(([mask, name]) =>
    button(name, () => state.set({ mask, segments: mask === PACKED ? 3 : 1 }, { step: true }), { quiet: true }));
  const biasControls = [
    slider(state, "heads", { label: "Heads", min: 1, max: 16 }),
    slider(state, "head", { label: "The head that is drawn", min: 1, max: 16 }),
    slider(state, "max_distance", { label: "Distance where the last bucket begins", min: 1, max: 64 }),
  ];
  const pictures = h("div", {});
  side.append(
    panel(
      h("div", { class: "field examples", role: "group", "aria-label": "Examples" }, h("span", { class: "label" }, "Examples"), examples),
      text(state, "mask", { label: "Mask: combine with & and |", code: true }),
      words,
      slider(state, "length", { label: "Tokens", min: 2, max: 64 }),
      slider(state, "padding", { label: "Padding at the end", min: 0, max: 16 }),
      slider(state, "segments", { label: "Texts packed into the row", min: 1, max: 8 }),
      choice(state, "bias", { label: "Bias", options: [["none", "none"], ["alibi", "ALiBi"], ["t5", "T5 buckets"], ["relative_keys", "relative keys (Shaw)"]] }),
      ...biasControls));
  root.append(pictures);
  const show = drawn(pictures, state);
  const ask = live(root, (signal) => call("masks", "draw", state.values, signal), show);
  const arrange = ({ mask, bias }) => {
    examples.forEach((each, i) => each.setAttribute("aria-pressed", String(EXAMPLES[i][0] === mask)));
    biasControls[0].hidden = biasControls[1].hidden = bias === "none";
    biasControls[2].hidden = bias !== "t5" && bias !== "relative_keys";
  };
  state.watch((values) => {
    arrange(values);
    ask();
  });
  arrange(state.values);
  ask();
  await known;
}

function drawn(host, state) {
  const who = figure("Visible pairs");
  const added = figure("Bias of each score");
  const left = figure("Weights that remain", "When all queries and keys are alike. Colours follow the square root of the weight, so that small ones are seen.");
  const sentence = h("p", { class: "sentence" });
  const numbers = h("div", {});
  host.append(sentence, numbers, h("div", { class: "columns" }, who.element, added.element, left.element));
  return (found) => {
    const length = found.visible.length;
    const hidden = found.visible.map((row) => row.map((seen) => !seen));
    const spoken = !found.segments && length <= SENTENCE.length; // then words of a sentence stand for the positions
    const names = found.positions.map((position, i) => (position < 0 ? "–" : spoken ? SENTENCE[position] : found.segments ? `${"abcdefgh"[found.segments[i]]}${position}` : position));
    const sides = { rows: { label: "query", names }, columns: { label: "key", names } };
    sentence.textContent = found.sentence;
    numbers.replaceChildren(facts([
      ["visible pairs", `${number(found.seen)} of ${number(found.pairs)}`, "seen"],
      ["share", `${number((100 * found.seen) / found.pairs, 3)} %`, "share"],
      ["keys of the last query, from 0", found.bounds.map(([first, last]) => `${first} to ${last}`).join(", ") || "none", "bounds"],
    ]));
    heatMap(who.host, {
      values: found.visible, kind: "share", binary: true, ...sides,
      describe: `${length} queries by ${length} keys. ${found.sentence}`,
      readout: (i, j, seen) => `query ${names[i]} ${seen ? "sees" : "does not see"} key ${names[j]}`,
    });
    added.element.hidden = found.added === null;
    if (found.added !== null) {
      heatMap(added.host, { values: found.added, kind: "diverging", hidden, ...sides, describe: `The number that head ${state.values.head} adds to each score.` });
      added.words.textContent = state.values.bias === "alibi" ? "" : "Training learns these numbers. Here they are random, to show which pairs share one.";
    }
    heatMap(left.host, { values: found.weights, kind: "sequence", shade: Math.sqrt, ends: ["0", "1"], hidden, ...sides, describe: "Weights when all raw scores are equal." });
  };
}
