// Uploaded files as grey pixels in the size of a model, as Pillow makes them: pictures and sounds.

import { Refusal } from "./refusal.js";
import { isWave, spectrogram } from "./sounds.js";

const ONE = 2 ** 22; // of the whole numbers that Pillow's weights are
const WHERE = "the uploaded file";
const MAGIC = { png: [0x89, 0x50, 0x4e, 0x47], jpeg: [0xff, 0xd8, 0xff] };

/** The rows of an uploaded file in base64; undefined where its colours cannot be read here. */
export async function rowsOf({ spec: { image_size: side, pixels } }, upload) {
  if (pixels.resample !== "bilinear") return undefined;
  const bytes = Uint8Array.from(atob(upload), (letter) => letter.charCodeAt(0));
  const rows = isWave(bytes) ? spectrogram(bytes, WHERE) : await pictureOf(bytes);
  return rows && resized(rows, side);
}

async function pictureOf(bytes) {
  const refuse = (what, remedy) => {
    throw new Refusal({ what, where: WHERE, remedy });
  };
  const is = (name) => MAGIC[name].every((byte, i) => bytes[i] === byte);
  if (!is("png") && !is("jpeg")) refuse("It is no PNG or JPEG picture", "Save it as PNG or leave it out");
  // The head of a PNG says how many bits a pixel has, and that it is grey: the browser would cut them.
  if (is("png") && bytes[24] === 16 && bytes[25] === 0) refuse("Its pixels have more than 8 bits a channel", "Save it with 8 bits a channel");
  if (!globalThis.createImageBitmap || !globalThis.OffscreenCanvas) return undefined;
  const bitmap = await createImageBitmap(new Blob([bytes]), { colorSpaceConversion: "none" })
    .catch(() => refuse("The picture cannot be read", "Save it again"));
  const { width, height } = bitmap;
  const pen = new OffscreenCanvas(width, height).getContext("2d");
  pen.drawImage(bitmap, 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  // A canvas forgets the colours of what is transparent, which Python shows.
  if (data.some((value, i) => i % 4 === 3 && value < 255)) return undefined;
  return greyRows(data, width);
}

/** The rows of pixels in RGBA as grey ones (ITU-R 601-2). */
export function greyRows(data, width) {
  const grey = (at) => (data[at] * 19595 + data[at + 1] * 38470 + data[at + 2] * 7471 + 0x8000) >> 16;
  return Array.from({ length: data.length / 4 / width }, (_, row) => Array.from({ length: width }, (__, i) => grey(4 * (row * width + i))));
}

/** A picture as a square, by bilinear interpolation over all pixels that a new one covers. */
export function resized(rows, side) {
  const across = (each) => narrowed(each, side);
  const down = (each) => transposed(narrowed(transposed(each), side));
  // Each pass rounds, so the order counts: Pillow 13 takes the one that it deems quicker.
  return rows.length > side && 2 * rows[0].length < rows.length + side ? across(down(rows)) : down(across(rows));
}

const transposed = (rows) => Array.from(rows[0], (_, i) => rows.map((row) => row[i]));

function narrowed(rows, side) {
  const size = rows[0].length;
  const scale = size / side;
  const reach = Math.max(scale, 1);
  const parts = Array.from({ length: side }, (_, i) => {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach + 0.5));
    const end = Math.min(size, Math.trunc(center + reach + 0.5));
    const weights = Array.from({ length: end - first }, (__, k) => Math.max(0, 1 - Math.abs((k + first - center + 0.5) * (1 / reach))));
    const total = weights.reduce((sum, each) => sum + each, 0);
    return { first, weights: weights.map((weight) => Math.trunc(0.5 + (weight / total) * ONE)) };
  });
  return rows.map((row) => parts.map(({ first, weights }) => Math.floor(weights.reduce((sum, weight, k) => sum + weight * row[first + k], ONE / 2) / ONE)));
}
