// One sentence on its way through a model. Every piece has a column; every stop adds a part below,
// and the parts before it fold to a strip.

import { number, s } from "../dom.js";
import { css, diverging, sequence } from "./colours.js";
import { shownPiece } from "./links.js";

const LEFT = 118; // room for the names of parts
const GAP = 16; // between two parts, where the flow is seen
const STRIP = 12; // height of a part that is folded

const named = (found, index) => `“${shownPiece(found.pieces[index])}”`;
const share = (value) => `${number(100 * value, 3)} %`;
const strongest = (row) => row.reduce((best, value, i) => (value !== null && (best < 0 || value > row[best]) ? i : best), -1);

/** The stops: a short name, a title, what is told, and the part that is drawn. */
export const STOPS = [
  { name: "Text", title: "The text", part: "text",
    tell: (found) => `A sentence goes in. The model does not know letters or words: it knows ${number(found.vocabulary)} pieces.` },
  { name: "Pieces", title: "Pieces with numbers", part: "pieces",
    tell: (found) => `The tokenizer cuts the text into ${found.pieces.length} pieces, and each has a number in the vocabulary. From here on every piece has a column of its own.` },
  { name: "Embedding", title: "Embedding + position", part: "embedding",
    tell: (found) => (found.positions ? `Each number picks a vector of ${found.width} channels, and the vector of its position is added, so that word order counts. Blue is above zero, ochre below; ${found.embedding[0].length} channels are drawn.`
      : `Each number picks a vector of ${found.width} channels. This model adds no position here: it uses positions inside attention.`) },
  { name: "Blocks", title: "A stack of blocks", part: "blocks",
    tell: (found) => `The vectors go through ${found.layers} ${found.layers === 1 ? "block" : "blocks"}. Each adds to them: first attention, which mixes columns, then a feed-forward network, which works on each column alone. We open block ${found.layer + 1}.` },
  { name: "Head", title: "Query, key and value", part: "head",
    tell: (found) => `Attention has ${found.heads} heads. In head ${found.head + 1} each column makes three short vectors of ${found.head_width} channels: a query (what it looks for), a key (what it offers to be found by) and a value (what it gives).` },
  { name: "Scores", title: "The score matrix", part: "scores",
    tell: (found, query) => {
      const best = strongest(found.scores[query]);
      return `A query times a key, channel by channel and added up, then times ${number(found.factor, 3)}, is a score. Rows are queries, columns are keys. ${named(found, query)} scores highest with ${named(found, best)}: ${number(found.scores[query][best], 3)}. Click a word to follow its row.`;
    } },
  { name: "Softmax", title: "Softmax: scores become shares", part: "weights",
    tell: (found, query) => {
      const best = strongest(found.weights[query]);
      return `The softmax makes each row positive with a sum of 1. ${named(found, query)} gives ${share(found.weights[query][best])} of its attention to ${named(found, best)}.`;
    } },
  { name: "Values", title: "Weighted values", part: "values",
    tell: (found, query) => `The values flow to ${named(found, query)}, each times its share, and are added up. Thick lines carry much. All heads together, projected, are added to the stream.` },
  { name: "Feed-forward", title: "The feed-forward network", part: "feedforward",
    tell: (found, query) => (found.inner ? `Now each column alone: ${found.width} channels widen to ${number(found.inner_width)} neurons and shrink back. In the column of ${named(found, query)} ${share(found.active[query])} of the neurons are active. The result is added to the stream.`
      : "Now each column alone goes through a few of several experts. The result is added to the stream.") },
  { name: "Writing", title: "From the source to the next word", part: "writing",
    tell: (found) => (found.cross ? `After all blocks, the decoder writes. Its query for the next word looks at the source once more: the lines are the attention of its block ${found.cross.layer + 1}, the mean of the heads.`
      : "After all blocks, the vector of the last column alone decides on the next piece.") },
  { name: "Next word", title: "A probability for every piece", part: "writing",
    tell: (found) => (found.ended ? "The end was chosen. Take the last word back to try another way."
      : `The last vector, compared with all ${number(found.vocabulary)} pieces, gives logits, and a softmax turns them into probabilities. Click a word to write it; then everything runs again for the word after it.`) },
];

