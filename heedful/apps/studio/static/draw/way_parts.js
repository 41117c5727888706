// The parts of the tour's drawing. Each draws itself into a group, open or folded to a strip, and
// returns its height.

import { number, s } from "../dom.js";
import { css, diverging, ink, sequence } from "./colours.js";
import { shownPiece, spokenPiece } from "./links.js";

const STRIP = 11; // height of a part that is folded
const VECTOR = 96; // height of a vector that is open
const ROW = 22; // of a matrix, at most

const title = (text, y, colour = null) => s("text", { class: "way-name", x: 0, y, style: colour ? { fill: `var(--series-${colour})`, fontWeight: 650 } : {} }, text);
const share = (value) => `${number(Number((100 * value).toFixed(0)))} %`;
const hundredths = (weight) => (weight > 0 && weight < 0.01 ? "<0.01" : number(Number(weight.toFixed(2)))); // longer ones would touch, side by side
const cut = (text, room) => (text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text);

/** The largest size among the numbers of some rows of vectors: the end of the scale that they share. */
const largest = (...rows) => rows.flat(2).reduce((best, value) => Math.max(best, Math.abs(value)), 1e-9);

/** What the colours of a scale stand for, from its lowest number to its highest. */
function scaleOf([low, high], colour, place, y, words = "") {
  const [wide, steps] = [120, 24];
  const x = place.left + 46;
  const at = (i) => low + ((high - low) * i) / (steps - 1);
  return [s("text", { class: "way-value", x: x - 6, y: y + 9, style: { textAnchor: "end" } }, number(low, 2)),
    ...Array.from({ length: steps }, (_, i) => s("rect", { x: x + (i * wide) / steps, y, width: wide / steps + 0.3, height: 10, fill: css(colour(at(i))) })),
    s("text", { class: "way-value way-legend", x: x + wide + 6, y: y + 9, style: { textAnchor: "start" } }, `${number(high, 2)}${words}`)];
}

const legend = (most, place, y) => scaleOf([-most, most], (value) => diverging(value / most), place, y, ", on one scale");

/** A row of vectors: a column of coloured cells for each, marked by what it is and its place. */
function vectors(role, rows, { middle, cell }, { y = 0, height, most = largest(rows) }) {
  return rows.map((row, i) => s("g", { "data-at": `${role}:${i}` }, row.map((value, j) => s("rect", {
    x: middle(i) - cell / 2, y: y + (j * height) / row.length, width: cell, height: height / row.length + 0.4, fill: css(diverging(value / most)),
  }))));
}

function folded(own, name, role, values, place) {
  own.append(title(name, 10), ...vectors(role, values, place, { height: STRIP }));
  return STRIP;
}

/** Something in the drawing that can be clicked, and pressed with the keyboard. */
function pressable(group, press, neighbour) {
  group.addEventListener("click", press);
  group.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (way) {
      event.preventDefault();
      event.stopPropagation();
      neighbour(way)?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      press();
    }
  });
  return group;
}

/** A piece in a box of some width: in smaller letters where it must, then cut. */
function named(piece, x, y, room) {
  const size = Math.max(7, Math.min(13, room / (0.56 * piece.length)));
  return s("text", { x, y: y + 13 + size / 3, style: { fontSize: `${size.toFixed(1)}px` } }, cut(piece, Math.floor(room / (0.56 * size) + 0.01)));
}

/** The pieces as buttons: the one that is pressed is followed. */
function pieces(found, view, { middle, step }, y) {
  return found.pieces.map((piece, i) => {
    const chosen = i === view.query;
    const group = s("g", {
      class: `way-piece${chosen ? " chosen" : ""}`, role: "button", tabindex: chosen ? "0" : "-1", "aria-pressed": String(chosen), "aria-label": `Follow ${spokenPiece(piece)}`, "data-column": i,
    }, s("rect", { x: middle(i) - step / 2 + 2, y, width: step - 4, height: 26, rx: 5 }),
    named(shownPiece(piece), middle(i), y, step - 5), s("title", {}, shownPiece(piece)));
    return pressable(group, () => view.choose(i), (way) => group.parentNode.querySelector(`[data-column="${i + way}"]`));
  });
}

