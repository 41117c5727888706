// Answers of the page Step by step: attention of typed numbers, and one query of one head of a model.

import { largest, lengthOf } from "./arithmetic.js";
import { queryOf } from "./attention_answers.js";
import { describeMask, parseMask, sees } from "./masks.js";
import { alibiSlopes } from "./positions_answers.js";
import { Refusal } from "./refusal.js";
import { numHeads, partsOf } from "./passes.js";

const MOST_KEYS = 16; // with the largest weights, that are shown with all numbers
const LEADING = 4; // channels of a product that are listed; the others are summed
const LISTED = 4; // channels of the output

const add = (numbers) => numbers.reduce((sum, value) => sum + value, 0);
const dot = (a, b) => add(a.map((value, i) => value * b[i]));
const ascending = (indices) => indices.sort((a, b) => a - b);

const times = (rows, matrix) => rows.map((row) => matrix[0].map((_, j) => add(row.map((value, i) => value * matrix[i][j]))));

/** Every stage of attention of typed vectors, for every query. */
export async function attend(request) {
  const { x = null, scale = null, mask: written = "everything", bias = "none" } = request;
  refuseShapes(request);
  const mask = await parseMask(written);
  const [q, k, v] = ["q", "k", "v"].map((name) => (x ? times(x, request[name]) : request[name]));
  const factor = scale ?? k[0].length ** -0.5;
  const table = (of) => q.map((_, i) => k.map((_, j) => of(i, j)));
  const products = table((i, j) => q[i].map((value, channel) => value * k[j][channel]));
  const raw = table((i, j) => add(products[i][j]));
  const scaled = table((i, j) => raw[i][j] * factor);
  const added = bias === "alibi" ? table((i, j) => -alibiSlopes(1)[0] * Math.abs(i - j)) : null;
  const scores = table((i, j) => scaled[i][j] + (added ? added[i][j] : 0));
  const visible = table((i, j) => sees(mask, i, j));
  const powers = scores.map((row, i) => {
    const highest = Math.max(...row.filter((_, j) => visible[i][j]));
    return row.map((score, j) => (visible[i][j] ? Math.exp(score - highest) : 0));
  });
  const weights = powers.map((row) => row.map((power) => power / (add(row) || 1))); // a query that sees nothing has no weights
  const parts = table((i, j) => v[j].map((value) => weights[i][j] * value));
  const output = parts.map((row) => v[0].map((_, channel) => add(row.map((part) => part[channel]))));
  return { q, k, v, products, raw, factor, scaled, added, visible, scores, powers, weights, parts, output, sentence: `A query sees ${describeMask(mask)}.` };
}

function refuseShapes({ q, k, v, x = null }) {
  const refuse = (what) => {
    throw new Refusal({ what });
  };
  for (const [name, rows] of Object.entries({ q, k, v, x })) {
    if (rows?.some((row) => row.length !== rows[0].length)) refuse(`the rows of ${name.toUpperCase()} are not of the same length`);
  }
  if (q[0].length !== k[0].length) refuse(`queries have ${q[0].length} numbers and keys ${k[0].length}; a dot product needs as many of each`);
  if (!x && k.length !== v.length) refuse(`there are ${k.length} keys and ${v.length} values`);
  if (x && [q, k, v].some((rows) => rows.length !== x[0].length)) refuse(`tokens have ${x[0].length} numbers, so each weight matrix needs ${x[0].length} rows`);
}

/** The stages of one query, with the keys that get the largest weights. */
export function follow(model, request) {
  const { reading, name, layers, layer, address, part, rows, columns, row, own, ofKey } = queryOf(model, request);
  const [query, scores, weights, mixed] = ["query", "scores", "weights", "context"].map(own);
  const [keys, values] = ["key", "value"].map((kind) => columns.ids.map((_, key) => ofKey(kind, key)));
  const visible = scores.map((score) => score > -Infinity);
  const highest = Math.max(...scores.filter((_, key) => visible[key]));
  const powers = scores.map((score, key) => (visible[key] ? Math.exp(score - highest) : 0));
  const listed = ascending(largest(weights, MOST_KEYS));
  const others = weights.map((_, key) => key).filter((key) => !listed.includes(key));
  const channels = ascending(largest(mixed.map(Math.abs), LISTED));
  return {
    target: reading.target,
    parts: partsOf(model),
    part: name,
    layer,
    blocks: layers.map(({ number }) => number),
    heads: numHeads(layers),
    row,
    rows: rows.pieces,
    columns: columns.pieces,
    address,
    width: query.length,
    rotary: Boolean(part.rotary),
    factor: part.scale,
    softcap: null, // a model with one is not read here, nor one with biases
    biased: false,
    mask: describeMask(part.mask),
    hidden: visible.filter((seen) => !seen).length,
    query,
    keys: listed.map((key) => ({
      ...stagesOf(key),
      values: channels.map((channel) => values[key][channel]),
      parts: channels.map((channel) => weights[key] * values[key][channel]),
    })),
    sum: add(powers),
    weights,
    others: {
      count: others.length,
      weight: add(others.map((key) => weights[key])),
      parts: channels.map((channel) => add(others.map((key) => weights[key] * values[key][channel]))),
    },
    channels,
    context: channels.map((channel) => mixed[channel]),
    mixed,
  };

  function stagesOf(key) {
    const products = keys[key].map((value, channel) => value * query[channel]);
    const lengths = lengthOf(query) * lengthOf(keys[key]);
    const leading = largest(products.map(Math.abs), LEADING);
    const raw = add(products);
    return {
      key,
      vector: keys[key],
      products,
      value: values[key],
      length: lengthOf(keys[key]),
      cosine: lengths ? dot(query, keys[key]) / lengths : 0,
      value_length: lengthOf(values[key]),
      leading: leading.map((channel) => [channel, products[channel]]),
      rest: add(products.filter((_, channel) => !leading.includes(channel))),
      raw,
      scaled: raw * part.scale,
      bias: null,
      score: visible[key] ? scores[key] : null,
      power: visible[key] ? powers[key] : null,
      weight: weights[key],
    };
  }
}
