// Weights of a safetensors file: matrices of 8 bits stay 8 bits, vectors become float32.

import { Refusal } from "./refusal.js";

const SCALE = ".scale"; // suffix of the factors' name, after the name of their matrix

/** Value of float16 bits. */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 0) return sign * fraction * 2 ** -24; // subnormal
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
}

const READERS = {
  // `slice` copies: a view of float32 must begin at a multiple of 4 bytes, a file's part need not.
  F32: (buffer, from, to) => new Float32Array(buffer.slice(from, to)),
  F16: (buffer, from, to) => Float32Array.from(new Uint16Array(buffer.slice(from, to)), fromHalf),
  I8: (buffer, from, to) => new Int8Array(buffer.slice(from, to)),
};

/**
 * The tensors of a file by name, each {shape, values, scale}.
 *
 * `values` are Int8Array with a `scale` for each row (an element is code times factor), or
 * Float32Array with a scale of null. Codes are kept: the table of `en-de` is 2 MB of them, which a
 * processor's cache holds, and 8 MB of float32, which it does not.
 */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  delete header.__metadata__;
  const start = 8 + length;
  const read = (name) => {
    const { dtype, data_offsets: [from, to] } = header[name];
    if (!READERS[dtype]) {
      throw new Refusal({ what: `Weights of type ${dtype} cannot be read here`, where: name });
    }
    return READERS[dtype](buffer, start + from, start + to);
  };
  const tensors = new Map();
  for (const [name, { dtype, shape }] of Object.entries(header)) {
    // Factors are known by their matrix: another weight may be called `scale` itself.
    if (name.endsWith(SCALE) && header[name.slice(0, -SCALE.length)]?.dtype === "I8") continue;
    const scale = dtype === "I8" ? read(name + SCALE) : null;
    tensors.set(name, { shape, values: read(name), scale });
  }
  return tensors;
}
