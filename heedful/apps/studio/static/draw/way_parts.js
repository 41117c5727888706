// The parts of the tour's drawing. Each draws itself into a group, open or folded to a strip, and
// returns its height.

import { number, s } from "../dom.js";
import { css, diverging, ink, sequence } from "./colours.js";
import { shownPiece, spokenPiece } from "./links.js";
import { largest, usual } from "./strip.js";

const STRIP = 11; // height of a part that is folded
const VECTOR = 96; // height of a vector that is open
const ROW = 22; // of a matrix, at most
const LETTER = 0.56; // width of a letter of a piece, of its height
const OR_MORE = " or more"; // at the end of a scale that some numbers pass

/** The name of a row, at its left; where the drawing scrolls, above it: `top` is where the row begins. */
const title = (text, y, top = 0, colour = null) => s("text", { class: "way-name way-title", x: 0, y, "data-top": top, style: colour ? { fill: `var(--series-${colour})`, fontWeight: 650 } : {} }, text);
const share = (value) => `${number(Number((100 * value).toFixed(0)))} %`;
const hundredths = (weight) => (weight > 0 && weight < 0.01 ? "<0.01" : number(Number(weight.toFixed(2)))); // longer ones would touch, side by side
const cut = (text, room) => (text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text);

/** What the colours of a scale stand for, from its lowest number to its highest. */
function scaleOf([low, high], colour, place, y, words = "") {
  const [wide, steps] = [120, 24];
  const x = place.left + 46;
  const at = (i) => low + ((high - low) * i) / (steps - 1);
  return [s("text", { class: "way-value", x: x - 6, y: y + 9, style: { textAnchor: "end" } }, number(low, 2)),
    ...Array.from({ length: steps }, (_, i) => s("rect", { x: x + (i * wide) / steps, y, width: wide / steps + 0.3, height: 10, fill: css(colour(at(i))) })),
    s("text", { class: "way-value way-legend", x: x + wide + 6, y: y + 9, style: { textAnchor: "start" } }, `${number(high, 2)}${words}`)];
}

const legend = (most, place, y, words = ", on one scale") => scaleOf([-most, most], (value) => diverging(value / most), place, y, words);

