// The picture of a sound: the spectrogram of a WAV file, in grey.

import { halfToEven } from "./forms.js";
import { Refusal } from "./refusal.js";

const BANDS = 40;
const [WINDOW, STEP] = [0.025, 0.01]; // seconds
const RANGE = 80; // dB below the loudest point that are black
const [SLOWEST, FASTEST] = [1000, 1_000_000]; // samples a second
const LONGEST = 60; // seconds
const [PLAIN, EXTENDED] = [1, 0xfffe]; // formats of whole numbers

const textAt = (bytes, at) => String.fromCharCode(...bytes.subarray(at, at + 4));

/** True for bytes that begin as a WAV file. */
export const isWave = (bytes) => textAt(bytes, 0) === "RIFF" && textAt(bytes, 8) === "WAVE";

/** Samples between −1 and 1, of which channels are averaged, and how many there are in a second. */
function samplesOf(bytes, where) {
  const view = new DataView(bytes.buffer);
  let [format, data] = [null, null];
  for (let at = 12; at + 8 <= bytes.length && data === null;) {
    const length = view.getUint32(at + 4, true);
    if (textAt(bytes, at) === "fmt " && at + 24 <= bytes.length) format = at + 8;
    if (textAt(bytes, at) === "data") data = [at + 8, length];
    at += 8 + length + (length % 2);
  }
  const width = format === null ? 0 : Math.ceil(view.getUint16(format + 14, true) / 8);
  if (data === null || ![1, 2, 3, 4].includes(width) || ![PLAIN, EXTENDED].includes(view.getUint16(format, true))) {
    throw new Refusal({ what: "The sound cannot be read", where, remedy: "Save it as WAV with 16 bits a sample" });
  }
  const [channels, rate] = [view.getUint16(format + 2, true), view.getUint32(format + 4, true)];
  const count = Math.floor(data[1] / width / channels);
  if (!(rate >= SLOWEST && rate <= FASTEST) || data[0] + count * channels * width > bytes.length) {
    throw new Refusal({ what: "The sound is damaged", where, remedy: "Copy the file again" });
  }
  const sample = (at) => {
    if (width === 1) return (bytes[at] - 128) / 128; // the only ones without a sign
    let value = 0;
    for (let i = width - 1; i >= 0; i -= 1) value = value * 256 + bytes[at + i];
    const most = 2 ** (8 * width - 1);
    return (value >= most ? value - 2 * most : value) / most;
  };
  const samples = Float64Array.from({ length: count }, (_, i) => {
    let sum = 0;
    for (let channel = 0; channel < channels; channel += 1) sum += sample(data[0] + (i * channels + channel) * width);
    return sum / channels;
  });
  return { samples, rate };
}

/** Rows of grey pixels, the lowest band last: 255 for the loudest point and 0 for 80 dB less. */
export function spectrogram(bytes, where) {
  const { samples, rate } = samplesOf(bytes, where);
  const seconds = samples.length / rate;
  if (!(seconds >= WINDOW && seconds <= LONGEST)) {
    throw new Refusal({ what: `The sound takes ${seconds.toFixed(3)} seconds, and should take ${WINDOW} to ${LONGEST}`, where, remedy: "Cut it into parts, or leave it out" });
  }
  const [window, step] = [halfToEven(WINDOW * rate), Math.max(1, halfToEven(STEP * rate))];
  // Padded to twice the window: the low bands are narrower than a bin of the window's own length.
  const size = 2 ** (32 - Math.clz32(2 * window - 1));
  const transform = fourier(size);
  const bands = filters(rate, size);
  const shape = Array.from({ length: window }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / (window - 1)));
  const energy = Array.from({ length: Math.floor((samples.length - window) / step) + 1 }, (_, frame) => {
    const power = transform((i) => (i < window ? samples[frame * step + i] * shape[i] : 0));
    return bands.map(({ first, weights }) => weights.reduce((sum, weight, k) => sum + weight * power[first + k], 0));
  });
  const loudest = energy.reduce((most, each) => Math.max(most, ...each), 0);
  if (loudest <= 0) throw new Refusal({ what: "The sound is silent", where, remedy: "Leave it out" });
  const grey = (value) => halfToEven(255 * Math.min(1, Math.max(0, 1 + (10 * Math.log10(Math.max(value / loudest, 1e-12))) / RANGE)));
  return Array.from({ length: BANDS }, (_, row) => energy.map((each) => grey(each[BANDS - 1 - row])));
}

/** Triangles of the mel bands over the bins of a spectrum, each with its first bin. */
function filters(rate, size) {
  const bins = Array.from({ length: size / 2 + 1 }, (_, i) => 2595 * Math.log10(1 + (i * rate) / size / 700)); // the formula of HTK
  const edge = (i) => (bins.at(-1) * i) / (BANDS + 1);
  return Array.from({ length: BANDS }, (_, band) => {
    const [low, middle, high] = [edge(band), edge(band + 1), edge(band + 2)];
    const weights = bins.map((bin) => Math.max(0, Math.min((bin - low) / (middle - low), (high - bin) / (high - middle))));
    const first = Math.max(0, weights.findIndex((weight) => weight > 0));
    return { first, weights: weights.slice(first, weights.findLastIndex((weight) => weight > 0) + 1) };
  });
}

/** The power spectrum [size / 2 + 1] of real numbers, as a function of a function of their index (Cooley 1965). */
function fourier(size) {
  const bits = Math.log2(size);
  const reversed = Uint32Array.from({ length: size }, (_, i) => Number.parseInt(i.toString(2).padStart(bits, "0").split("").reverse().join(""), 2));
  const [cosines, sines] = [Math.cos, Math.sin].map((wave) => Float64Array.from({ length: size / 2 }, (_, i) => wave((-2 * Math.PI * i) / size)));
  return (numberAt) => {
    const real = Float64Array.from(reversed, numberAt);
    const imaginary = new Float64Array(size);
    for (let half = 1; half < size; half *= 2) {
      for (let from = 0; from < size; from += 2 * half) {
        for (let i = 0; i < half; i += 1) {
          const [a, b, angle] = [from + i, from + i + half, (i * size) / (2 * half)];
          const [x, y] = [real[b] * cosines[angle] - imaginary[b] * sines[angle], real[b] * sines[angle] + imaginary[b] * cosines[angle]];
          [real[b], imaginary[b]] = [real[a] - x, imaginary[a] - y];
          real[a] += x;
          imaginary[a] += y;
        }
      }
    }
    return Float64Array.from({ length: size / 2 + 1 }, (_, i) => real[i] ** 2 + imaginary[i] ** 2);
  };
}
