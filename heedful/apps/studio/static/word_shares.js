// A row of words, or of other things of which one is chosen, over rows of numbers: scores, and bars of shares.

import { h } from "./dom.js";
import { wordRow } from "./words.js";

/** The shares of scores; −∞ has none. */
export function softmax(scores) {
  const most = Math.max(...scores);
  if (most === -Infinity) return scores.map(() => 0);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

/** A cell with a share of attention: a bar below its number, as high as it is of the largest. */
export const shareCell = (weight, most, kind = "bar") => ({ content: weight < 0.005 ? "0" : `${Math.round(100 * weight)} %`, weight: weight / most, kind });

/** A cell with a score. */
export const scoreCell = (score) => ({ content: score.toFixed(1).replace("-", "−") });

/** The word of the longest bar. */
function strongest(rows) {
  const weights = rows.flatMap(([, cells]) => cells.map(({ weight = 0 }, word) => [weight, word]));
  return weights.reduce((most, each) => (each[0] > most[0] ? each : most), [0, 0])[1];
}

/** Scroll to the chosen word and the longest bar; without room for both, to the bar, or to a word that was just clicked. */
function showBoth(row, buttons, chosen, most, isClicked) {
  const { offsetLeft, offsetWidth } = buttons.previousSibling;
  const room = row.clientWidth - offsetWidth - 8;
  const [own, longest] = [chosen, most].map((word) => {
    const { offsetLeft: from, offsetWidth: wide } = buttons.children[word];
    return { from: from - offsetLeft - offsetWidth, wide };
  });
  const [first, last] = own.from < longest.from ? [own, longest] : [longest, own];
  const end = last.from + last.wide - room;
  const middle = ({ from, wide }) => from - (room - wide) / 2;
  row.scrollLeft = end <= first.from ? Math.max(end, Math.min(middle(own), first.from)) : middle(isClicked ? own : longest);
}

/**
 * Draw the words and the rows below them; who was in the words is in the fresh ones.
 * @param drawing {words, chosen, choose, hidden: whether each word is hidden, rows: [title, cells {content, weight, kind}],
 *   label: what a click does, of: what the table says}
 */
export function wordShares(host, { words, chosen, choose, hidden = [], rows, label = "click a word", of = "The row of a word" }) {
  const focused = host.contains(document.activeElement);
  const grid = h("div", { class: "masked", style: { gridTemplateColumns: `max-content repeat(${words.length}, auto)` } });
  const buttons = wordRow({ pieces: words, chosen, choose, label });
  [...buttons.querySelectorAll("button")].forEach((button, i) => button.classList.toggle("unseen-word", Boolean(hidden[i])));
  grid.append(h("span", { class: "note" }, label), buttons);
  for (const [title, cells] of rows) {
    grid.append(h("span", { class: "note" }, title), ...cells.map(({ content = "", weight = 0, kind = "" }) => {
      const cell = h("span", { class: kind }, content);
      cell.style.setProperty("--weight", weight);
      return cell;
    }));
  }
  const row = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": of }, grid);
  host.replaceChildren(row);
  if (buttons.children[chosen]) showBoth(row, buttons, chosen, strongest(rows), focused);
  if (focused) host.querySelector("[tabindex='0'].piece")?.focus({ preventScroll: true });
}
