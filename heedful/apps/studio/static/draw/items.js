// Items of a chart, such as bars or dots, that the pointer and the arrow keys read one by one.

import { h } from "../dom.js";
import { d3 } from "./d3.js";

const BACK = ["ArrowLeft", "ArrowUp"];
const ON = ["ArrowRight", "ArrowDown"];

/**
 * Let a drawing be read.
 * @param svg a selection of D3
 * @param count number of items
 * @param nearest the item at a place [x, y]
 * @param show marks an item, or none for null, and returns the words about it
 * @param choose called with an item that is clicked, or read as Enter is pressed
 * @param start the item at which the arrow keys begin
 * @returns the place of those words
 */
export function readItems(svg, { count, nearest, show, choose = null, start = -1 }) {
  const readout = h("p", { class: "readout", role: "status" });
  let own = null;
  const read = (index) => {
    own = index;
    readout.textContent = show(index);
  };
  svg.classed("choosable", choose !== null).attr("tabindex", "0").on("pointermove pointerdown", (event) => {
    const index = nearest(d3.pointer(event, svg.node()));
    if (index !== own) read(index);
  }).on("pointerleave", () => {
    own = null;
    show(null); // the words stay
  }).on("click", (event) => choose?.(nearest(d3.pointer(event, svg.node())))).on("keydown", (event) => {
    if (event.key === "Enter" && own !== null) choose?.(own);
    const step = BACK.includes(event.key) ? -1 : ON.includes(event.key) ? 1 : null;
    const place = { Home: 0, End: count - 1 }[event.key] ?? (step === null ? null : own === null ? Math.max(0, start) : own + step);
    if (place === null) return;
    event.preventDefault();
    read(Math.min(count - 1, Math.max(0, place)));
  });
  return readout;
}
