import { call, live, problem } from "../api.js";
import { choice, more, panel, slider, tabs } from "../controls.js";
import { figure, folded, h, number, s } from "../dom.js";
import { beyondChart } from "../draw/beyond.js";
import { heatMap } from "../draw/heat.js";
import { lineChart } from "../draw/lines.js";
import { mover, pairsOfHands, wavesAndHands } from "../draw/hands.js";
import { headColour } from "../draw/links.js";
import { pathChart } from "../draw/path.js";
import { ramps } from "../draw/ramps.js";
import { orderDefaults, wordOrder } from "../word_order.js";

const [WAVES, CLOCKS, LONGEST] = [4, 6, 64]; // pairs of channels drawn as waves or clocks, and positions along the waves
const SLOWEST = 0.45; // of the pairs, from the fastest on: those after it hardly move in so many positions
const GAP = 3; // places between a query and a key
const TALL = 300; // pixels of the table beside the waves
const FAR = { scaling: "none", trained: 64, times: 4 }; // what another choice of opens the part past the trained length

export const wide = true;

export const defaults = () => ({
  place: 3, scheme: "sinusoidal", width: 64, length: 64, factor: 4, heads: 8, buckets: 32, max_distance: 128, model: "", table: "", ...FAR, ...orderDefaults,
});

/** Schemes with a name and a small sign of what they do. */
const SCHEMES = [
  ["sinusoidal", "Sinusoidal", "M1 11C4 -2 8 -2 11 11S18 24 22 11S29 -2 33 11S40 24 43 11"], ["learned", "Learned", "M4 20v-8M11 20v-16M18 20v-5M25 20v-12M32 20v-17M39 20v-7"],
  ["rotary", "Rotary", "M22 1a10 10 0 1 1-.1 0zM22 11L31 8M22 11L25 20"], ["alibi", "ALiBi", "M1 20L22 3L43 20M1 11L22 3L43 11"],
  ["t5", "T5 buckets", "M1 20h4v-4h4v-4h4v-4h9v-4h21"], ["relative", "Relative keys (Shaw)", "M1 19h10L33 3h10"],
].map(([name, title, d]) => [name, [s("svg", { class: "scheme-sign", viewBox: "0 0 44 22", "aria-hidden": "true" }, s("path", { d })), title]]);

