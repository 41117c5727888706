// Matrices as tables: numbers to read, shaded by their size.

import { h, inSteps, isStill, number } from "../dom.js";
import { css, diverging, ink, redrawn, sequence, series } from "./colours.js";

const SHADE = 0.55; // of the ramp, so that numbers stay easy to read

/**
 * A matrix with a caption.
 * @param matrix {values, caption, rowNames, columnNames, kind, hidden, highlight, digits, keys,
 *   colours, shift}
 *   Every word has a colour: names of rows have those of queries, names of columns those of keys;
 *   keys: rows are keys too; colours: numbers have the colour of their row, or with "columns" of
 *   their column, and no shade; shift: 0 where queries and keys are the same words
 */
export function matrix(options) {
  const host = h("div", { class: "matrix" });
  redrawn(host, () => host.replaceChildren(draw(options)));
  return host;
}

/**
 * Matrices with signs between them, of which the last is made from the others. Pointing at one of
 * its numbers marks what it comes from, and says how.
 * @param terms options of `matrix`, and signs as text
 * @param made {from: (i, j, k) → [[index of a matrix, "row", "column" or "cell"]], tell: (i, j, k) → text,
 *   choose: called with the row that is clicked, at: [i, j, k] that is marked first,
 *   results: how many of the last are made, 1 unless said, of which k is one,
 *   crossed: whether each of them stands below a factor and beside the first}
 */
export function equation(terms, { from, tell, choose, at, results = 1, crossed = false }) {
  const parts = terms.map((term) => (typeof term === "string" ? h("span", { class: "between" }, term) : matrix(term)));
  const matrices = parts.filter((each) => each.classList.contains("matrix"));
  const made = matrices.slice(-results);
  for (const each of made) each.classList.add("made");
  const said = h("p", { class: "readout", role: "status" });
  const rowsOf = (part) => [...part.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]);
  const mark = (i, j, k = 0) => {
    for (const cell of parts.flatMap((part) => [...part.querySelectorAll(".lit")])) cell.classList.remove("lit");
    for (const [index, what] of [...from(i, j, k), [matrices.length - results + k, "cell"]]) {
      const rows = rowsOf(matrices[index]);
      const lit = what === "row" ? rows[i] : what === "column" ? rows.map((row) => row[j]) : [rows[i][j]];
      for (const cell of lit) cell.classList.add("lit");
    }
    said.textContent = tell(i, j, k);
  };
  made.forEach((each, k) => {
    const placeOf = (event) => {
      const rows = rowsOf(each);
      const i = rows.findIndex((row) => row.includes(event.target.closest("td")));
      return i < 0 ? null : [i, rows[i].indexOf(event.target.closest("td")), k];
    };
    each.addEventListener("pointerover", (event) => {
      const place = placeOf(event);
      if (place) mark(...place);
    });
    each.addEventListener("click", (event) => {
      const place = placeOf(event);
      if (place) choose(place[0]);
    });
  });
  redrawn(said, () => mark(...at)); // after the matrices, which lose their marks
  const whole = h("div", { class: crossed ? "equation crossed" : "equation" }, parts);
  let stop = () => {};
  /** Let the numbers of the followed row come about: what each is made of lights up and flies into it. */
  whole.play = () => {
    // A matrix is drawn again once it is laid out.
    if (!isStill()) requestAnimationFrame(() => requestAnimationFrame(come));
  };
  const come = () => {
    const cells = made.flatMap((each, k) => rowsOf(each)[at[0]].map((cell, j) => ({ cell, j, k })));
    const pace = Math.min(320, LONGEST / cells.length);
    cells.forEach(({ cell }, n) => cell.animate([{ color: "transparent" }, { color: "transparent", offset: 0.99 }, {}], n * pace + FLIGHT));
    stop = inSteps(pace, (n) => {
      if (n >= cells.length || !whole.isConnected) return false;
      const { cell, j, k } = cells[n];
      mark(at[0], j, k);
      fly([...whole.querySelectorAll(".lit")].filter((each) => each !== cell), cell, whole);
      return true;
    }, () => mark(...at));
  };
  whole.addEventListener("pointerdown", () => stop());
  return [whole, said];
}

const [FLIGHT, LONGEST] = [450, 2400]; // milliseconds of a number, and of all of them

/** Numbers fly to the cell that they are part of. */
function fly(sources, target, whole) {
  const [to, ground] = [target.getBoundingClientRect(), whole.getBoundingClientRect()];
  for (const source of sources) {
    const from = source.getBoundingClientRect();
    const copy = h("span", { class: "flying", "aria-hidden": "true" }, source.textContent);
    Object.assign(copy.style, { left: `${from.left - ground.left + whole.scrollLeft}px`, top: `${from.top - ground.top}px`, width: `${from.width}px`, color: getComputedStyle(source).color });
    whole.append(copy);
    const end = () => copy.remove();
    copy.animate([{ translate: "0 0" }, { translate: `${to.left + to.width / 2 - from.left - from.width / 2}px ${to.top - from.top}px`, opacity: 0.4 }], { duration: FLIGHT, easing: "ease-in-out" }).finished.then(end, end);
  }
}

/** A name with what follows “_” below the line. */
export const captioned = (name) => h("span", {}, name.split("_")[0], name.includes("_") ? h("sub", {}, name.split("_")[1]) : "");

function draw({ values, caption, rowNames, columnNames, kind = "diverging", hidden, highlight, digits = 3, keys = false, colours = false, shift = 1 }) {
  const most = kind === "share" ? 1 : Math.max(...values.flat().map(Math.abs), 1e-12);
  const cell = (value, i, j) => {
    if (hidden?.[i]?.[j]) return h("td", { class: "hidden" }, h("span", { "aria-label": "hidden" }, kind === "share" ? "0" : "−∞"));
    if (colours) return h("td", { class: value === 0 ? "zero" : "tint-row", style: { color: series(colours === "columns" ? j + shift : i + (keys ? shift : 0)) } }, number(value, digits));
    const shade = kind === "diverging" ? diverging((SHADE * value) / most) : sequence((SHADE * value) / most);
    const made = h("td", {}, number(value, digits));
    made.style.background = css(shade);
    made.style.color = ink(shade);
    return made;
  };
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: "cells" },
      h("caption", {}, captioned(caption), h("span", { class: "shape" }, ` ${values.length} × ${values[0].length}`)),
      columnNames ? h("thead", {}, h("tr", {}, rowNames ? h("td", {}) : "", columnNames.map((name, j) => h("th", { scope: "col", style: { color: series(j + shift) } }, name)))) : "",
      h("tbody", {}, values.map((row, i) => h("tr", { class: i === highlight ? "chosen" : null },
        rowNames ? h("th", { scope: "row", style: { color: series(i + (keys ? shift : 0)) } }, rowNames[i]) : "", row.map((value, j) => cell(value, i, j)))))));
}