/** A row of vectors: a column of coloured cells for each, marked by what it is and its place. */
function vectors(role, rows, { middle, cell }, { y = 0, height, most = usual(...rows) }) {
  const tall = (row) => height / row.length + (height > 4 * row.length ? -0.8 : 0.4); // a line between cells that have room
  return rows.map((row, i) => s("g", { "data-at": `${role}:${i}` }, row.map((value, j) => s("rect", {
    x: middle(i) - cell / 2, y: y + (j * height) / row.length, width: cell, height: tall(row), fill: css(diverging(value / most)), "data-says": `${role === "neurons" ? "neuron" : `channel ${j + 1}`}: ${number(value, 3)}`,
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

/** A piece in a box of some width: in letters of one size among the others, smaller where the longest needs it, then cut. */
function named(piece, x, y, room, among) {
  const longest = Math.max(...among.map((each) => shownPiece(each).length));
  const size = Math.max(8.5, Math.min(13, room / (LETTER * longest)));
  return s("text", { x, y: y + 13 + size / 3, style: { fontSize: `${size.toFixed(1)}px` } }, cut(shownPiece(piece), Math.floor(room / (LETTER * size) + 0.01)));
}

/** The pieces as buttons: the one that is pressed is followed. */
function pieces(found, view, { middle, step }, y) {
  return found.pieces.map((piece, i) => {
    const chosen = i === view.query;
    const group = s("g", {
      class: `way-piece${chosen ? " chosen" : ""}`, role: "button", tabindex: chosen ? "0" : "-1", "aria-pressed": String(chosen), "aria-label": `Follow ${spokenPiece(piece)}`, "data-column": i,
    }, s("rect", { x: middle(i) - step / 2 + 2, y, width: step - 4, height: 26, rx: 5 }),
    named(piece, middle(i), y, step - 4, found.pieces), s("title", {}, shownPiece(piece)));
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
      ...row.map((value, j) => s("rect", { class: value === null ? "way-hidden" : null, x: place.left + j * place.step + 1, y: top + i * tall, width: place.step - 2, height: tall - 1.5, rx: 2, fill: fill(value), "data-at": `${role}:${i}:${j}`,
        "data-says": `${name} → ${spokenPiece(found.pieces[j])}: ${value === null ? "hidden" : number(value, 3)}` })));
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

const flowTo = (x, from, to) => s("path", { class: "way-flow followed", d: `M${x} ${from}L${x} ${to}` });

/** The decoder's pieces beside the encoder's; the newest one is followed. */
function writtenPieces({ aside }) {
  const { step } = aside;
  const box = (i, kind, piece) => s("g", { class: kind }, s("rect", { x: aside.middle(i) - step / 2 + 2, y: 0, width: step - 4, height: 26, rx: 5 }), piece ? named(piece, aside.middle(i), 0, step - 4, aside.shown) : null);
  return [...aside.shown.map((piece, i) => box(i, `way-piece written${i === aside.shown.length - 1 ? " chosen" : ""}`, piece)),
    ...Array.from({ length: aside.coming }, (_, i) => box(aside.shown.length + i, "way-coming"))];
}

/** A vector in the decoder's newest column, with its name and first numbers beside it. */
function newestVector(words, values, mark, { aside }, { y, height, most }) {
  const { cell } = aside;
  const x = aside.newest - aside.step / 2 - 8;
  const place = { middle: () => aside.newest, cell };
  return [...(values ? vectors(mark, [values], place, { y, height, most }) : [s("rect", { class: "way-frame open", x: aside.newest - cell / 2, y, width: cell, height })]),
    s("text", { class: "way-value", x, y: y + height / 2 + 4, style: { textAnchor: "end" } }, values ? firstOf(values, 3) : ""),
    s("text", { class: "way-name", x: x - 130, y: y + height / 2 + 4, style: { textAnchor: "end" } }, words)];
}

/** Shares of columns, and what they carry to the decoder's newest column. */
const toNewest = (middle, weights, { aside }, end) => weights.flatMap((weight, i) => [
  s("text", { class: "way-value", x: middle(i), y: 12 }, hundredths(weight)), carried({ middle }, i, aside.newest, [18, end], weight)]);

const shaded = (middle, weights, { cell }) => weights.map((weight, i) => s("rect", { x: middle(i) - cell / 2, y: 0, width: cell, height: STRIP, fill: css(sequence(weight)) }));

/** What is known of the next word at a stop: its vector, the logits, and the word itself. */
function nextWord(found, { last, name }) {
  const which = found.predicts === "hidden" ? "hidden" : "next";
  if (found.ended) return "the end is written";
  if (!last) return name === "Logits" ? `${number(found.vocabulary)} logits` : `the vector of the ${which} word`;
  const best = found.candidates[0];
  return `the ${which} word: ${best.end ? "(the end)" : cut(spokenPiece(best.piece), 12)}`;
}

/** A rounded frame with words around a place. */
function frameOf(words, at, y, place, mark) {
  const width = Math.min(Math.max(244, 8 * words.length + 32), place.width - place.left);
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
  return [title("All pieces", y + 14, y), s("rect", { class: "way-frame", x: place.left, y, width: wide, height: 20, rx: 4 }),
    ...order.flatMap((i) => {
      const kind = i === query ? " followed" : "";
      return [s("path", { class: `way-flow${kind}`, d: `M${place.middle(i)} 52C${place.middle(i)} ${52 + bend} ${at(ids[i])} ${y - bend} ${at(ids[i])} ${y}` }),
        s("rect", { class: `way-entry${kind}`, x: at(ids[i]) - 1, y: y + 1, width: 2, height: 18 })];
    }),
    ...[0, 0.25, 0.5, 0.75, 1].map((part) => Math.min(count - 1, Math.round(part * count))).map((id, i) => s("text", { class: "way-value", x: at(id), y: y + 33, style: { textAnchor: i === 0 ? "start" : i === 4 ? "end" : "middle" } }, number(id)))];
}

export const PARTS = {
  text(own, found, { open }, place) {
    const largest = (1.8 * (place.scrolls ? place.seen : place.step * found.pieces.length)) / found.text.length; // a letter is about half as wide as high
    const size = Math.max(5, Math.min(open ? 24 : 13, largest));
    own.append(place.scrolls ? "" : title("Text", open ? 34 : 14), s("text", { class: place.scrolls ? "way-name way-along" : "way-name", x: place.scrolls ? 0 : place.left, y: open ? 36 : 14, style: { fontSize: `${size}px`, fill: "var(--ink)" } }, found.text));
    if (place.aside) own.append(s("text", { class: "way-name", x: place.aside.middle(0) - place.aside.step / 2, y: 14 }, "The decoder writes"));
    return open ? 56 : 18;
  },
  pieces(own, found, view, place) {
    own.append(title("Pieces", 17), ...pieces(found, view, place, 0), ...(place.aside ? writtenPieces(place) : []));
    if (!view.open) return 26;
    own.append(title("Numbers", 44, 47), ...found.ids.map((id, i) => s("text", { class: "way-value", x: place.middle(i), y: 44, "data-at": `number:${i}` }, String(id))),
      ...vocabulary(found, view, place, 200));
    return 232;
  },
  embedding(own, found, { open, query }, place) {
    if (!open) return folded(own, "Embedding", "input", found.embedding, place);
    const rows = [["Token", "token", found.tokens], ["+ position", "position", found.positions], ["= input", "input", found.embedding]].filter(([, , values]) => values);
    const most = largest(...rows.flatMap(([, , values]) => values));
    rows.forEach(([name, role, values], i) => own.append(title(name, i * 108 + 50, i * 108), followed(values, query, i * 108 + 66), ...vectors(role, values, place, { y: i * 108, height: VECTOR, most })));
    own.append(...legend(most, place, rows.length * 108));
    return rows.length * 108 + 12;
  },
  blocks(own, found, view, place) {
    if (!view.open) return folded(own, `Block ${found.layer + 1}`, `after${found.layer}`, found.attention_output, place);
    const tall = Math.min(64, 320 / found.layers);
    const spoken = tall > 48 ? 20 : 0; // room for the words of a block
    const most = usual(...found.after.flat());
    const right = place.step * found.pieces.length;
    for (let i = 0; i < found.layers; i += 1) {
      const y = i * (tall + 12);
      const is = i === found.layer;
      const words = inWords(view.boxes?.[i], place.width < 560);
      const group = s("g", { class: "way-block", role: "button", tabindex: is ? "0" : "-1", "aria-pressed": String(is), "aria-label": `Open block ${i + 1}`, "data-block": i },
        s("rect", { class: `way-frame${is ? " open" : ""}`, x: place.left, y, width: right, height: tall, rx: 8 }),
        spoken ? s("text", { class: "way-name", x: place.left + right / 2, y: y + 15, "text-anchor": "middle" }, words) : null,
        ...vectors(`after${i}`, found.after[i], place, { y: y + spoken + 3, height: tall - spoken - 7, most }));
      own.append(title(`Block ${i + 1}`, y + tall / 2 + 4, y), pressable(group, () => view.openBlock(i), (way) => own.querySelector(`[data-block="${i + way}"]`)));
      if (i) own.append(...found.pieces.map((_, j) => s("path", { class: "way-flow", d: `M${place.middle(j)} ${y - 12}L${place.middle(j)} ${y}` })));
    }
    own.append(...legend(most, place, found.layers * (tall + 12) - 4, OR_MORE));
    return found.layers * (tall + 12) + 8;
  },
  head(own, found, { open, query }, place) {
    if (!open) return folded(own, `Head ${found.head + 1}`, "query", found.query, place);
    const most = largest(...found.query, ...found.key, ...found.value);
    [["Query", found.query], ["Key", found.key], ["Value", found.value]].forEach(([name, values], i) => own.append(title(name, i * 108 + 50, i * 108, String(i)), followed(values, query, i * 108 + 66), ...vectors(name.toLowerCase(), values, place, { y: i * 108, height: VECTOR, most })));
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
    own.append(...pieces(found, view, place, 0), title("Value", 75, 40, "2"), ...vectors("given", found.value, place, { y: 40, height: 66 }), title("× share", 124, 116));
    found.weights[view.query].forEach((weight, j) => own.append(carried(place, j, at, [132, 196], weight),
      s("text", { class: "way-value", x: place.middle(j), y: 124, "data-at": `share:${j}` }, hundredths(weight))));
    const only = found.context.map((row, i) => (i === view.query ? row : []));
    own.append(title("Mixed value", 240, 198), ...vectors("mixed", only, place, { y: 198, height: 72 }),
      title("All heads", 302, 282), ...vectors("heads", found.attention_output, place, { y: 282, height: 32 }));
    return 314;
  },
  feedforward(own, found, view, place) {
    if (!view.open) return folded(own, "Feed-forward", "added", found.feedforward_output, place);
    own.append(...pieces(found, view, place, 0));
    let y = 40;
    if (found.inner) {
      own.append(title("Neurons", y + 58, y), ...vectors("neurons", found.inner, place, { y, height: 108 }), title("active", y + 122, y + 121),
        ...found.active.map((value, i) => s("text", { class: "way-value", x: place.middle(i), y: y + 122 }, share(value))));
      y += 140;
    }
    const most = usual(...found.feedforward_output, ...found.output);
    own.append(title("Added", y + 30, y), followed(found.feedforward_output, view.query, y + 44), followed(found.output, view.query, y + 102), ...vectors("added", found.feedforward_output, place, { y, height: 48, most }), title("After the block", y + 88, y + 58), ...vectors("out", found.output, place, { y: y + 58, height: 48, most }),
      ...legend(most, place, y + 116, OR_MORE));
    return y + 128;
  },
  /** What the encoder made of the text, in the decoder's stops. */
  memory(own, found, view, place) {
    own.append(title("Encoder’s output", 24), ...vectors("added", found.after.at(-1), place, { height: 40 }));
    return 40;
  },
  back(own, found, { open }, place) {
    const { first, middle, shown, coming, newest } = place.aside;
    const all = found.cross.back ?? [];
    const back = first && all.length ? [all.slice(0, first).reduce((sum, weight) => sum + weight), ...all.slice(first)] : all;
    own.append(title("Self-attention", open ? 52 : 10));
    if (!open) {
      own.append(...shaded(middle, back, place.aside));
      return STRIP;
    }
    own.append(...toNewest(middle, back, place, 90), coming ? s("text", { class: "way-value", x: middle(shown.length + (coming - 1) / 2), y: 12 }, coming > 1 ? "hidden: to come" : "hidden") : "",
      ...newestVector("It takes along", found.cross.stream.self, "self", place, { y: 90, height: 84 }));
    if (!back.length) own.append(flowTo(newest, 0, 90));
    return 182;
  },
  source(own, found, { open }, place) {
    own.append(title("Cross-attention", open ? 62 : 10));
    if (!open) {
      own.append(...shaded(place.middle, found.cross.weights, place));
      return STRIP;
    }
    own.append(...toNewest(place.middle, found.cross.weights, place, 130), flowTo(place.aside.newest, 0, 130),
      ...newestVector("It takes along", found.cross.stream.cross, "asking", place, { y: 130, height: 84 }));
    return 222;
  },
  stream(own, found, { open }, place) {
    const { stream } = found.cross;
    const most = largest(...Object.values(stream));
    if (!open) {
      own.append(title("Decoder", 10), ...vectors("stream", [stream.output], { middle: () => place.aside.newest, cell: place.aside.cell }, { height: STRIP, most }));
      return STRIP;
    }
    const rows = [["Before", "incoming"], ["+ self-attention", "self"], ["+ cross-attention", "cross"], ["+ feed-forward", "feedforward"], ["= after the block", "output"]].filter(([, name]) => stream[name]);
    rows.forEach(([words, name], i) => own.append(...newestVector(words, stream[name], `stream ${name}`, place, { y: i * 46, height: 40, most })));
    own.append(...legend(most, place, rows.length * 46 - 16));
    return rows.length * 46;
  },
  writing(own, found, view, place) {
    if (place.aside) {
      own.append(flowTo(place.aside.newest, 0, 8), ...frameOf(nextWord(found, view), place.aside.newest, 8, place, "word"));
      return 38;
    }
    own.append(...pieces(found, view, place, 0));
    const width = Math.min(244, place.width - place.left);
    const at = Math.min(place.width - width / 2 - 4, Math.max(place.left + width / 2, place.middle(found.from)));
    own.append(carried(place, found.from, at, [28, 92], 0.6), ...frameOf(nextWord(found, view), at, 92, place, "word"));
    return 122;
  },
};
