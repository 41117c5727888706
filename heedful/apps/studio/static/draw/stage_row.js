// All stages of attention in a row of small matrices, so that a step is seen in its place.

import { h, s } from "../dom.js";
import { css, diverging, redrawn, sequence, series } from "./colours.js";
import { largest } from "./strip.js";

const [CELL, GAP] = [[15, 15], 3]; // pixels
const [LETTER, LINE, LONGEST] = [6.6, 14, 8]; // pixels of a letter and a line, and letters of a word

/**
 * Draw the row.
 * @param host where
 * @param stages [{stage, name, matrices: [{values, kind: "share" or not, hidden, cell: its width and height, made: whether it comes from the one before, followed: "row", "column" where it is the query's alone, or null}]}]
 * @param options {at: the stage that is reached, row: the query that is followed, word: its name, colour: the number of its colour, choose: called with a stage}
 */
export function stageRow(host, stages, { at, row, word, colour, choose }) {
  host.replaceChildren(h("ol", { class: "stage-row" }, stages.map(({ stage, name, matrices }) => h("li", {},
    h("button", { type: "button", class: "quiet", "aria-current": stage === at ? "step" : null, onclick: () => choose(stage) },
      h("span", { class: "minis" }, matrices.map((each) => mini(each, row, word, colour))), h("span", {}, name))))));
}

/** A small matrix; what belongs to the query is framed, and has its name beside or above. */
function mini({ values, kind, hidden, followed = "row", cell: [across, down] = CELL, made = false }, row, word, hue) {
  const place = h("span", { "aria-hidden": "true", class: made ? "mini-made" : null });
  const most = largest(...values);
  const [width, height] = [values[0].length * across, values.length * down];
  const colour = (value) => css(kind === "share" ? sequence(value) : diverging(value / most));
  const named = word.length > LONGEST ? `${word.slice(0, LONGEST - 1)}…` : word;
  const beside = followed === "row" && row < values.length;
  const said = (beside && !made) || followed === "column";
  const [left, top] = [beside && said ? LETTER * named.length + 5 : 0, said && !beside ? LINE : 0];
  const wide = followed === "column" ? Math.max(width, LETTER * named.length) : width;
  const shift = (wide - width) / 2;
  redrawn(place, () => place.replaceChildren(s("svg", { width: wide + left + GAP, height: height + top + GAP, viewBox: `${-GAP / 2 - left - shift} ${-GAP / 2 - top} ${wide + left + GAP} ${height + top + GAP}` },
    s("rect", { class: "mini-frame", x: -1, y: -1, width: width + 1, height: height + 1 }),
    values.flatMap((line, i) => line.map((value, j) => s("rect", { x: j * across, y: i * down, width: across - (across > 9), height: down - (down > 9), ...(hidden?.[i][j] ? { class: "mini-hidden" } : { fill: colour(value) }) }))),
    beside || followed === "column" ? s("rect", { class: "mini-row", x: -1, y: (beside ? row * down : 0) - 1, width: width + 1, height: (beside ? down : height) + 1 }) : "",
    said ? s("text", { class: "mini-word", x: beside ? -5 : width / 2, y: beside ? (row + 0.5) * down + 4 : -4, "text-anchor": beside ? "end" : "middle", style: { fill: series(hue) } }, named) : "")));
  return place;
}
