// One query against the keys, channel by channel: q, k, q × k, their sum, and the weight.

import { number, s } from "../dom.js";
import { css, diverging, redrawn, sequence } from "./colours.js";
import { shownPiece } from "./links.js";

const ROW = 26;

/**
 * Draw the neuron view.
 * @param found {word, query, keys: [{piece, key, products, score, weight, value}], context, factor}
 */
export function neuronPicture(host, found) {
  redrawn(host, () => draw(host, found));
}

function draw(host, found) {
  const width = Math.max(320, host.clientWidth);
  const left = 84;
  const [sum, share] = [58, 64];
  const strip = (width - left - sum - share - 24) / 2;
  const most = (rows) => rows.flat().reduce((best, value) => Math.max(best, Math.abs(value)), 1e-9);
  const [mostVector, mostProduct] = [most([found.query, ...found.keys.map((each) => each.key)]), most(found.keys.map((each) => each.products))];
  const height = (found.keys.length + 4) * ROW + 8;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(found) });
  const cells = (values, x, y, room, largest) => values.map((value, i) => s("rect", { x: x + (i * room) / values.length, y: y + 3, width: room / values.length + 0.3, height: ROW - 6, fill: css(diverging(value / largest)) }, s("title", {}, `channel ${i + 1}: ${number(value, 3)}`)));
  const text = (words, x, y, anchor = "start") => s("text", { class: "tick", x, y: y + 17, "text-anchor": anchor }, words);
  const name = (piece) => (shownPiece(piece).length > 10 ? `${shownPiece(piece).slice(0, 9)}…` : shownPiece(piece));
  const x = { vector: left, product: left + strip + 8, sum: left + 2 * strip + 16 + sum, share: width - share };
  svg.append(text("query q", 0, 0), ...cells(found.query, x.vector, 0, strip, mostVector), text(name(found.word), x.product, 0),
    text("key k", x.vector, ROW), text("q × k, channel by channel", x.product, ROW), text("score", x.sum, ROW, "end"), text("weight", x.share + 6, ROW));
  found.keys.forEach((each, i) => {
    const y = (i + 2) * ROW;
    svg.append(text(name(each.piece), 0, y), ...cells(each.key, x.vector, y, strip, mostVector), ...cells(each.products, x.product, y, strip, mostProduct),
      text(each.score === null ? "hidden" : number(each.score, 3), x.sum, y, "end"),
      s("rect", { x: x.share + 6, y: y + 3, width: Math.max(1, (share - 8) * each.weight), height: ROW - 6, fill: css(sequence(0.35 + 0.65 * each.weight)), "data-weight": each.weight }, s("title", {}, number(each.weight, 3))));
  });
  const y = (found.keys.length + 2) * ROW;
  svg.append(text("mixed value", 0, y), ...cells(found.context, x.vector, y, strip, most([found.context])), text("all values, each times its weight", x.product, y));
  host.replaceChildren(svg);
}

function describe({ word, keys }) {
  const best = keys.reduce((a, b) => (b.weight > a.weight ? b : a));
  return `The query of ${shownPiece(word)} against ${keys.length} keys; the most weight, ${number(best.weight, 3)}, is on ${shownPiece(best.piece)}.`;
}
