// One query against the keys, channel by channel: q, k, q × k, their sum, the weight and the value.

import { h, number, s } from "../dom.js";
import { css, diverging, redrawn, sequence } from "./colours.js";
import { shownPiece, spokenPiece } from "./links.js";

const ROW = 26;

/**
 * Draw the neuron view.
 * @param found {word, query, keys: [{piece, key, products, score, weight, value}], context, factor}
 */
export function neuronPicture(host, found) {
  host.numbers = () => ({ title: describe(found), columns: ["vector", "piece", "score", "weight", ...found.query.map((_, i) => `channel ${i + 1}`)],
    rows: [["query q", found.word, null, null, ...found.query],
      ...found.keys.flatMap(({ piece, key, products, score, weight, value }) => [["key k", piece, null, null, ...key], ["q × k", piece, score, weight, ...products], ["value v", piece, null, weight, ...value]]),
      ["sum of weighted values", found.word, null, null, ...found.context]] });
  redrawn(host, () => draw(host, found));
}

function draw(host, found) {
  const width = Math.max(480, host.clientWidth);
  const left = 84;
  const [sum, share] = [52, 56];
  const strip = (width - left - sum - share - 32) / 3;
  const most = (rows) => rows.flat().reduce((best, value) => Math.max(best, Math.abs(value)), 1e-9);
  const mostVector = most([found.query, ...found.keys.map((each) => each.key)]);
  const mostProduct = most(found.keys.map((each) => each.products));
  const mostValue = most([found.context, ...found.keys.map((each) => each.value)]);
  const height = (found.keys.length + 4) * ROW + 8;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(found) });
  const cells = (values, x, y, largest) => values.map((value, i) => s("rect", { x: x + (i * strip) / values.length, y: y + 3, width: strip / values.length + 0.3, height: ROW - 6, fill: css(diverging(value / largest)) }, s("title", {}, `channel ${i + 1}: ${number(value, 3)}`)));
  const text = (words, x, y, { end = false, colour = null } = {}) => s("text", { class: "tick", x, y: y + 17, "text-anchor": end ? "end" : "start", style: colour === null ? {} : { fill: `var(--series-${colour})`, fontWeight: 650 } }, words);
  const name = (piece) => (shownPiece(piece).length > 10 ? `${shownPiece(piece).slice(0, 9)}…` : shownPiece(piece));
  const x = { key: left, product: left + strip + 8, sum: left + 2 * strip + 12 + sum };
  x.share = x.sum + 10;
  x.value = x.share + share;
  svg.append(text("query q", 0, 0, { colour: 0 }), ...cells(found.query, x.key, 0, mostVector), text(`of “${spokenPiece(found.word)}”`, x.product, 0),
    text("key k", x.key, ROW, { colour: 1 }), text("q × k", x.product, ROW), text("score", x.sum, ROW, { end: true }), text("weight", x.share, ROW), text("value v", x.value, ROW, { colour: 2 }));
  found.keys.forEach((each, i) => {
    const y = (i + 2) * ROW;
    svg.append(text(name(each.piece), 0, y), ...cells(each.key, x.key, y, mostVector), ...cells(each.products, x.product, y, mostProduct),
      text(each.score === null ? "hidden" : number(each.score, 3), x.sum, y, { end: true }),
      s("rect", { x: x.share, y: y + 3, width: Math.max(1, (share - 8) * each.weight), height: ROW - 6, fill: css(sequence(0.35 + 0.65 * each.weight)), "data-weight": each.weight }, s("title", {}, number(each.weight, 3))),
      s("g", { opacity: (0.15 + 0.85 * each.weight).toFixed(2), "data-value": i }, ...cells(each.value, x.value, y, mostValue)));
  });
  const y = (found.keys.length + 2) * ROW;
  svg.append(text("The values, each times its weight, add up to:", x.key, y), ...cells(found.context, x.value, y, mostValue));
  host.replaceChildren(svg, h("p", { class: "note" }, `Blue is above zero, ochre below; ${found.query.length} channels. Each product is the query's channel times the key's; their sum, times ${number(found.factor, 3)}${found.left_out ? `, is the score. The ${found.keys.length} keys with the most weight are drawn, ${found.left_out} are left out.` : ", is the score."} A value is the fainter, the less weight it has.`));
}

function describe({ word, keys }) {
  const best = keys.reduce((a, b) => (b.weight > a.weight ? b : a));
  return `The query of ${shownPiece(word)} against ${keys.length} keys; the most weight, ${number(best.weight, 3)}, is on ${shownPiece(best.piece)}.`;
}