export function mount({ root, state }) {
  const named = new Map();
  let known = false;
  /** Looking for tables loads models, so it waits until somebody asks for one. */
  async function lookUp() {
    known = true;
    body.replaceChildren(h("p", { class: "note", role: "status" }, "Loading the models …"));
    body.setAttribute("aria-busy", "true");
    const { tables } = await call("positions", "tables").finally(() => body.setAttribute("aria-busy", "false"));
    for (const each of tables) named.set(`${each.model} · ${each.table}`, each);
    change();
  }
  const own = h("select", { id: "own-table" });
  own.addEventListener("change", () => {
    const found = named.get(own.value);
    state.set({ model: found?.model ?? "", table: found?.table ?? "" }, { step: true });
  });
  const ownField = h("div", { class: "field" }, h("label", { for: "own-table" }, "Table"), own);
  const fields = {
    width: slider(state, "width", { label: "Channels", stops: [2, 4, 8, 16, 32, 64, 128, 256, 512] }),
    scaling: choice(state, "scaling", { label: "Stretched by", options: [["none", "nothing"], ["linear", "dividing positions"], ["ntk", "a higher base (NTK)"], ["yarn", "YaRN"]] }),
    factor: slider(state, "factor", { label: "Factor of the scaling", min: 1, max: 16, step: 0.5 }),
    heads: slider(state, "heads", { label: "Heads", min: 1, max: 16 }),
    buckets: slider(state, "buckets", { label: "Buckets", min: 4, max: 64, step: 2 }),
    max_distance: slider(state, "max_distance", { label: "Distance where the last bucket begins", min: 8, max: 256 }),
  };
  const used = {
    sinusoidal: ["width"], learned: [], rotary: ["width", "scaling", "factor"], alibi: ["heads"], t5: ["buckets", "max_distance"], relative: ["max_distance"],
  };
  const body = h("div", {});
  const past = h("div", {});
  const words = wordOrder(state);
  const sizes = more("Sizes", slider(state, "length", { label: "Positions shown", stops: [4, 8, 16, 32, 48, 64, 96, 128, 192, 256] }), ...Object.values(fields));
  sizes.open = state.differs(["length", ...Object.keys(fields)]);
  const far = folded("Past the trained length: what a model has never seen", panel(slider(state, "trained", { label: "Trained length", stops: [8, 16, 32, 64, 128, 256] }),
    slider(state, "times", { label: "Trained lengths shown", min: 1, max: 8 })), past);
  const openFar = () => {
    far.open ||= state.differs(Object.keys(FAR));
  };
  openFar();
  root.append(h("div", { class: "row schemes" }, tabs(state, "scheme", { label: "Positions", options: SCHEMES }), ownField, sizes), words, body, far);

  const fitting = () => [...named.entries()].filter(([, each]) => each.scheme === state.values.scheme);
  const arrange = () => {
    const { scheme, scaling, model, table } = state.values;
    for (const [name, field] of Object.entries(fields)) field.hidden = !used[scheme].includes(name);
    fields.factor.hidden ||= scaling === "none";
    const found = fitting();
    ownField.hidden = scheme !== "learned" && (scheme !== "t5" || found.length === 0);
    own.replaceChildren(...(scheme === "t5" ? [h("option", { value: "" }, "the buckets alone")] : []),
      ...found.map(([name]) => h("option", { value: name }, name)));
    own.value = model ? `${model} · ${table}` : "";
    fields.buckets.hidden ||= Boolean(model);
    fields.max_distance.hidden ||= Boolean(model);
  };
  const show = drawn(body, state);
  const without = (...names) => Object.fromEntries(Object.entries(state.values).filter(([name]) => ![...Object.keys(orderDefaults), "place", ...names].includes(name)));
  const askShow = live(body, (signal) => call("positions", "show", without("times"), signal), (found) => show(found, state.values));
  const askPast = live(past, (signal) => call("positions", "beyond", without(), signal), (found) => beyond(past, found, state.values));
  const ask = () => {
    askShow();
    askPast();
  };
  const change = () => {
    const { scheme, model, table } = state.values;
    if (!known && (scheme === "learned" || scheme === "t5")) {
      lookUp().catch((error) => body.replaceChildren(problem(error)));
      arrange();
      return;
    }
    const found = fitting();
    const fits = found.some(([, each]) => each.model === model && each.table === table);
    if (scheme === "learned" && !fits) {
      if (found.length) {
        state.set({ model: found[0][1].model, table: found[0][1].table });
        return;
      }
    } else if (!["learned", "t5"].includes(scheme) && model) {
      state.set({ model: "", table: "" });
      return;
    }
    arrange();
    if (scheme === "learned" && !found.length) {
      body.replaceChildren(h("p", { class: "sentence" }, "None of the models at hand has learned positions. Start the studio with one that has, such as BERT, GPT-2 or a translator trained with ",
        h("code", {}, "--model.positions learned"), ". What follows holds for any of them."));
      askPast();
      return;
    }
    ask();
  };
  state.watch((_, changed) => {
    if (changed.some((name) => name in FAR)) openFar();
    if (changed.some((name) => !(name in orderDefaults) && name !== "place")) change();
  });
  change();
}

/** What a scheme is, in a sentence. */
const SAID = {
  sinusoidal: "Each position has a vector of sines and cosines, which is added to the word that stands there: fast waves on the left, slow ones on the right.",
  rotary: "One vector of length 1, rotated by each position: the score of a query and a key that are the same vector depends on their distance alone.",
  alibi: "A penalty for distance with a slope for each head, fixed before training.",
  relative: "A learned vector for each distance, whose product with the query is added to the score; distances past the longest share its vector. The picture shows which.",
  t5: "Short distances have a bucket each, long ones share; training learns a number for each bucket and head. No model is chosen, so the picture shows the buckets.",
};
/** And what becomes of it past the trained length. */
const PAST = {
  alibi: "The line goes on: a far key gets a larger penalty than any in training, so it counts less, and a long text reads much like a short one.",
  t5: "Past the longest distance all keys share one bucket. Its number was learned only if texts in training were long enough to reach it; the numbers of buckets never reached mean nothing.",
  relative: "Past the longest distance all keys share one vector. A distance that training never reached has a vector that was never changed.",
  learned: "A learned table has a row for each position of training, and no other.",
};
const TURNING = "Fast pairs of channels have made whole turns in training and show nothing new later. A slow pair has turned only part of the way: past the trained length it comes to angles that no weight was trained on.";
const SCALED = {
  linear: (factor) => `Dividing positions by ${factor} slows all pairs down, so that a longer text stays within angles of training; near tokens come closer together.`,
  ntk: () => "A higher base slows slow pairs down, and leaves the fast ones nearly as they are: new angles come later, and not for all pairs at once.",
  yarn: (factor) => `YaRN leaves the fast pairs as they are and divides the angles of slow ones by ${factor}, so that a longer text stays within angles of training.`,
};

