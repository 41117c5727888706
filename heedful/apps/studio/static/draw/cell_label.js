// The number of a drawing's cell, beside the cell that is pointed at or touched.

import { s } from "../dom.js";

const [HIGH, PAD] = [20, 6]; // pixels

/** Let every shape with `data-says` in a drawing say it, in a label above the shape. */
export function labelled(svg) {
  const ground = s("rect", { height: HIGH, rx: 4 });
  const words = s("text", { y: 14 });
  const frame = s("rect", { class: "cell-frame" });
  const label = s("g", { class: "cell-label", "aria-hidden": "true" }, frame, s("g", {}, ground, words));
  label.style.visibility = "hidden";
  svg.append(label);
  svg.addEventListener("pointerover", ({ target }) => {
    const said = target.dataset?.says;
    label.style.visibility = said ? "visible" : "hidden";
    if (!said) return;
    const [cell, all] = [target.getBoundingClientRect(), svg.getBoundingClientRect()];
    const [x, y] = [cell.left - all.left, cell.top - all.top];
    words.textContent = said;
    const wide = words.getComputedTextLength() + 2 * PAD;
    const at = Math.max(0, Math.min(all.width - wide, x + cell.width / 2 - wide / 2));
    ground.setAttribute("width", wide);
    words.setAttribute("x", PAD);
    label.lastChild.setAttribute("transform", `translate(${at} ${y > HIGH + 3 ? y - HIGH - 3 : y + cell.height + 3})`);
    for (const [name, value] of Object.entries({ x: x - 1, y: y - 1, width: cell.width + 2, height: cell.height + 2 })) frame.setAttribute(name, value);
  });
  svg.addEventListener("pointerleave", () => (label.style.visibility = "hidden"));
}
