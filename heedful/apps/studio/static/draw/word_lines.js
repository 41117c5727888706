// Lines between the words of two texts that stand one above the other, wherever their lines break.

import { s } from "../dom.js";

const LABEL = 15; // pixels below or above a word for its share
const LEAST_SAID = 0.05;

/**
 * A layer of lines over an element.
 * @param host the element, which holds both texts
 * @returns {layer: its element, draw: tells it the lines to show: [{above, below: the words, weight, strong:
 *   whether the line is one of the chosen word, said: the word that the share stands at}]}
 */
export function wordLines(host) {
  const layer = s("svg", { class: "word-lines", "aria-hidden": "true" });
  let lines = [];
  const redraw = () => {
    const from = host.getBoundingClientRect();
    const box = (element) => {
      const { left, width, top, bottom } = element.getBoundingClientRect();
      return { x: left + width / 2 - from.left, top: top - from.top, bottom: bottom - from.top };
    };
    layer.replaceChildren(...lines.flatMap(({ above, below, weight, strong, said }) => {
      const [upper, lower] = [box(above), box(below)];
      const label = strong && weight >= LEAST_SAID ? said : null;
      const [y, end] = [upper.bottom + LABEL, lower.top - (said === below ? LABEL : 1)];
      const middle = (y + end) / 2;
      return [
        s("path", { class: strong ? "word-line strong" : "word-line", d: `M${upper.x} ${y}C${upper.x} ${middle} ${lower.x} ${middle} ${lower.x} ${end}`,
          "stroke-width": (0.6 + 7 * weight).toFixed(2), "stroke-opacity": (strong ? Math.min(1, 0.25 + weight) : 0.35 * weight).toFixed(3) }),
        label && s("text", { class: "word-share", x: (label === above ? upper : lower).x, y: label === above ? upper.bottom + LABEL - 3 : lower.top - 4 }, `${Math.round(100 * weight)} %`),
      ].filter(Boolean);
    }));
  };
  new ResizeObserver(redraw).observe(host);
  return {
    layer,
    draw(next) {
      lines = next;
      redraw();
    },
  };
}
