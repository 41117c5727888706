// Answers of the page Positions: schemes of positions that follow from formulas.

import { principal } from "./arithmetic.js";
import { sinusoid } from "./model.js";
import { Generator, PythonRandom } from "./random.js";
import { Refusal } from "./refusal.js";

const COLUMNS = 160; // positions in a chart of a long sequence; beyond it some are left out
const [MOST_WORDS, CHANNELS, LATER] = [8, 24, 20];
const BASE = 10000;
const TURN = 2 * Math.PI;

const range = (count, first = 0) => Array.from({ length: count }, (_, i) => first + i);
const dot = (a, b) => a.reduce((sum, each, i) => sum + each * b[i], 0);
const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/** The penalties of ALiBi's heads: powers of two, with every second one of the next power between (Press 2022). */
export function alibiSlopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  return [...range(power, 1).map((i) => 2 ** ((-8 * i) / power)), ...range(power).map((i) => 2 ** ((-8 * (2 * i + 1)) / (2 * power)))].slice(0, heads);
}

/** The bucket of a distance from query to key, half of the buckets for keys after it (Raffel 2020). */
export function t5Bucket(distance, buckets, most) {
  const side = buckets / 2;
  const exact = Math.floor(side / 2);
  const away = Math.abs(distance);
  // In 32 bits, as PyTorch: at the borders of buckets another rounding gives another bucket.
  const growth = Math.fround(Math.log(Math.fround(Math.max(1, away) / exact)));
  const steps = Math.fround(Math.fround(growth / Math.fround(Math.log(most / exact))) * (side - exact));
  return (distance > 0 ? side : 0) + (away < exact ? away : Math.min(side - 1, exact + Math.trunc(steps)));
}

/** The angle of each pair of channels from one position to the next, the largest first; scaled past the trained length. */
function frequencies({ width, scaling = "none", factor = 4, trained = 64 }) {
  const base = scaling === "ntk" && width > 2 ? BASE * factor ** (width / (width - 2)) : BASE;
  const plain = range(width / 2).map((pair) => base ** ((-2 * pair) / width));
  if (scaling === "linear") return plain.map((each) => each / factor);
  if (scaling !== "yarn") return plain;
  // Slow pairs, which never completed a turn in training, are interpolated (Peng 2023): between 32 turns and 1.
  const turning = (turns) => (width * Math.log(trained / (turns * TURN))) / (2 * Math.log(BASE));
  const low = Math.max(Math.floor(turning(32)), 0);
  const span = Math.max(Math.min(Math.ceil(turning(1)), width - 1) - low, 1e-3);
  return plain.map((each, pair) => {
    const share = clamp((pair - low) / span, 0, 1);
    return (each / factor) * share + each * (1 - share);
  });
}

/** A vector whose pairs of channels are rotated by a position. */
const rotated = (vector, position, angles) => vector.map((value, channel) => {
  const [pair, other] = [channel >> 1, vector[channel ^ 1]];
  const angle = position * angles[pair];
  return channel % 2 ? other * Math.sin(angle) + value * Math.cos(angle) : value * Math.cos(angle) - other * Math.sin(angle);
});

/** A table [L, D], dot product and cosine by distance, and its two main components. */
function vectors(table) {
  const length = table.length;
  const norms = table.map((row) => Math.max(1e-12, Math.sqrt(dot(row, row))));
  const half = Math.floor(length / 2);
  const byDistance = (of) => range(half + 1).map((k) => range(length - k).reduce((sum, i) => sum + of(i, i + k), 0) / (length - k));
  const both = (near) => [...near.slice(1).reverse(), ...near];
  const { points, shares } = principal(table);
  return {
    form: "vectors", table, distances: range(2 * half + 1, -half), product: both(byDistance((i, j) => dot(table[i], table[j]))),
    cosine: both(byDistance((i, j) => dot(table[i], table[j]) / norms[i] / norms[j])), projection: points, explained: shares,
  };
}