/** A matrix of queries and keys, whose columns stand under the pieces. */
function matrix(own, found, view, place, { role, values, colour, caption, ends }) {
  const fill = (value) => (value === null ? null : css(colour(value)));
  if (!view.open) {
    own.append(title(caption, 10), ...values[view.query].map((value, j) => s("rect", {
      class: value === null ? "way-hidden" : null, x: place.middle(j) - place.cell / 2, y: 0, width: place.cell, height: STRIP, fill: fill(value), "data-at": `${role}:${view.query}:${j}` })));
    return STRIP;
  }
  const tall = Math.min(ROW, 270 / values.length);
  const top = 30;
  values.forEach((row, i) => {
    const name = spokenPiece(found.pieces[i]);
    const line = s("g", { class: "way-row" }, s("text", { class: "way-name", x: place.left - 8, y: top + i * tall + tall * 0.7, "text-anchor": "end" }, cut(name, place.left < 100 ? 8 : 14)),
      ...row.map((value, j) => s("rect", { class: value === null ? "way-hidden" : null, x: place.left + j * place.step + 1, y: top + i * tall, width: place.step - 2, height: tall - 1.5, rx: 2, fill: fill(value), "data-at": `${role}:${i}:${j}` },
        s("title", {}, `${name} → ${spokenPiece(found.pieces[j])}: ${value === null ? "hidden" : number(value, 3)}`))));
    line.addEventListener("click", () => view.choose(i));
    own.append(line);
  });
  const numbers = values[view.query].map((value, j) => {
    const y = top + view.query * tall + tall * 0.72;
    const text = value === null ? "–" : number(value, 2);
    return s("text", { class: "way-value", x: place.middle(j), y, "data-at": `${role} in words:${j}`, "data-with": `${role}:${view.query}:${j}`, style: { fill: value === null ? "var(--soft)" : ink(colour(value)) } }, text);
  });
  const bottom = top + tall * values.length;
  own.append(...scaleOf(ends, colour, place, bottom + 6), ...pieces(found, view, place, 0), s("rect", { class: "way-mark", x: place.left, y: top - 1 + view.query * tall, width: place.step * found.pieces.length, height: tall, rx: 3 }), ...numbers);
  return bottom + 18;
}

/** A curve that carries a share from one column to a place below. */
function carried(place, j, at, [from, to], weight) {
  const bend = (to - from) * 0.55;
  return s("path", { class: "way-flow carried", d: `M${place.middle(j)} ${from}C${place.middle(j)} ${from + bend} ${at} ${to - bend} ${at} ${to}`,
    style: { strokeWidth: `${(0.6 + 11 * weight).toFixed(1)}px`, opacity: String(Math.min(0.9, 0.25 + weight)) }, "data-share": weight });
}

const COMING = 3; // places ahead that are drawn, which the mask hides

/** The columns of the decoder that fit: the last pieces it wrote, and some to come, whose room is theirs. */
function decoderColumns({ read }, place) {
  const room = Math.max(1, Math.floor((place.width - place.left) / place.step) - COMING);
  const first = Math.max(0, read.length - room);
  const middle = (i) => place.left + (i + 0.5) * place.step;
  return { first, shown: read.slice(first), middle };
}

/** What is known of the next word at a stop: its vector, the logits, and the word itself. */
function nextWord(found, { last, name }) {
  const which = found.predicts === "hidden" ? "hidden" : "next";
  if (found.ended) return "the end is written";
  if (!last) return name === "Logits" ? `${number(found.vocabulary)} logits` : `the vector of the ${which} word`;
  const best = found.candidates[0];
  return `the ${which} word: ${best.end ? "(the end)" : cut(spokenPiece(best.piece), 12)}`;
}

/** A rounded frame with words around a place. */
function frameOf(words, at, y, place, mark = "frame", wide = 244) {
  const width = Math.min(Math.max(wide, 8 * words.length + 32), place.width - place.left);
  const x = Math.min(place.width - width - 4, Math.max(place.left, at - width / 2));
  return [s("rect", { class: "way-frame open", x, y, width, height: 28, rx: 14, "data-at": mark }), s("text", { class: "way-next-name", x: x + width / 2, y: y + 18.5, "data-with": mark }, words)];
}

/** The first numbers of a vector, so that its colours are seen to be numbers. */
const firstOf = (vector, count) => `${vector.slice(0, count).map((value) => number(value, 2)).join(", ")}, …`;

