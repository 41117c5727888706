// Forms of numbers in answers, as the package rounds and encodes them.

const DIGITS = 6; // significant digits: a float32 has 7, and charts need fewer

/** A whole number with a comma after each three digits, as Python's `:,` writes it. */
export const thousands = (number) => number.toLocaleString("en-US");

/** A number of a setting that may be a fraction, as Python writes it in TOML: whole ones have a point, too. */
export function fraction(value) {
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential().replace(/e-(\d)$/, "e-0$1");
  return Number.isInteger(value) ? value.toFixed(1) : String(value);
}

/** A number with so many digits after the point. */
export const rounded = (number, digits) => Number(number.toFixed(digits));

/** A number with so many digits after the point; of two that are equally near, the even one, as by NumPy. */
export function halfToEven(number, digits = 0) {
  const large = number * 10 ** digits;
  return (Math.abs(large % 1) === 0.5 ? 2 * Math.round(large / 2) : Math.round(large)) / 10 ** digits;
}

/** A number of `DIGITS` significant digits. */
export const significant = (number) => Number(number.toPrecision(DIGITS));

/** A tensor as nested lists of numbers of `DIGITS` significant digits. */
export const lists = ({ shape, values }) => nested(shape, values);

function nested([size, ...inner], values) {
  if (!inner.length) return Array.from(values, significant);
  const step = values.length / size;
  return Array.from({ length: size }, (_, i) => nested(inner, values.subarray(i * step, (i + 1) * step)));
}

/** The first part of a tensor [N, ...] along its first axis. */
export function at({ shape: [size, ...inner], values }, index) {
  const step = values.length / size;
  return { shape: inner, values: values.subarray(index * step, (index + 1) * step) };
}

/** Mean of tensors [H, R, C] over the first axis. */
export function meanOverHeads({ shape: [heads, ...inner], values }) {
  const size = values.length / heads;
  const mean = new Float32Array(size);
  for (let i = 0; i < size; i += 1) {
    for (let head = 0; head < heads; head += 1) mean[i] += values[head * size + i] / heads;
  }
  return { shape: inner, values: mean };
}

/** Bytes in base64. */
export function base64(bytes) {
  const parts = [];
  // Arguments of a call are limited, and a picture has more bytes than that.
  for (let i = 0; i < bytes.length; i += 8192) parts.push(String.fromCharCode(...bytes.subarray(i, i + 8192)));
  return btoa(parts.join(""));
}

/** A tensor as its shape and its little-endian float32 elements in base64. */
export function encoded({ shape, values }) {
  const view = new DataView(new ArrayBuffer(values.length * 4));
  values.forEach((value, i) => view.setFloat32(i * 4, value, true));
  return { shape, float32: base64(new Uint8Array(view.buffer)) };
}
