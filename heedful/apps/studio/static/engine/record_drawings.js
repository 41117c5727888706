// Samples of models of records in forms of their own: pixels, notes, coins, values of a series.

import { Coins } from "./coins.js";
import { base64, halfToEven } from "./forms.js";

const EIGHTH = 0.3; // seconds of a moment of music
const QUANTILES = { low: 0.1, median: 0.5, high: 0.9 };
const PITCHES = ["C", "C♯", "D", "E♭", "E", "F", "F♯", "G", "G♯", "A", "B♭", "B"];

/** How records of these fields are drawn; null for those in rooms, which are not computed here. */
export function formOf({ reading, fields, last }) {
  const [height, width] = last.shape;
  if (reading.reader === "series") return "series";
  if (fields.map(({ name }) => name).join() === "picture,instruction,action") return null;
  if (fields.length === 1 && last.name === "moments" && last.size === Coins.VALUES && width === 3) return "coins";
  if (last.name === "notes" && width) return "notes";
  return width && height === width && last.content === "numbers" ? "pixels" : "tokens";
}

/** The record, its tokens with id and field, the number of those that were kept, and the drawing. */
export function shown(tokenizer, { ids, kept, futures = null }) {
  const form = formOf(tokenizer);
  return {
    record: tokenizer.decode(ids),
    tokens: ids.map((id) => {
      const field = tokenizer.fieldOf(id);
      return [pieceOf(form, field, id - field.start), id, tokenizer.fields.indexOf(field)];
    }),
    kept,
    drawing: { kind: form, ...FORMS[form]?.(tokenizer, ids, kept, futures) },
  };
}

/** A token in words, by the form of its record. */
export function pieceOf(form, { name, names }, code) {
  if (form === "coins") return Coins.words(code);
  if (form === "notes" && name === "notes") return code ? `${PITCHES[code % 12]}${Math.floor(code / 12) - 1}` : "rest";
  return names ? names[code] : String(code);
}

/** Patches of a picture, as a page draws them. */
const patched = (side, channels, patch, patches, places, known) => ({ side, channels, patch, patches: base64(patches), known, places });

const FORMS = {
  pixels(tokenizer, ids) {
    const { last } = tokenizer;
    const found = tokenizer.codes(ids, last);
    const shades = new Uint8Array(last.count);
    found.forEach(([, code], place) => { shades[place] = halfToEven((255 * code) / (last.size - 1)); });
    const places = Array.from(shades, (_, place) => (found[place] ? [found[place][0]] : []));
    return patched(last.shape[0], 1, 1, shades, places, places.map((each) => each.length > 0));
  },
  coins(tokenizer, ids) {
    const { places, patches, side, patch, coins } = Coins.drawn(tokenizer.codes(ids, tokenizer.last));
    return { ...patched(side, 3, patch, patches, places, places.map(() => true)), coins };
  },
  /** Notes [start, pitch, end] of all voices; equal pitches after each other are one. */
  notes(tokenizer, ids, kept) {
    const { last: { shape: [length, voices] } } = tokenizer;
    const running = new Map();
    const [notes, places] = [[], []];
    tokenizer.codes(ids, tokenizer.last).forEach(([at, pitch], number) => {
      const [moment, voice] = [Math.floor(number / voices), number % voices];
      const sounding = running.get(voice);
      // A note that was given ends where the model begins, so that both can be told apart.
      const goesOn = sounding !== undefined && !(kept <= at && at < kept + voices);
      if (goesOn && notes[sounding][1] === pitch) {
        notes[sounding][2] = moment + 1;
        places[sounding].push(at);
      } else if (pitch) {
        running.set(voice, notes.length);
        notes.push([moment, pitch, moment + 1]);
        places.push([at]);
      } else running.delete(voice);
    });
    return { notes, places, seconds_per_step: EIGHTH, from: kept / voices, length };
  },
  series(tokenizer, ids, kept, futures) {
    const { reading: { bin_limit: limit, bins, context, horizon }, last } = tokenizer;
    const valueOf = (code) => (code + 0.5) * ((2 * limit) / bins) - limit; // the middle of a bin
    const found = tokenizer.codes(ids, last);
    const columns = futures && futures[0].map((_, i) => futures.map((future) => valueOf(future[i] - last.start)).sort((a, b) => a - b));
    return {
      values: found.map(([, code]) => halfToEven(valueOf(code), 4)),
      places: found.map(([at]) => [at]),
      from: kept,
      length: context + horizon,
      ...(columns && Object.fromEntries(Object.entries(QUANTILES).map(([name, share]) => [name, columns.map((values) => halfToEven(quantile(values, share), 4))]))),
    };
  },
};

/** The value below which a share of ascending ones lies, on straight lines between them. */
function quantile(values, share) {
  const place = share * (values.length - 1);
  const [before, after] = [values[Math.floor(place)], values[Math.ceil(place)]];
  return before + (after - before) * (place % 1);
}
