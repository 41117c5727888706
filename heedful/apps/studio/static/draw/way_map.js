// The small map of the tour: the stops in the boxes they belong to, and a sign where one is.

import { h } from "../dom.js";

/** The name of a stop, which may depend on the model. */
export const nameOf = (stop, found) => stop.names?.(found) ?? stop.name;

/** Stops by their names; a box has a stop of its own as its title, or a title alone. */
const MAP = ["Model", "Pieces", "Embedding",
  { stop: "Blocks", words: (found) => `Block, one of ${found?.layers ?? "several"}`, inside: [
    { words: (found) => `Attention, one head of ${found?.heads ?? "several"}`, inside: ["Head", "Scores", "Softmax", "Values"] }, "Feed-forward"] },
  "Output", { words: () => "Decoder", inside: ["Written", "Source", "Sum"] }, "Logits", "Next word"];

/**
 * The map.
 * @param stops in their order
 * @param go called with the number of the stop that was clicked
 * @returns {element, mark(stop, found)}
 */
export function tourMap(stops, go) {
  const buttons = new Map();
  const titles = [];
  const stop = (name) => {
    const index = stops.findIndex((each) => each.name === name);
    if (index < 0) return null; // this model has no such stop
    const made = h("button", { type: "button", onclick: () => go(index) }, name);
    buttons.set(index, made);
    return made;
  };
  const item = (each) => {
    if (typeof each === "string") {
      const own = stop(each);
      return own && h("li", {}, own);
    }
    const inside = each.inside.map(item);
    if (!inside.some(Boolean)) return null;
    const title = each.stop ? stop(each.stop) : h("span", {});
    title.classList.add("box-title");
    titles.push([title, each.words]);
    return h("li", { class: "box" }, title, h("ol", {}, inside));
  };
  const element = h("nav", { class: "map", "aria-label": "Map of the tour" }, h("ol", {}, MAP.map(item)));
  return {
    element,
    mark(at, found) {
      for (const [title, words] of titles) title.textContent = words(found);
      for (const [index, made] of buttons) {
        if (!made.classList.contains("box-title")) made.textContent = nameOf(stops[index], found);
        made.classList.toggle("passed", index < at);
        if (index === at) made.setAttribute("aria-current", "step");
        else made.removeAttribute("aria-current");
      }
      const here = buttons.get(at); // a narrow screen has the map in one line that scrolls
      element.scrollLeft = here.getBoundingClientRect().left - element.getBoundingClientRect().left + element.scrollLeft - element.clientWidth / 2;
    },
  };
}
