// Named bars, the longest first; the numbers stand beside them.

import { h, number } from "../dom.js";

/**
 * Draw the bars.
 * @param rows [{name, value, own: marked as the one to compare, note: after the number}]
 * @param scale {from: the number at which bars begin, said below them}
 */
export function rankedBars(host, rows, { from = 0 } = {}) {
  const sorted = [...rows].sort((a, b) => b.value - a.value);
  const most = sorted[0].value;
  host.replaceChildren(h("ul", { class: "beside ranked" }, sorted.map((row) => {
    const bar = h("span", { class: "length" });
    bar.style.width = `${Math.max(1, (100 * (row.value - from)) / (most - from))}%`;
    return h("li", { class: row.own ? "own" : null, "data-value": row.value }, h("span", { class: "who" }, row.name), h("span", { class: "track" }, bar),
      h("span", { class: "count" }, `${number(row.value)}${row.note ? ` (${row.note})` : ""}`));
  })), from ? h("p", { class: "note" }, `Bars begin at ${number(from)}.`) : "");
}