/** What each head adds to a score, or which learned row it uses, by distance from query to key. */
function biases({ scheme, length, heads, buckets, max_distance: most }) {
  if (scheme === "t5" && most <= Math.floor(buckets / 4)) {
    throw new Refusal({ what: `${buckets} buckets do not divide distances up to ${most}`, remedy: "Use at least 2 buckets a direction, and a max_distance above half of them" });
  }
  const half = Math.floor(length / 2);
  const distances = range(2 * half + 1, -half);
  const added = scheme === "alibi" ? alibiSlopes(heads).map((slope) => distances.map((distance) => -slope * Math.abs(distance))) : null;
  const row = scheme === "relative" ? (distance) => clamp(distance, -most, most) + most : (distance) => t5Bucket(distance, buckets, most);
  return { form: "biases", distances, added, buckets: added ? null : distances.map(row) };
}

const USUAL = { scheme: "sinusoidal", width: 64, length: 64, scaling: "none", factor: 4, heads: 8, buckets: 32, max_distance: 128, trained: 64, model: "", times: 4 };

/** A scheme as vectors or as biases; undefined for the tables of a model. */
export function show(request) {
  const settings = { ...USUAL, ...request };
  const { scheme, width, length, model } = settings;
  if (scheme === "sinusoidal") return vectors(range(length).map((position) => [...sinusoid(position, width, "pairs")]));
  if (scheme === "rotary") {
    // The same vector at every position, so that only rotations differ.
    const vector = range(width).map((channel) => (channel % 2 ? 0 : (2 / width) ** 0.5));
    const angles = frequencies(settings);
    return vectors(range(length).map((position) => rotated(vector, position, angles)));
  }
  return scheme === "learned" || model ? undefined : biases(settings);
}

/** A scheme past the lengths of training, and what training never shows. */
export function beyond(request) {
  const settings = { ...USUAL, ...request };
  const { scheme, trained, times, model } = settings;
  if (model) return undefined;
  if (["sinusoidal", "rotary"].includes(scheme)) return angles(settings);
  const last = times * trained;
  if (scheme === "learned") {
    const said = `Position ${trained} lies past the learned positions, which end at ${trained - 1}. Use at most ${trained} tokens, or a model with sinusoidal or rotary positions.`;
    return { form: "rows", trained, last, said };
  }
  const found = biases({ ...settings, length: 2 * last });
  const back = (row) => row.slice(0, last + 1).reverse(); // from the query backwards
  const rows = found.buckets && back(found.buckets);
  const seen = new Set(rows?.slice(0, trained));
  return { form: "biases", trained, distances: range(last + 1), added: found.added?.map(back) ?? null, buckets: rows, unseen: rows && rows.filter((row) => !seen.has(row)).length };
}

function angles(settings) {
  const { scheme, scaling, factor, trained, times, width } = settings;
  const plain = frequencies({ width });
  const used = scheme === "rotary" ? frequencies(settings) : plain; // a sinusoid has the angles of an unscaled rotation
  const last = times * trained;
  const step = Math.max(1, Math.ceil(last / COLUMNS));
  const places = range(Math.floor(last / step) + 1).map((i) => i * step);
  // The slowest pair alone is slowed by all of NTK's factor, so no position is where all of it ends.
  const reach = scheme === "rotary" && !["none", "ntk"].includes(scaling) ? Math.floor(factor * (trained - 1)) : null;
  const shown = plain.map((each) => each * (trained - 1)); // after a full turn all angles have been seen
  const fresh = used.map((each, pair) => places.map((place) => shown[pair] < TURN && (place * each) % TURN > shown[pair] + 1e-9));
  return {
    form: "angles", trained, reach, step, places, new: fresh,
    // The mean of a column's positions: one of them would draw false waves.
    cosines: used.map((each) => places.map((place) => range(step).reduce((sum, k) => sum + Math.cos((place + k) * each), 0) / step)),
    share: places.map((_, i) => fresh.filter((pair) => pair[i]).length / fresh.length),
    wavelengths: used.map((each) => TURN / each),
  };
}