/**
 * Draw the sentence up to a stop.
 * @param view {stop, query: index of the column that is followed, choose: called with a column}
 */
export function drawWay(host, found, view) {
  const width = Math.max(300, host.clientWidth);
  const left = width < 560 ? 64 : LEFT;
  const columns = found.pieces.length;
  const step = (width - left - 4) / columns;
  const place = { left, step, width, middle: (i) => left + (i + 0.5) * step, cell: Math.min(step - 4, 74) };
  const names = [...new Set(STOPS.slice(0, view.stop + 1).map((each) => each.part))];
  const svg = s("svg", { width, role: "img", "aria-label": describe(found, view) });
  let y = 2;
  for (const name of names) {
    const open = name === STOPS[view.stop].part;
    const own = s("g", { class: "unfolding", "data-part": name });
    const height = PARTS[name](own, found, { ...view, open }, place);
    const before = host.places?.get(name);
    own.setAttribute("transform", `translate(0 ${before ?? y})`);
    const to = y;
    if (before !== undefined && before !== y) requestAnimationFrame(() => own.setAttribute("transform", `translate(0 ${to})`));
    host.next ??= new Map();
    host.next.set(name, y);
    svg.append(own);
    y += height + GAP;
    if (name !== names.at(-1)) svg.append(flow(columns, place, y - GAP, y));
  }
  host.places = host.next;
  host.next = undefined;
  svg.setAttribute("height", y);
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.column : null;
  host.replaceChildren(svg);
  if (focused) svg.querySelector(`[data-column="${focused}"]`)?.focus({ preventScroll: true });
}

const describe = (found, { stop, query }) => `${STOPS[stop].title}. ${STOPS[stop].tell(found, query)}`;

const flow = (columns, { middle }, from, to) => s("g", {}, Array.from({ length: columns }, (_, i) => s("path", { class: "way-flow", d: `M${middle(i)} ${from}L${middle(i)} ${to}` })));

const title = (text, y) => s("text", { class: "way-name", x: 0, y }, text);

/** A row of vectors: a column of coloured cells for each. Folded, they are a strip. */
function vectors(rows, { middle, cell }, { y = 0, height, opacity = null }) {
  const most = rows.flat().reduce((best, value) => Math.max(best, Math.abs(value)), 1e-9);
  return rows.flatMap((row, i) => {
    const each = height / row.length;
    return row.map((value, j) => s("rect", {
      x: middle(i) - cell / 2, y: y + j * each, width: cell, height: each + 0.4, fill: css(diverging(value / most)), opacity: opacity?.[i] ?? null,
    }));
  });
}

/** Columns of pieces; with `choose` they are buttons. */
function pieces(found, view, { middle, step }, y, clickable) {
  const room = Math.max(2, Math.floor((step - 8) / 7.5));
  return found.pieces.map((piece, i) => {
    const text = shownPiece(piece);
    const chosen = clickable && i === view.query;
    const group = s("g", {
      class: `way-piece${chosen ? " chosen" : ""}`, ...(clickable ? { role: "button", tabindex: "0", "aria-pressed": String(chosen), "aria-label": `Follow ${text}`, "data-column": i } : {}),
    }, s("rect", { x: middle(i) - step / 2 + 2, y, width: step - 4, height: 26, rx: 5 }),
    s("text", { x: middle(i), y: y + 17.5 }, text.length > room ? `${text.slice(0, room - 1)}…` : text), s("title", {}, text));
    if (clickable) {
      group.addEventListener("click", () => view.choose(i));
      group.addEventListener("keydown", (event) => {
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1 }[event.key];
        if (next !== undefined) {
          event.preventDefault();
          event.stopPropagation();
          group.parentNode.querySelector(`[data-column="${next}"]`)?.focus();
        } else if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          view.choose(i);
        }
      });
    }
    return group;
  });
}