const said = ({ scheme, model, table }) => (model ? `${table} of ${model}, as trained.` : SAID[scheme]);

function saidPast({ scheme, scaling, factor }, { reach }) {
  const turning = scheme === "rotary" && scaling !== "none" ? SCALED[scaling](number(factor)) : TURNING;
  const lasts = reach ? ` They last to position ${number(reach)}; past it, slow pairs come to new ones.` : "";
  return PAST[scheme] ?? turning + lasts;
}

/** What a scheme says at positions that training has not seen. */
function beyond(host, found, settings) {
  const sentence = h("p", { class: "sentence" }, saidPast(settings, found));
  if (found.form === "rows") {
    const { element, host: chart } = figure("Positions that have a row");
    host.replaceChildren(sentence, element, h("div", { class: "problem" }, h("p", {}, h("strong", {}, "Asked for the next one, the library says: "), found.said)));
    beyondChart(chart, {
      series: [{ name: "row", points: [[0, 1], [found.trained - 1, 1], [found.trained, 0], [found.last, 0]] }], trained: found.trained, last: found.last,
      x: "position", y: "rows in the table", describe: "Positions that have a row.",
    });
    return;
  }
  if (found.form === "angles") {
    const share = figure("Pairs of channels at an angle that training never showed", "Their share, by position.");
    const map = figure("Each pair of channels, by position", `The cosine of its angle${found.step > 1 ? `, as the mean of ${found.step} positions` : ""}; hatched where training never showed that angle. Fast pairs above, slow ones below.`);
    host.replaceChildren(sentence, share.element, map.element);
    const last = found.places.at(-1);
    beyondChart(share.host, {
      series: [{ name: "share", points: found.places.map((place, i) => [place, found.share[i]]) }], trained: found.trained, last, reach: found.reach, x: "position", y: "share of pairs",
      describe: "The share of pairs of channels at an angle that training never showed.",
    });
    heatMap(map.host, {
      values: found.cosines, hidden: found.new, kind: "diverging", flat: true, rows: { label: "pair" }, columns: { label: "position", names: found.places },
      describe: "The cosine of the angle of each pair of channels, by position.",
      readout: (i, j, value) => `pair ${i}, one turn in ${number(found.wavelengths[i], 3)} positions; position ${found.places[j]}: ${number(value, 3)}${found.new[i][j] ? ", an angle that training never showed" : ""}`,
    });
    return;
  }
  const parts = [];
  if (found.added) parts.push(["Number added to the score, by distance back", found.added.map((row, head) => ({ name: `head ${head + 1}`, colour: headColour(head, found.added.length), points: row.map((value, distance) => [distance, value]) })), "added to the score"]);
  if (found.buckets) parts.push(["Learned row in use, by distance back", [{ name: "row", points: found.buckets.map((row, distance) => [distance, row]) }], "row"]);
  const figures = parts.map(([title, series]) => figure(title, series.length > 1 ? "Heads in the colours above." : null));
  host.replaceChildren(sentence, ...(found.unseen ? [h("p", { class: "note" }, `${number(found.unseen)} of ${number(found.distances.length)} distances use a row that training never reached.`)] : []), ...figures.map((each) => each.element));
  parts.forEach(([title, series, label], i) => beyondChart(figures[i].host, { series, trained: found.trained, last: found.distances.at(-1), x: "distance back", y: label, describe: `${title}.` }));
}

