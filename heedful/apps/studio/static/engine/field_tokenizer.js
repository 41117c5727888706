// The tokens of records: every field has a range of ids of its own in one vocabulary.

import { Refusal } from "./refusal.js";

const SPECIALS = 3; // padding, begin and end come before the fields
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

export class FieldTokenizer {
  /** @param content parsed tokenizer.json */
  constructor({ fields, reading }) {
    let next = SPECIALS;
    [this.pad, this.bos, this.eos] = [0, 1, 2];
    this.reading = reading;
    this.fields = fields.map((field) => {
      const start = next;
      next += field.size ?? 0;
      return { ...field, start, count: product(field.shape), step: product(field.shape.slice(1)) };
    });
    if (this.fields.some(({ content, count, shape }) => content === "text" || !count || shape.length > 2)) {
      throw new Refusal({ what: "This tokenizer cannot be run here: a field is a text, or of any length", where: "tokenizer.json" });
    }
    this.size = next;
    this.whole = this.fields.reduce((sum, { count }) => sum + count, 0);
  }

  get last() {
    return this.fields.at(-1);
  }

  /** The field of an id. */
  fieldOf(id) {
    return this.fields.findLast(({ start }) => id >= start);
  }

  /** The field of a place in a record. */
  fieldAt(place) {
    let end = 0;
    return this.fields.find(({ count }) => place < (end += count));
  }

  /** The ids of a record or its beginning, a line of JSON; null for what is none. */
  encode(text) {
    let record = null;
    try {
      record = JSON.parse(text);
    } catch {
      return null;
    }
    const names = Object.keys(record ?? {});
    const there = this.fields.slice(0, names.length);
    if (Array.isArray(record) || there.some(({ name }) => !names.includes(name)) || names.length > there.length) return null;
    const codes = there.map((field) => codesOf(field, record[field.name]));
    const fits = there.every((field, i) => codes[i] && (codes[i].length === field.count || (codes[i].length < field.count && i === there.length - 1 && !field.given)));
    return fits ? there.flatMap(({ start }, i) => codes[i].map((code) => start + code)) : null;
  }

  /** The record of ids, as far as they go, as Python writes it in JSON. */
  decode(ids) {
    const fields = this.fields.map((field) => [field, ids.filter((id) => this.fieldOf(id) === field).map((id) => id - field.start)]);
    return written(Object.fromEntries(fields.filter(([, codes]) => codes.length).map(([field, codes]) => [field.name, valueOf(field, codes)])));
  }

  /** The index and the code of each token of a field. */
  codes(ids, field) {
    return ids.map((id, at) => [at, id - field.start, id]).filter(([, , id]) => this.fieldOf(id) === field).map(([at, code]) => [at, code]);
  }
}

/** The codes of a field's value, an array of rows or of numbers; null for others. */
function codesOf({ names, size, shape, step }, value) {
  const all = [value].flat();
  if (all.some(Array.isArray) && (shape.length < 2 || !all.every((row) => Array.isArray(row) && row.length === step))) return null;
  const codes = names ? all.map((name) => names.indexOf(name)) : all.flat();
  return codes.every((code) => Number.isInteger(code) && code >= 0 && code < size) ? codes : null;
}

/** The value of codes: a row for each of the first axis where all are there. */
function valueOf({ names, shape, count, step }, codes) {
  const values = names ? codes.map((code) => names[code]) : codes;
  if (count === 1 && shape.length === 1) return values[0];
  if (shape.length < 2 || values.length < count) return values;
  return Array.from({ length: shape[0] }, (_, row) => values.slice(row * step, (row + 1) * step));
}

function written(value) {
  if (Array.isArray(value)) return `[${value.map(written).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${written(each)}`).join(", ")}}`;
}