/** A matrix of queries and keys, whose columns stand under the pieces. */
function matrix(own, found, view, place, values, colour, caption) {
  if (!view.open) {
    own.append(title(caption, 10), ...values[view.query].map((value, j) => s("rect", {
      class: value === null ? "way-hidden" : null, x: place.middle(j) - place.cell / 2, y: 0, width: place.cell, height: STRIP, fill: value === null ? null : colour(value) })));
    return STRIP;
  }
  const tall = Math.min(22, 270 / values.length);
  values.forEach((row, i) => {
    const text = shownPiece(found.pieces[i]);
    own.append(s("text", { class: "way-name", x: place.left - 8, y: 30 + i * tall + tall * 0.7, "text-anchor": "end" }, text.length > 14 ? `${text.slice(0, 13)}…` : text));
    row.forEach((value, j) => {
      const cell = s("rect", { class: value === null ? "way-hidden" : null, x: place.left + j * place.step + 1, y: 30 + i * tall, width: place.step - 2, height: tall - 1.5, rx: 2, fill: value === null ? null : colour(value), "data-cell": `${i},${j}` },
        s("title", {}, `${text} → ${shownPiece(found.pieces[j])}: ${value === null ? "hidden" : number(value, 3)}`));
      own.append(cell);
    });
  });
  own.append(...pieces(found, view, place, 0, true), s("rect", { class: "way-mark", x: place.left, y: 29 + view.query * tall, width: place.step * found.pieces.length, height: tall, rx: 3 }),
    ...values[view.query].map((value, j) => s("text", { class: "way-value", x: place.middle(j), y: 30 + tall * values.length + 15 }, value === null ? "–" : number(value, 2))));
  return 30 + tall * values.length + 20;
}

