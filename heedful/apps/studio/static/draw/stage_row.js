// All stages of attention in a row of small matrices, so that a step is seen in its place.

import { h, s } from "../dom.js";
import { css, diverging, redrawn, sequence } from "./colours.js";
import { largest } from "./strip.js";

const [CELL, GAP] = [[15, 15], 3]; // pixels

/**
 * Draw the row.
 * @param host where
 * @param stages [{stage, name, matrices: [{values, kind: "share" or not, hidden, cell: its width and height, made: whether it comes from the one before}]}]
 * @param options {at: the stage that is reached, row: the query that is followed, choose: called with a stage}
 */
export function stageRow(host, stages, { at, row, choose }) {
  host.replaceChildren(h("ol", { class: "stage-row" }, stages.map(({ stage, name, matrices }) => h("li", {},
    h("button", { type: "button", class: "quiet", "aria-current": stage === at ? "step" : null, onclick: () => choose(stage) },
      h("span", { class: "minis" }, matrices.map((each) => mini(each, row))), h("span", {}, name))))));
}

function mini({ values, kind, hidden, followed = true, cell: [across, down] = CELL, made = false }, row) {
  const place = h("span", { "aria-hidden": "true", class: made ? "mini-made" : null });
  const most = largest(...values);
  const [width, height] = [values[0].length * across, values.length * down];
  const colour = (value) => css(kind === "share" ? sequence(value) : diverging(value / most));
  redrawn(place, () => place.replaceChildren(s("svg", { width: width + GAP, height: height + GAP, viewBox: `${-GAP / 2} ${-GAP / 2} ${width + GAP} ${height + GAP}` },
    s("rect", { class: "mini-frame", x: -1, y: -1, width: width + 1, height: height + 1 }),
    values.flatMap((line, i) => line.map((value, j) => s("rect", { x: j * across, y: i * down, width: across - (across > 9), height: down - (down > 9), ...(hidden?.[i][j] ? { class: "mini-hidden" } : { fill: colour(value) }) }))),
    followed && row < values.length ? s("rect", { class: "mini-row", x: -1, y: row * down - 1, width: width + 1, height: down + 1 }) : "")));
  return place;
}