/** What self-attention makes of words in two orders, without and with positions, and of the first order farther back. */
export function shuffled({ text = "dog bites man", order: how = "reversed", scheme = "sinusoidal" }) {
  const words = text.split(/\s+/).filter(Boolean);
  const count = words.length;
  if (count < 2 || count > MOST_WORDS) {
    throw new Refusal({ what: `Two to ${MOST_WORDS} words can be shuffled; there are ${count}`, where: "text", remedy: "Type as many, with spaces between them" });
  }
  const identity = range(count);
  const reversed = [...identity].reverse();
  const order = how === "shuffled" ? new PythonRandom([count]).sample(reversed, count) : reversed;
  const index = new Map([...new Set(words)].map((word, i) => [word, i])); // one vector a word, so that a word that comes twice has the same
  const weights = new Generator(1);
  const rows = (numbers) => range(numbers.length / CHANNELS).map((i) => [...numbers.subarray(i * CHANNELS, (i + 1) * CHANNELS)]);
  const entries = rows(weights.normals(index.size * CHANNELS));
  const maps = rows(weights.normals(3 * CHANNELS * CHANNELS)).map((row) => row.map((value) => value / CHANNELS ** 0.5));
  const first = words.map((word) => entries[index.get(word)]);
  const second = order.map((i) => first[i]);
  const own = randomScheme(scheme);
  const later = identity.map((i) => i + LATER);
  const outputs = [attended(first, maps, identity, {}), attended(second, maps, identity, {}), attended(first, maps, identity, own), attended(second, maps, identity, own), attended(first, maps, later, own)];
  const compared = (a, b, shown) => ({
    first: outputs[a], second: outputs[b],
    difference: Math.max(...identity.flatMap((i) => outputs[a][i].map((value, channel) => Math.abs(value - outputs[b][shown.indexOf(i)][channel])))),
  });
  return { words, order, later_by: LATER, without: compared(0, 1, order), with: compared(2, 3, order), later: compared(2, 4, identity) };
}

/** A scheme with random weights for what it would learn: `added` to a word, `turned` vectors, or a `bias` of the score. */
function randomScheme(scheme) {
  const rows = (count, width) => {
    const numbers = new Generator(2).normals(count * width);
    return range(count).map((i) => [...numbers.subarray(i * width, (i + 1) * width)]);
  };
  if (scheme === "sinusoidal") return { added: (place) => [...sinusoid(place, CHANNELS, "pairs")] };
  if (scheme === "rotary") {
    const angles = frequencies({ width: CHANNELS });
    // The halves of a vector are its pairs there: here their channels stand side by side.
    const paired = (vector) => range(CHANNELS).map((i) => vector[(i >> 1) + (i % 2) * (CHANNELS / 2)]);
    return { turned: (vector, place) => rotated(paired(vector), place, angles) };
  }
  if (scheme === "alibi") return { bias: (_, distance) => -alibiSlopes(8)[0] * Math.abs(distance) }; // the steepest; a head alone has a flat one
  if (scheme === "learned") {
    const table = rows(LATER + MOST_WORDS, CHANNELS);
    return { added: (place) => table[place] };
  }
  if (scheme === "t5") {
    const table = rows(USUAL.buckets, 1);
    return { bias: (_, distance) => table[t5Bucket(distance, USUAL.buckets, USUAL.max_distance)][0] };
  }
  const table = rows(2 * MOST_WORDS + 1, CHANNELS);
  return { bias: (query, distance) => dot(query, table[clamp(distance, -MOST_WORDS, MOST_WORDS) + MOST_WORDS]) };
}

/** The output of self-attention: vectors [L, D], maps [3 · D, D] of query, key and value, places [L]. */
function attended(words, maps, places, { added, turned = (vector) => vector, bias = () => 0 }) {
  const entering = added ? words.map((word, i) => added(places[i]).map((value, channel) => value + word[channel])) : words;
  const [queries, keys, values] = range(3).map((role) => entering.map((vector) => range(CHANNELS).map((channel) => vector.reduce((sum, value, i) => sum + value * maps[role * CHANNELS + i][channel], 0))));
  const scale = CHANNELS ** -0.5;
  return places.map((place, i) => {
    const query = queries[i].map((value) => value * scale);
    const powers = places.map((to, j) => Math.exp(dot(turned(query, place), turned(keys[j], to)) + bias(query, to - place)));
    const sum = powers.reduce((a, b) => a + b);
    return range(CHANNELS).map((channel) => powers.reduce((mixed, power, j) => mixed + (power / sum) * values[j][channel], 0));
  });
}
