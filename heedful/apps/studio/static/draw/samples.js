// A sample in its own form: a picture, a room, notes, a series; with a colour for the attention to each of its places.

import { h, number, s } from "../dom.js";
import { lineChart } from "./lines.js";
import { spokenPiece } from "./links.js";
import { patchPicture, pixelsOf } from "./patches.js";
import { pianoRoll, pitchName } from "./piano_roll.js";

export const PADDING = "<pad>"; // fills a field of words to its length
const BAR = 8; // moments of four beats: each is an eighth, as the player has it

/** The attention to each place of a drawing: the sum of that to its tokens. */
export const sharesOf = (drawing, shares) =>
  drawing.places.map((tokens) => tokens.reduce((sum, token) => sum + (shares[token] ?? 0), 0));

/**
 * Draw a sample.
 * @param sample {drawing: as the server describes it, shares: of each token or null, token: the chosen one or −1, range: of the pitches, voices: how many a moment has, or 0,
 *   choose: called with a token, describe}
 * @returns a function that moves the line of a player, for notes
 */
export function drawSample(host, { drawing, shares, token, range, voices = 0, choose, describe }) {
  const own = shares && sharesOf(drawing, shares);
  const chosen = drawing.places.findIndex((tokens) => tokens.includes(token));
  const chooses = (place) => drawing.places[place]?.length && choose(drawing.places[place].at(-1));
  if (drawing.kind === "series") {
    drawSeries(host, drawing, own, describe);
    return () => {};
  }
  if (drawing.kind === "notes") {
    return pianoRoll(host, {
      notes: drawing.notes, length: drawing.length, range, from: drawing.from, shares: own, chosen: null, marked: chosen, choose: chooses, height: voices ? 176 : 132,
      voices: voices ? drawing.places.map(([first]) => first % voices) : undefined, bar: voices ? BAR : undefined,
      describe,
    });
  }
  patchPicture(host, { ...drawing, pixels: drawing.pixels ?? pixelsOf(drawing), shares: own, chosen, choose: chooses, describe });
  return () => {};
}

/**
 * How a sample was written: its drawing after each step, and the words for the step; none where nothing can be seen growing.
 * @param found {begun, samples} of a model
 */
export function stepsOf({ begun, samples }, { drawing, tokens, kept }) {
  const written = tokens.slice(kept).map(([piece], i) => [kept + i, `Token ${kept + i + 1} of ${tokens.length}: “${piece}”`]);
  if (drawing.kind === "room") return samples.map((each, i) => ({ drawing: each.drawing, words: `Step ${i + 1} of ${samples.length}: “${each.drawing.action}”` }));
  if (drawing.kind === "pixels") return written.map(([at, words]) => ({ drawing: { ...drawing, known: drawing.places.map(([token]) => token <= at) }, words }));
  if (drawing.kind === "series") {
    return written.map(([at, words]) => {
      const futures = ["low", "median", "high"].filter((name) => drawing[name]).map((name) => [name, drawing[name].slice(0, at + 1 - drawing.from)]);
      return { drawing: { ...drawing, values: drawing.values.slice(0, at + 1), ...Object.fromEntries(futures) }, words };
    });
  }
  return drawing.kind === "coins" ? movesOf(begun.drawing, drawing, tokens) : [];
}

/** The field of coins after each move: of the cells that were visited so far, those of the last picture; the player stands on the newest. */
function movesOf(first, drawing, tokens) {
  const [from, to] = [first, drawing].map(pixelsOf);
  const size = to.length / drawing.places.length;
  const cell = (place) => to.slice(place * size, (place + 1) * size);
  const way = drawing.places.flatMap((own, place) => own.map((token) => [token, place])).sort(([a], [b]) => a - b);
  const player = cell(way.at(-1)[1]);
  const left = way.find(([, place]) => place !== way.at(-1)[1]);
  const trace = left && cell(left[1]); // a dot, where the player has been
  return way.slice(1).map(([token, own], i) => {
    const bytes = from.slice();
    for (const [, place] of way.slice(0, i + 1)) bytes.set(place === way.at(-1)[1] ? trace : cell(place), place * size);
    bytes.set(player, own * size);
    return { drawing: { ...drawing, pixels: bytes }, words: `Move ${i + 1}: “${tokens[token - 2]?.[0]}”` };
  });
}

/** The numbers, their futures, or the attention to each of them, over time. */
function drawSeries(host, drawing, shares, describe) {
  const { values, from } = drawing;
  const over = (numbers, first) => numbers.map((value, i) => [first + i, value]);
  const onwards = (numbers) => [...over(values.slice(0, from), 0).slice(-1), ...over(numbers, from)]; // joined to what is given
  const whole = drawing.length;
  if (shares) {
    lineChart(host, {
      series: [{ name: "attention", points: over(shares, 0), colour: "var(--glow)", dots: true }],
      x: { label: "time step", domain: [0, whole - 1] }, y: { label: "attention", zero: true }, describe, height: 260,
    });
    return;
  }
  const series = [{ name: "given", points: over(values.slice(0, from), 0), colour: 0 }];
  if (values.length > from) series.push({ name: "one future", points: onwards(values.slice(from)), colour: 1 });
  for (const [name, key] of [["median of the futures", "median"], ["tenth below", "low"], ["tenth above", "high"]]) {
    if (drawing[key]) series.push({ name, points: onwards(drawing[key]), colour: 2, dashed: key !== "median" });
  }
  lineChart(host, { series, x: { label: "time step", domain: [0, whole - 1] }, y: { label: "size, mean 1" }, describe, height: 260 });
}

/** A place of a drawing in words. */
export function placeWords(drawing, token) {
  const place = drawing.places?.findIndex((tokens) => tokens.includes(token)) ?? -1;
  if (place < 0) return "";
  if (drawing.kind === "series") return `value ${place}`;
  if (drawing.kind === "notes") return `the note ${pitchName(drawing.notes[place][1])}`;
  const count = drawing.side / drawing.patch;
  return `row ${Math.floor(place / count) + 1}, column ${(place % count) + 1}`;
}

/** What stands at a token or could stand there, as the drawing has it: a grey level as a field of that grey, a value of a series as on its axis. */
export function pieceWords({ kind, values, places }, tokens, fields, at, label = tokens[at][0]) {
  if (kind === "pixels" && tokens[at][2] === fields.length - 1) {
    const most = fields.at(-1).form.split(":")[1] - 1; // as in pixels:8:14x14
    return h("span", {}, s("svg", { class: "grey", width: 14, height: 14, "aria-hidden": "true" }, s("rect", { width: 14, height: 14, fill: `rgb(${Array(3).fill(Math.round((255 * label) / most))})` })), `grey ${label} of ${most}`);
  }
  if (kind !== "series") return String(label) === PADDING ? "padding" : spokenPiece(String(label));
  // Values lie on a line over their numbers: the lowest and the highest of the sample give it.
  const known = places.map(([token], i) => [Number(tokens[token][0]), values[i]]).sort(([a], [b]) => a - b);
  const [[first, low], [last, high]] = [known[0], known.at(-1)];
  return last > first ? number(low + ((label - first) * (high - low)) / (last - first), 3) : label;
}