const PARTS = {
  text(own, found, { open }, place) {
    const largest = (1.8 * (place.width - place.left)) / found.text.length; // a letter is about half as wide as high
    const size = Math.max(5, Math.min(open ? 24 : 13, largest));
    own.append(title("Text", open ? 34 : 14), s("text", { class: "way-name", x: place.left, y: open ? 36 : 14, style: { fontSize: `${size}px`, fill: "var(--ink)" } }, found.text));
    return open ? 56 : 18;
  },
  pieces(own, found, view, place) {
    own.append(title("Pieces", 17), ...pieces(found, view, place, 0, false));
    if (view.open) own.append(title("Numbers", 44), ...found.ids.map((id, i) => s("text", { class: "way-value", x: place.middle(i), y: 44 }, String(id))));
    return view.open ? 52 : 26;
  },
  embedding(own, found, { open }, place) {
    if (!open) {
      own.append(title("Embedding", 10), ...vectors(found.embedding, place, { height: STRIP }));
      return STRIP;
    }
    const rows = [["Token", found.tokens], ["+ position", found.positions], ["= input", found.embedding]].filter(([, values]) => values);
    rows.forEach(([name, values], i) => own.append(title(name, i * 108 + 50), ...vectors(values, place, { y: i * 108, height: 96 })));
    return rows.length * 108 - 8;
  },
  blocks(own, found, { open }, place) {
    if (!open) return folded(own, `Block ${found.layer + 1}`, found.attention_output, place);
    const tall = Math.min(56, 300 / found.layers);
    const right = place.step * found.pieces.length;
    for (let i = 0; i < found.layers; i += 1) {
      const y = i * (tall + 12);
      const is = i === found.layer;
      own.append(title(`Block ${i + 1}`, y + tall / 2 + 4), s("rect", { class: `way-frame${is ? " open" : ""}`, x: place.left, y, width: right, height: tall, rx: 8 }),
        s("text", { class: "way-name", x: place.left + right / 2, y: y + tall / 2 + 4, "text-anchor": "middle" }, "attention between the columns → feed-forward in each column"));
      if (i) own.append(flow(found.pieces.length, place, y - 12, y));
    }
    return found.layers * (tall + 12) - 8;
  },
  head(own, found, { open, query }, place) {
    if (!open) return folded(own, `Head ${found.head + 1}`, found.query, place);
    [["Query", found.query], ["Key", found.key], ["Value", found.value]].forEach(([name, values], i) => own.append(title(name, i * 108 + 50), ...vectors(values, place, { y: i * 108, height: 96 })));
    own.append(s("rect", { class: "way-mark", x: place.middle(query) - place.cell / 2 - 2, y: -2, width: place.cell + 4, height: 100, rx: 3 }));
    return 316;
  },
  scores(own, found, view, place) {
    const most = found.scores.flat().reduce((best, value) => (value === null ? best : Math.max(best, Math.abs(value))), 1e-9);
    return matrix(own, found, view, place, found.scores, (value) => css(diverging(value / most)), "Scores");
  },
  weights(own, found, view, place) {
    return matrix(own, found, view, place, found.weights, (value) => css(sequence(value)), "Shares");
  },
  values(own, found, view, place) {
    const weights = found.weights[view.query];
    if (!view.open) return folded(own, "Values", found.context, place);
    own.append(...pieces(found, view, place, 0, true), title("Value", 75), ...vectors(found.value, place, { y: 34, height: 80 }));
    const at = place.middle(view.query);
    weights.forEach((weight, j) => own.append(s("path", { class: "way-flow", d: `M${place.middle(j)} 116C${place.middle(j)} 165 ${at} 150 ${at} 196`, style: { strokeWidth: `${(0.5 + 12 * weight).toFixed(1)}px`, strokeDasharray: weight > 0.08 ? "none" : null } }),
      s("text", { class: "way-value", x: place.middle(j), y: 130 }, number(weight, 2))));
    const only = found.context.map((row, i) => (i === view.query ? row : []));
    own.append(title("Mixed value", 240), ...vectors(only, place, { y: 198, height: 80 }),
      title("All heads", 310), ...vectors(found.attention_output, place, { y: 290, height: 32 }));
    return 324;
  },
  feedforward(own, found, view, place) {
    if (!view.open) return folded(own, "Feed-forward", found.feedforward_output, place);
    own.append(...pieces(found, view, place, 0, true));
    let y = 34;
    if (found.inner) {
      own.append(title("Neurons", y + 80), ...vectors(found.inner, place, { y, height: 150 }),
        ...found.active.map((value, i) => s("text", { class: "way-value", x: place.middle(i), y: y + 164 }, share(Number(value.toFixed(2))))));
      y += 176;
    }
    own.append(title("Added", y + 35), ...vectors(found.feedforward_output, place, { y, height: 56 }), title("After the block", y + 105), ...vectors(found.output, place, { y: y + 68, height: 56 }));
    return y + 126;
  },
  writing(own, found, view, place) {
    own.append(...pieces(found, view, place, 0, false));
    if (found.cross) {
      const at = place.left + (place.step * found.pieces.length) / 2;
      found.cross.weights.forEach((weight, j) => own.append(s("path", { class: "way-flow", d: `M${place.middle(j)} 28C${place.middle(j)} 70 ${at} 60 ${at} 96`, style: { strokeWidth: `${(0.5 + 12 * weight).toFixed(1)}px`, strokeDasharray: weight > 0.08 ? "none" : null } }),
        s("text", { class: "way-value", x: place.middle(j), y: 42 }, number(weight, 2))));
    }
    const words = found.read.map(shownPiece).join(" ");
    own.append(title(found.cross ? "Written so far" : "The text so far", 118), s("text", { class: "way-name", x: place.left, y: 118, style: { fontSize: "15px", fill: "var(--ink)" } }, `${words} …`));
    return 128;
  },
};

function folded(own, name, values, place) {
  own.append(title(name, 10), ...vectors(values, place, { height: STRIP }));
  return STRIP;
}