/** The first numbers of the column that is followed, below the name of a row. */
const followed = (rows, query, y) => s("text", { class: "way-value", x: 0, y, style: { textAnchor: "start" } }, firstOf(rows[query], 3));

const OF_BOX = { norm: "norm", attention: "attention between the columns", network: "feed-forward in each column" };

/** What a block does, in the order of its boxes in the figure of the model. */
function inWords(boxes, short) {
  if (short || !boxes) return "attention → feed-forward";
  return boxes.map(({ kind, title }) => OF_BOX[kind] ?? title.toLowerCase()).join(" → ");
}

/** All pieces that there are, in the order of their numbers, and where those of the text stand. */
function vocabulary({ ids, vocabulary: count }, { query }, place, y) {
  const wide = place.step * ids.length;
  const at = (id) => place.left + (wide * (id + 0.5)) / count;
  const bend = (y - 56) * 0.55;
  const order = [...ids.keys()].sort((i, j) => (i === query) - (j === query)); // the one that is followed lies above
  return [title("All pieces", y + 14), s("rect", { class: "way-frame", x: place.left, y, width: wide, height: 20, rx: 4 }),
    ...order.flatMap((i) => {
      const kind = i === query ? " followed" : "";
      return [s("path", { class: `way-flow${kind}`, d: `M${place.middle(i)} 52C${place.middle(i)} ${52 + bend} ${at(ids[i])} ${y - bend} ${at(ids[i])} ${y}` }),
        s("rect", { class: `way-entry${kind}`, x: at(ids[i]) - 1, y: y + 1, width: 2, height: 18 })];
    }),
    ...[0, 0.25, 0.5, 0.75, 1].map((part) => Math.min(count - 1, Math.round(part * count))).map((id, i) => s("text", { class: "way-value", x: at(id), y: y + 33, style: { textAnchor: i === 0 ? "start" : i === 4 ? "end" : "middle" } }, number(id)))];
}

