// Lines between the words of two texts that stand one above the other, or side by side where the screen is narrow.

import { s } from "../dom.js";

const LABEL = 15; // pixels below or above a word for its share
const BESIDE = 38; // and beside it
const LEAST_SAID = 0.05;
const GROWS = 350; // milliseconds

/** Let a line and its share come when its time is there, also where it is drawn anew meanwhile. */
function grown([line, ...words], { delay }, began) {
  if (delay === undefined) return [line, ...words];
  line.setAttribute("pathLength", 1);
  line.setAttribute("stroke-dasharray", 1);
  const play = (element, frames) => {
    element.animate(frames, { duration: GROWS, delay, fill: "backwards" }).currentTime = performance.now() - began;
  };
  play(line, [{ strokeDashoffset: 1 }, { strokeDashoffset: 0 }]);
  for (const each of words) play(each, [{ opacity: 0 }, { opacity: 1 }]);
  return [line, ...words];
}

/**
 * A layer of lines over an element.
 * @param host the element, which holds both texts
 * @returns {layer: its element, draw: tells it the lines to show: [{above, below: the words, weight, strong:
 *   whether the line is one of the chosen word, said: the word that the share stands at, delay: milliseconds
 *   until it grows from the upper word to the lower one}]}
 */
export function wordLines(host) {
  const layer = s("svg", { class: "word-lines", "aria-hidden": "true" });
  let lines = [];
  let began = 0;
  const redraw = () => {
    const from = host.getBoundingClientRect();
    const box = (element) => {
      const { left, width, top, bottom } = element.getBoundingClientRect();
      return { x: left + width / 2 - from.left, left: left - from.left, right: left + width - from.left, top: top - from.top, bottom: bottom - from.top };
    };
    const [upperText, lowerText] = host.querySelectorAll(".text");
    const isBeside = upperText && lowerText && box(upperText).right <= box(lowerText).left;
    // Lines of words in other rows run through the text: those of the chosen word are enough then.
    const isBroken = !isBeside && lines.some(({ above, below }) => [[above, upperText], [below, lowerText]].some(([word, text]) => text && text.offsetHeight > 1.8 * word.offsetHeight));
    host.classList.toggle("in-rows", isBroken); // with room for shares between its rows
    layer.replaceChildren(...lines.filter(({ strong }) => strong || !isBroken).flatMap((line) => grown(drawn(line), line, began)));
    function drawn({ above, below, weight, strong, said }) {
      const [upper, lower] = [box(above), box(below)];
      const label = strong && weight >= LEAST_SAID ? said : null; // none where several would stand at one word
      const look = { class: strong ? "word-line strong" : "word-line", "stroke-width": (0.6 + 7 * weight).toFixed(2), "stroke-opacity": (strong ? Math.min(1, 0.25 + weight) : 0.35 * weight).toFixed(3) };
      const share = `${Math.round(100 * weight)} %`;
      if (isBeside) {
        const [x, to] = [upper.right + (said === above ? BESIDE : 3), lower.left - (said === below ? BESIDE : 3)];
        const [start, stop] = [upper, lower].map(({ top, bottom }) => (top + bottom) / 2);
        return [
          s("path", { ...look, d: `M${x} ${start}C${(x + to) / 2} ${start} ${(x + to) / 2} ${stop} ${to} ${stop}` }),
          label && s("text", { class: "word-share", x: label === above ? upper.right + BESIDE / 2 : lower.left - BESIDE / 2, y: (label === above ? start : stop) + 4 }, share),
        ].filter(Boolean);
      }
      const [y, end] = [upper.bottom + LABEL, lower.top - (said === below ? LABEL : 1)];
      const middle = (y + end) / 2;
      return [
        s("path", { ...look, d: `M${upper.x} ${y}C${upper.x} ${middle} ${lower.x} ${middle} ${lower.x} ${end}` }),
        label && s("text", { class: "word-share", x: (label === above ? upper : lower).x, y: label === above ? upper.bottom + LABEL - 3 : lower.top - 4 }, share),
      ].filter(Boolean);
    }
  };
  new ResizeObserver(redraw).observe(host);
  return {
    layer,
    draw(next) {
      lines = next;
      began = performance.now();
      redraw();
    },
  };
}
