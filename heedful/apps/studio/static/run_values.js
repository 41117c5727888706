// The lines of linked charts by name, with their values at the step that is pointed at.

import { h, number, s, table } from "./dom.js";
import { series as colour } from "./draw/colours.js";

/** The value of a line at a place of the axis, or at its end; null where it has none. */
function valueAt({ points }, place) {
  if (place === null) return points.at(-1)[1];
  if (place < points[0][0] || place > points.at(-1)[0]) return null;
  return points.reduce((best, point) => (Math.abs(point[0] - place) < Math.abs(best[0] - place) ? point : best))[1];
}

/** Names by settings as a heading of the settings and the values alone; others as they are. */
function parted(names) {
  const parts = names.map((name) => name.split(", ").map((part) => part.split(/ (?=\S+$)/)));
  const heading = (each) => each.map(([setting]) => setting).join(", ");
  const same = parts.every((each) => each.every(({ length }) => length === 2) && heading(each) === heading(parts[0]));
  return same && names.length > 1 ? [heading(parts[0]), parts.map((each) => each.map(([, value]) => value).join(", "))] : ["", names];
}

/**
 * A table of them, which takes the place of legends and of numbers below each chart.
 * @param lift told the run of the row that is pointed at, and undefined when the pointer leaves
 */
export function lineValues(lift) {
  const element = h("div", { class: "line-values" });
  let [cells, axis, last] = [[], "", null];
  const caption = () => element.querySelector("caption");

  return {
    element,
    /**
     * @param rows [{name, run, line: of which the sample has its looks, lines: by figure}], @param figures [[name, title]],
     * @param along name of the axis
     */
    show(rows, figures, along) {
      axis = along;
      if (!rows.length) return element.replaceChildren();
      const [heading, names] = parted(rows.map(({ name }) => name));
      const sample = ({ colour: index, dashed }) => h("span", { class: "sample-of" }, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: `line${dashed ? " dashed" : ""}`, d: "M0 5L26 5", stroke: colour(index) })));
      const made = table("Values of the lines", [heading, ...figures.map(([, title]) => title)], rows.map(({ line }, i) => [h("span", {}, sample(line), names[i]), ...figures.map(() => 0)]));
      cells = [...made.querySelectorAll("tbody tr")].flatMap((row, i) => {
        row.dataset.of = rows[i].run;
        row.addEventListener("pointerenter", () => lift(rows[i].run));
        row.addEventListener("pointerleave", () => lift());
        return [...row.querySelectorAll("td")].map((cell, j) => ({ cell, line: rows[i].lines[figures[j][0]] }));
      });
      element.replaceChildren(made);
      this.at(last);
    },
    /** Show the values at a place; at the ends for null. */
    at(place) {
      last = place;
      if (!element.firstChild) return;
      caption().textContent = place === null ? "At the end of each run" : `At ${axis} ${number(place)}: point to read another`;
      for (const { cell, line } of cells) {
        const value = line ? valueAt(line, place) : null;
        cell.textContent = value === null ? "–" : number(value, 3);
      }
    },
    /** Mark the rows of a run. */
    mark(run) {
      for (const row of element.querySelectorAll("tbody tr")) row.classList.toggle("lifted", row.dataset.of === run);
    },
  };
}