export const PARTS = {
  text(own, found, { open }, place) {
    const largest = (1.8 * (place.width - place.left)) / found.text.length; // a letter is about half as wide as high
    const size = Math.max(5, Math.min(open ? 24 : 13, largest));
    own.append(title("Text", open ? 34 : 14), s("text", { class: "way-name", x: place.left, y: open ? 36 : 14, style: { fontSize: `${size}px`, fill: "var(--ink)" } }, found.text));
    return open ? 56 : 18;
  },
  pieces(own, found, view, place) {
    own.append(title("Pieces", 17), ...pieces(found, view, place, 0));
    if (!view.open) return 26;
    own.append(title("Numbers", 44), ...found.ids.map((id, i) => s("text", { class: "way-value", x: place.middle(i), y: 44, "data-at": `number:${i}` }, String(id))),
      ...vocabulary(found, view, place, 200));
    return 232;
  },
  embedding(own, found, { open, query }, place) {
    if (!open) return folded(own, "Embedding", "input", found.embedding, place);
    const rows = [["Token", "token", found.tokens], ["+ position", "position", found.positions], ["= input", "input", found.embedding]].filter(([, , values]) => values);
    const most = largest(...rows.map(([, , values]) => values));
    rows.forEach(([name, role, values], i) => own.append(title(name, i * 108 + 50), followed(values, query, i * 108 + 66), ...vectors(role, values, place, { y: i * 108, height: VECTOR, most })));
    own.append(...legend(most, place, rows.length * 108));
    return rows.length * 108 + 12;
  },
  blocks(own, found, view, place) {
    if (!view.open) return folded(own, `Block ${found.layer + 1}`, `after${found.layer}`, found.attention_output, place);
    const tall = Math.min(64, 320 / found.layers);
    const spoken = tall > 48 ? 20 : 0; // room for the words of a block
    const sizes = found.after.flat(2).map(Math.abs).sort((a, b) => a - b);
    const most = Math.max(1e-9, sizes[Math.floor(0.97 * (sizes.length - 1))]); // a few channels are far larger than all others
    const right = place.step * found.pieces.length;
    for (let i = 0; i < found.layers; i += 1) {
      const y = i * (tall + 12);
      const is = i === found.layer;
      const words = inWords(view.boxes?.[i], place.width < 560);
      const group = s("g", { class: "way-block", role: "button", tabindex: is ? "0" : "-1", "aria-pressed": String(is), "aria-label": `Open block ${i + 1}`, "data-block": i },
        s("rect", { class: `way-frame${is ? " open" : ""}`, x: place.left, y, width: right, height: tall, rx: 8 }),
        spoken ? s("text", { class: "way-name", x: place.left + right / 2, y: y + 15, "text-anchor": "middle" }, words) : null,
        ...vectors(`after${i}`, found.after[i], place, { y: y + spoken + 3, height: tall - spoken - 7, most }));
      own.append(title(`Block ${i + 1}`, y + tall / 2 + 4), pressable(group, () => view.openBlock(i), (way) => own.querySelector(`[data-block="${i + way}"]`)));
      if (i) own.append(...found.pieces.map((_, j) => s("path", { class: "way-flow", d: `M${place.middle(j)} ${y - 12}L${place.middle(j)} ${y}` })));
    }
    own.append(...scaleOf([-most, most], (value) => diverging(value / most), place, found.layers * (tall + 12) - 4, " or more"));
    return found.layers * (tall + 12) + 8;
  },
  head(own, found, { open, query }, place) {
    if (!open) return folded(own, `Head ${found.head + 1}`, "query", found.query, place);
    const most = largest(found.query, found.key, found.value);
    [["Query", found.query], ["Key", found.key], ["Value", found.value]].forEach(([name, values], i) => own.append(title(name, i * 108 + 50, String(i)), followed(values, query, i * 108 + 66), ...vectors(name.toLowerCase(), values, place, { y: i * 108, height: VECTOR, most })));
    own.append(s("rect", { class: "way-mark", x: place.middle(query) - place.cell / 2 - 2, y: -2, width: place.cell + 4, height: VECTOR + 4, rx: 3 }));
    own.append(...legend(most, place, 324));
    return 336;
  },
  scores(own, found, view, place) {
    const most = found.scores.flat().reduce((best, value) => (value === null ? best : Math.max(best, Math.abs(value))), 1e-9);
    return matrix(own, found, view, place, { role: "score", values: found.scores, colour: (value) => diverging(value / most), caption: "Scores", ends: [-most, most] });
  },
  weights(own, found, view, place) {
    return matrix(own, found, view, place, { role: "weight", values: found.weights, colour: sequence, caption: "Shares", ends: [0, 1] });
  },
  values(own, found, view, place) {
    if (!view.open) return folded(own, "Values", "mixed", found.context, place);
    const at = place.middle(view.query);
    own.append(...pieces(found, view, place, 0), title("Value", 75, "2"), ...vectors("given", found.value, place, { y: 34, height: 72 }), title("× share", 124));
    found.weights[view.query].forEach((weight, j) => own.append(carried(place, j, at, [132, 196], weight),
      s("text", { class: "way-value", x: place.middle(j), y: 124, "data-at": `share:${j}` }, hundredths(weight))));
    const only = found.context.map((row, i) => (i === view.query ? row : []));
    own.append(title("Mixed value", 240), ...vectors("mixed", only, place, { y: 198, height: 72 }),
      title("All heads", 302), ...vectors("heads", found.attention_output, place, { y: 282, height: 32 }));
    return 314;
  },
  feedforward(own, found, view, place) {
    if (!view.open) return folded(own, "Feed-forward", "added", found.feedforward_output, place);
    own.append(...pieces(found, view, place, 0));
    let y = 34;
    if (found.inner) {
      own.append(title("Neurons", y + 58), ...vectors("neurons", found.inner, place, { y, height: 108 }), title("active", y + 122),
        ...found.active.map((value, i) => s("text", { class: "way-value", x: place.middle(i), y: y + 122 }, share(value))));
      y += 132;
    }
    const most = largest(found.feedforward_output, found.output);
    own.append(title("Added", y + 30), followed(found.feedforward_output, view.query, y + 44), followed(found.output, view.query, y + 102), ...vectors("added", found.feedforward_output, place, { y, height: 48, most }), title("After the block", y + 88), ...vectors("out", found.output, place, { y: y + 58, height: 48, most }),
      ...legend(most, place, y + 116));
    return y + 128;
  },
  back(own, found, view, place) {
    const { first, shown, middle } = decoderColumns(found, place);
    const box = (i, kind, y) => s("rect", { class: kind, x: middle(i) - place.step / 2 + 2, y, width: place.step - 4, height: 26, rx: 5 });
    const written = (y) => shown.map((piece, i) => s("g", { class: "way-piece" }, named(shownPiece(piece), middle(i), y, place.step - 5)));
    if (!view.open) {
      own.append(title("Written", 12), ...written(-5));
      return 16;
    }
    own.append(title("Written", 17), ...shown.map((_, i) => box(i, `way-frame${i === shown.length - 1 ? " open" : ""}`, 0)), ...written(0));
    const newest = middle(shown.length - 1);
    const back = found.cross.back ?? [];
    own.append(...Array.from({ length: COMING }, (_, i) => box(shown.length + i, "way-frame way-coming", 0)),
      s("text", { class: "way-value", x: middle(shown.length + (COMING - 1) / 2), y: 40 }, "hidden: to come"),
      ...shown.flatMap((_, i) => (back.length ? [carried({ middle }, i, newest, [44, 104], back[first + i]), s("text", { class: "way-value", x: middle(i), y: 40 }, hundredths(back[first + i]))] : [])),
      title("Self-attention", 84), ...frameOf("the newest column, with what is written", newest, 104, place));
    return 136;
  },
  source(own, found, view, place) {
    const { shown, middle } = decoderColumns(found, place);
    const newest = middle(shown.length - 1);
    if (!view.open) {
      own.append(title("Source", 10), ...found.cross.weights.map((weight, j) => s("rect", { x: place.middle(j) - place.cell / 2, y: 0, width: place.cell, height: STRIP, fill: css(sequence(weight)) })));
      return STRIP;
    }
    own.append(...pieces(found, view, place, 0), title("Cross-attention", 74), ...found.cross.weights.flatMap((weight, j) => [
      carried(place, j, newest, [44, 112], weight), s("text", { class: "way-value", x: place.middle(j), y: 40 }, hundredths(weight))]),
    ...frameOf("the newest column, with the source", newest, 112, place, "asking"));
    return 146;
  },
  stream(own, found, view, place) {
    const rows = [["Before", "incoming"], ["+ self-attention", "self"], ["+ cross-attention", "cross"], ["+ feed-forward", "feedforward"], ["After the block", "output"]].filter(([, name]) => found.cross.stream[name]);
    const { stream } = found.cross;
    const most = largest(Object.values(stream));
    const wide = Math.min(430, place.width - place.left - (place.width < 560 ? 4 : 250));
    const strip = (values, y, height) => values.map((value, i) => s("rect", { x: place.left + (i * wide) / values.length, y, width: wide / values.length + 0.4, height, fill: css(diverging(value / most)) }));
    if (!view.open) {
      own.append(title("Decoder", 10), s("g", { "data-at": "stream" }, strip(stream.output, 0, STRIP)));
      return STRIP;
    }
    rows.forEach(([words, name], i) => {
      const y = i * 34 + (name === "output" ? 10 : 0);
      own.append(title(words, y + 16), s("g", { "data-at": `stream ${name}` }, strip(stream[name], y, 24)));
      if (place.width >= 560) own.append(s("text", { class: "way-value", x: place.left + wide + 8, y: y + 16, style: { textAnchor: "start" } }, firstOf(stream[name], 5)));
    });
    return rows.length * 34 + 12;
  },
  writing(own, found, view, place) {
    if (found.cross) { // the decoder's column stands above
      const wide = Math.min(430, place.width - place.left - 4);
      own.append(...frameOf(nextWord(found, view), place.left + wide / 2, 8, place, "word", wide), s("path", { class: "way-flow", d: `M${place.left + wide / 2} -8L${place.left + wide / 2} 8` }));
      return 38;
    }
    own.append(...pieces(found, view, place, 0));
    const width = Math.min(244, place.width - place.left);
    const at = Math.min(place.width - width / 2 - 4, Math.max(place.left + width / 2, place.middle(found.from)));
    own.append(carried(place, found.from, at, [28, 92], 0.6), ...frameOf(nextWord(found, view), at, 92, place, "word"));
    return 122;
  },
};
