// Two kinds of models of samples, asked in one way: those that continue records, and those that label patches.

import { call } from "./api.js";
import { liveliest } from "./draw/patches.js";

/** Models that continue records. Their samples are the examples of a card, or of a run's data. */
const records = {
  samples: (place) => place.examples.map((each, i) => each.about || `sample ${i + 1}`),
  complete(place, { sample, keep, temperature, seed }, _, signal) {
    const example = place.examples[Math.min(sample, place.examples.length - 1)];
    return call("everywhere", "complete", { model: place.name, record: example?.text ?? "", keep: keep || null, temperature, seed }, signal);
  },
  weights(place, { layer, head }, { record }, token, signal) {
    return call("everywhere", "weights", { model: place.name, record, token, layer: layer - 1, head: head - 1 }, signal);
  },
  sound: () => null,
};

/** Models that label a picture or the picture of a sound; every patch is a token. */
const patches = {
  samples: (_, found) => found.names,
  async complete(place, { sample }, upload, signal) {
    const about = await call("image", "about", { model: place.name }, signal);
    const names = place.kind === "sounds" ? about.spoken : about.examples;
    const asked = upload ? { upload } : { example: names[Math.min(sample, names.length - 1)] };
    const found = await call("image", "look", { model: place.name, ...asked }, signal);
    const count = found.side / found.patch;
    const places = Array.from({ length: count * count }, (_, i) => [i]);
    const own = {
      asked, kept: places.length, opens: liveliest(found),
      drawing: { ...found, kind: "patches", places, axes: place.kind === "sounds" ? ["time", "frequency"] : null },
      tokens: places.map(([i]) => [`${Math.floor(i / count) + 1}, ${(i % count) + 1}`, null, 0]),
    };
    return {
      names, fields: [{ name: "patches", form: `${count} × ${count} patches of ${found.patch} × ${found.patch} pixels` }],
      vocabulary: null, whole: places.length, conditions: places.length, step: 1, layers: about.layers, heads: about.heads,
      begun: own, samples: [own],
    };
  },
  async weights(place, { layer, head }, { asked }, token, signal) {
    const found = await call("image", "look", { model: place.name, ...asked, patch: token, layer: layer ? layer - 1 : null, head: head ? head - 1 : null }, signal);
    return { shares: found.shares, begin: found.whole };
  },
  /** The sound of a sample as a WAV file in base64; null for a picture. */
  async sound(place, { asked }) {
    if (place.kind !== "sounds") return null;
    return asked.upload ?? (await call("everywhere", "spoken", { word: asked.example.replace("spoken ", "") })).wav;
  },
};

/** How a model is asked, by its kind. */
export const asksOf = (place) => (place.kind === "records" ? records : patches);
