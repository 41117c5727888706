// Scales and their ticks, for every drawing with axes.

import { number } from "../dom.js";

/** Round numbers that cover a stretch. */
export function ticks(low, high, most) {
  const raw = (high - low) / Math.max(1, most);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

function powers(low, high, base) {
  const found = [];
  for (let i = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** i <= high * (1 + 1e-9); i += 1) {
    found.push(base ** i);
  }
  return found;
}

/** A number that would be long to write out by its power of ten, as 10⁻⁵ or 2·10¹⁸; else null. */
function power(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  if (!(value > 0) || (exponent > -4 && exponent < 9)) return null;
  const factor = Number((value / 10 ** exponent).toPrecision(3));
  const raised = [...String(Math.abs(exponent))].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("");
  return `${factor === 1 ? "" : `${factor}·`}10${exponent < 0 ? "⁻" : ""}${raised}`;
}

/**
 * From numbers to places.
 * @param extent lowest and highest number
 * @param places first and last place
 */
export function scale(extent, places, { log = false, most = 5, base = 10 } = {}) {
  let [low, high] = extent;
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 1, high + 1];
  const f = log ? Math.log : (value) => value;
  const at = (value) => places[0] + ((f(value) - f(low)) / (f(high) - f(low))) * (places[1] - places[0]);
  let marks = log ? powers(low, high, base) : ticks(low, high, most);
  if (log && marks.length < 3) marks = [1, 2, 5].flatMap((factor) => powers(low / factor, high / factor, base).map((value) => value * factor)).sort((a, b) => a - b);
  while (marks.length > 2 * most) marks = marks.filter((_, i) => i % 2 === 0);
  const text = (value) => power(value) ?? (Math.abs(value) >= 10000 && value % 1000 === 0 ? `${number(value / 1000)}k` : number(value, 3));
  return { at, low, high, marks, text };
}

/** Lowest and highest of some numbers. */
export const extent = (values) => values.reduce(
  ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
