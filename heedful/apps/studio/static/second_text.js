// What goes with a text: a translation, a continuation or a second text; typed, or the model's own.

import { choice, text } from "./controls.js";
import { h } from "./dom.js";

const KINDS = {
  translator: { label: "Translation", usual: "own", options: [["own", "the model's own"], ["typed", "typed"]] },
  causal_lm: { label: "Continuation", usual: "none", options: [["none", "none"], ["own", "the model's own"], ["typed", "typed"]] },
  encoder: { label: "Second text", usual: "none", options: [["none", "none"], ["typed", "typed"]] },
};

/**
 * Controls for the settings `given` and `second` of a page that has `model` and `text`.
 * @param kindOf tells the kind of the model that is chosen
 */
export function secondText(state, kindOf) {
  const given = choice(state, "given", { label: "Second", options: [["", "…"]] });
  const second = text(state, "second", { label: "Second", rows: 2 });
  const answer = h("p", { class: "sentence own-text", dir: "auto" });
  const kind = () => KINDS[kindOf()] ?? KINDS.encoder;
  const chosen = () => state.values.given || kind().usual;
  let own = "";
  given.querySelector("select").addEventListener("change", () => {
    // What the model wrote is a good start for what a person wants to change.
    if (chosen() === "typed" && state.values.second === "" && own) state.set({ second: own });
  });
  return {
    elements: [given, second],
    answer,
    /** What a call is asked with. */
    asked() {
      const typed = chosen() === "typed";
      return { model: state.values.model, text: state.values.text, second: typed ? state.values.second : "", given: chosen() };
    },
    /** Fit the controls to the model. */
    arrange() {
      const { label, options } = kind();
      given.querySelector("label").textContent = label;
      given.fill(options);
      given.querySelector("select").value = chosen();
      second.querySelector("label").textContent = `${label}, typed`;
      second.hidden = chosen() !== "typed";
    },
    /** Show what the model wrote. */
    written(target) {
      const mine = chosen() === "own";
      own = mine ? target ?? "" : own;
      answer.hidden = !mine;
      answer.replaceChildren(`${kind().label}: `, h("bdi", { id: "written" }, own || "(nothing)"));
    },
  };
}