/** Some pairs of channels from fast to slow, with the radians by which each turns from one position to the next. */
function turningPairs({ table }, scheme) {
  const pairs = table[0].length / 2;
  // Of rotary the cosine comes first. A pair turns by less than half a turn, so its angle at position 1 is its frequency.
  const all = Array.from({ length: pairs }, (_, i) => (scheme === "rotary" ? Math.atan2(table[1][2 * i + 1], table[1][2 * i]) : Math.atan2(table[1][2 * i], table[1][2 * i + 1])));
  const most = Math.min(scheme === "rotary" ? CLOCKS : WAVES, pairs);
  return Array.from({ length: most }, (_, i) => Math.round((i * (pairs - 1) * SLOWEST) / Math.max(1, most - 1))).map((pair) => ({ pair, frequency: all[pair] }));
}

function drawn(host, state) {
  const sentence = h("p", { class: "sentence" });
  const turning = figure("");
  let latest = null;
  /** The waves and hands at the chosen position. */
  function hands() {
    if (!latest) return;
    const { found, scheme } = latest;
    const length = Math.min(found.table.length, scheme === "rotary" ? Infinity : LONGEST);
    const at = Math.min(state.values.place, length - 1);
    const pairs = turningPairs(found, scheme);
    // The position's row, and the columns of each hand in its colour.
    latest.mark([...pairs.map(({ pair }, i) => ({ side: "column", index: 2 * pair, count: 2, colour: `--series-${i}` })),
      ...(scheme === "rotary" ? [at, at + GAP] : [at]).map((index) => ({ side: "row", index }))]);
    latest.one(at);
    if (scheme === "rotary") {
      turning.words.textContent = `A query at position ${at} (blue) and a key at ${at + GAP} (ochre): both are turned by their positions, pair by pair. Move both on: the hands turn, the angle between them stays, and with it the score: ${number(share(found), 3)} of what it is at one place, over all ${found.table[0].length / 2} pairs.`;
      pairsOfHands(turning.host, { pairs, at, gap: GAP, describe: "Pairs of channels of a query and of a key as hands of a clock." });
    } else {
      turning.words.textContent = "Drag along the waves, or click a row of the table. A hand is two channels of that row, framed in its colour: its height is the sine, its way to the right the cosine. No two positions have all hands alike.";
      wavesAndHands(turning.host, { pairs, length, at, choose: (place) => state.set({ place }), describe: "Pairs of channels as waves over the positions, and as hands of a clock at the chosen one." });
    }
  }
  const share = ({ product, distances }) => product[distances.indexOf(GAP)] / product[distances.indexOf(0)];
  state.watch((_, changed) => changed.includes("place") && hands());
  const buttons = mover({ get: () => state.values.place, set: (place) => state.set({ place }), last: () => Math.min(latest.found.table.length, latest.scheme === "rotary" ? Infinity : LONGEST) - 1, steps: [[-1, "−1"], [1, "+1"], [10, "+10"]] });
  return (found, settings) => {
    const { scheme } = settings;
    if (found.form === "vectors") {
      const table = figure("The table", "A row for each position, a column for each channel.");
      const row = figure("One position's vector", "Point at a row of the table, or go there with the arrow keys.");
      const near = figure(...(scheme === "rotary" ? ["The score of a word and the same word, by their distance", "Wherever the two stand in the text: rotated by the same angle more, they keep their score."]
        : ["How alike two positions are, by their distance", "The dot product of their vectors, as the mean over all pairs."]));
      const angle = figure("Whatever the lengths of the vectors", "Their cosine by distance.");
      const plane = figure("Two main directions");
      latest = ["sinusoidal", "rotary"].includes(scheme) ? { found, scheme, mark: (marked) => table.host.mark?.(marked), one } : null;
      turning.element.querySelector("h3").textContent = scheme === "rotary" ? `Hands that turn: a query and a key ${GAP} places apart` : "Waves and hands: how a position is written in channels";
      // Channels come in pairs, which are two curves; vectors of one length have one curve of products and cosines.
      const waves = { sinusoidal: ["sines", "cosines"], rotary: ["first of each pair", "second of each pair"] }[scheme];
      host.replaceChildren(...(latest ? [h("div", { class: "columns linked" }, h("div", {}, turning.element, buttons), table.element)] : []), sentence,
        h("div", { class: "columns" }, latest ? "" : table.element, near.element, latest ? row.element : ""),
        folded(latest ? "All positions in a plane" : "One position's vector, and all in a plane", h("div", { class: "columns" }, latest ? "" : row.element, waves ? "" : angle.element, plane.element)));
      sentence.textContent = said(settings);
      heatMap(table.host, {
        values: found.table, kind: "diverging", cell: 14, tall: Math.min(14, Math.max(3, TALL / found.table.length)), rows: { label: "position" }, columns: { label: "channel" },
        describe: `The ${scheme} vectors of ${found.table.length} positions.`,
        readout: (position, channel, value) => {
          one(position);
          return `position ${position}, channel ${channel}: ${number(value)}`;
        },
        choose: latest ? (position) => state.set({ place: position }) : undefined,
      });
      let shown = -1;
      /** The row that is pointed at, as a curve over the channels. */
      function one(position) {
        if (position === shown) return;
        shown = position;
        row.element.querySelector("h3").textContent = `The vector of position ${position}`;
        const points = found.table[position].map((value, channel) => [channel, value]);
        const series = waves ? waves.map((name, i) => ({ name, points: points.filter(([channel]) => channel % 2 === i) })) : [{ name: `position ${position}`, points }];
        lineChart(row.host, {
          series: series.map((each) => ({ ...each, dots: points.length <= 64 })),
          x: { label: "channel" }, y: { label: "value" }, describe: `The ${scheme} vector of position ${position}, channel by channel.`,
        });
      }
      if (latest) hands();
      else one(Math.min(1, found.table.length - 1));
      for (const [place, name, likeness] of [[near, "dot product", found.product], ...(waves ? [] : [[angle, "cosine", found.cosine]])]) {
        lineChart(place.host, {
          series: [{ name, points: found.distances.map((distance, i) => [distance, likeness[i]]) }],
          x: { label: "distance" }, y: { label: name, zero: true }, describe: `The ${name} of two positions by their distance.`,
        });
      }
      const shares = found.explained.map((share) => `${number(100 * share, 3)} %`);
      plane.words.textContent = `They hold ${shares.join(" and ")} of the variance. Darker, or in the dark brighter, is later.`;
      pathChart(plane.host, { points: found.projection, name: "position", describe: "Positions in the plane of their two main directions, joined in order." });
      return;
    }
    latest = null;
    const parts = [sentence];
    sentence.textContent = said(settings);
    if (found.added) {
      const lines = figure("Bias of each head, by distance", "Keys before the query are at negative distances.");
      const map = figure("By head and distance");
      const sloped = scheme === "alibi" ? figure("A ramp for each head: what it takes from the score of words farther back") : null;
      parts.push(...(sloped ? [sloped.element, folded("The same as lines and as colours", lines.element, map.element)] : [lines.element, folded("The same as colours", map.element)]));
      host.replaceChildren(...parts);
      if (sloped) {
        sloped.words.textContent = "The dot is the query; to its left words lie farther back, and a word’s weight halves every so many words. Steep heads look nearby, flat ones see far.";
        const back = found.distances.flatMap((distance, i) => (distance <= 0 ? [i] : [])).reverse();
        ramps(sloped.host, { heads: found.added.map((row) => back.map((i) => row[i])), describe: "The number that each head adds to a score, by distance back." });
      }
      lineChart(lines.host, {
        series: found.added.map((row, head) => ({ name: `head ${head + 1}`, colour: headColour(head, found.added.length), points: found.distances.map((distance, i) => [distance, row[i]]) })),
        x: { label: "distance" }, y: { label: "added to the score" }, describe: "The number that each head adds to a score, by distance.",
      });
      heatMap(map.host, {
        values: found.added, kind: "diverging", flat: true, rows: { label: "head", names: found.added.map((_, i) => i + 1) },
        columns: { label: "distance", names: found.distances }, describe: "The number added to a score, by head and distance.",
      });
    } else {
      host.replaceChildren(...parts);
    }
    if (found.buckets) {
      const steps = figure("Bucket of each distance");
      host.append(steps.element);
      lineChart(steps.host, {
        series: [{ name: "bucket", points: found.distances.map((distance, i) => [distance, found.buckets[i]]) }],
        x: { label: "distance" }, y: { label: "bucket", zero: true }, describe: "The bucket of each distance.",
      });
    }
  };
}
