// One sentence on its way through a model, as one drawing. Every piece has a column; every stop adds
// a part below, and the parts before it fold to a strip. From stop to stop the parts move, fold and
// unfold where they stand.

import { isStill, number, s } from "../dom.js";
import { labelled } from "./cell_label.js";
import { shownPiece, spokenPiece } from "./links.js";
import { fly, marks } from "./way_flights.js";
import { wayNumbers } from "./way_numbers.js";
import { PARTS } from "./way_parts.js";

const LEFT = 118; // room for the names of parts
const [NARROW, LETTER] = [34, 4.7]; // the least width of a column, and of a letter; a drawing that is wider scrolls
const [GAP, PASSED] = [16, 6]; // between two parts, where the flow is seen, and between two that are folded
const ASIDE = 5; // columns of the decoder beside those of the encoder
const BETWEEN = 0.6; // of a column, between encoder and decoder
const WIDER = 1.35; // a column of the decoder, beside one of the encoder
const FOLDS = { memory: "feedforward" }; // the encoder's last part becomes its one row
const OF_DECODER = ["back", "source", "stream", "writing"]; // which go down in the decoder's newest column
const UNFOLD = 650; // milliseconds

const named = (found, index) => `“${spokenPiece(found.pieces[index])}”`;
const short = (value) => (value < 0 ? `(${number(value, 2)})` : number(value, 2));
const share = (value) => `${number(100 * value, 3)}\u00a0%`;
const strongest = (row) => row.reduce((best, value, i) => (value !== null && (best < 0 || value > row[best]) ? i : best), -1);
/** What scores are divided by: the root of a head's width in most models. */
const rootOf = ({ factor, head_width }) => (Math.abs(factor * Math.sqrt(head_width) - 1) < 1e-6 ? `√${head_width}` : number(1 / factor, 3));
const said = (piece) => `“${spokenPiece(piece).replaceAll("·", " ")}”`;
const goal = (found) => (found.predicts === "hidden" ? "the hidden word" : "the next word");

/** The stops: a short name, a title, what is told, and the part that is drawn. */
const STOPS = [
  { name: "Model", title: "The whole model", part: "text" }, // a drawing of its own, see model_figure.js
  { name: "Pieces", title: "Pieces with numbers", part: "pieces",
    tell: (found) => `${found.hides ? "One word is hidden, and the model will guess it. " : ""}The model does not know letters or words: it knows ${number(found.vocabulary)} pieces. The tokenizer cuts the text into ${found.pieces.length} of them, and each has a number. A dot stands for the space before a word. From here on every piece has a column of its own; click one to follow it.` },
  { name: "Embedding", title: "Embedding + position", part: "embedding",
    tell: (found) => (found.positions ? `Each number picks a vector of ${found.width} channels, and the vector of its position is added, so that word order counts. Blue is above zero, ochre below; ${found.embedding[0].length} channels are drawn.`
      : `Each number picks a vector of ${found.width} channels. Blue is above zero, ochre below; ${found.embedding[0].length} channels are drawn. This model adds no position here: it uses positions inside attention.`) },
  { name: "Blocks", title: "A stack of blocks", part: "blocks",
    tell: (found) => `The vectors go through ${found.layers} ${found.layers === 1 ? "block" : "blocks"}, and are drawn as each leaves them. Each adds to them: first attention, which mixes columns, then a feed-forward network, which works on each column alone. We open block ${found.layer + 1}; click another one to open it.` },
  { name: "Head", title: "Query, key and value", part: "head",
    tell: (found) => `Attention has ${found.heads} ${found.heads === 1 ? "head" : "heads"}. In head ${found.head + 1} each column makes three short vectors of ${found.head_width} channels: a query (what it looks for), a key (what it can be found by) and a value (what it gives).` },
  { name: "Scores", title: "The score matrix", part: "scores",
    tell: (found, query) => {
      const best = strongest(found.scores[query]);
      const [q, k] = [found.query[query], found.key[best]];
      const sum = found.scores[query][best] / found.factor;
      const inNumbers = ` In numbers: ${short(q[0])} · ${short(k[0])} + ${short(q[1])} · ${short(k[1])} + … = ${number(sum, 3)}, divided by ${rootOf(found)}.`;
      return `A query times a key, channel by channel, added up and divided by ${rootOf(found)}, is a score. Rows are queries, columns are keys. ${named(found, query)} scores highest with ${named(found, best)}: ${number(found.scores[query][best], 3)}.${inNumbers} Click a word to follow its row.`;
    } },
  { name: "Softmax", title: "Softmax: scores become shares", part: "weights",
    tell: (found, query) => {
      const best = strongest(found.weights[query]);
      const power = Math.exp(found.scores[query][best]);
      const inNumbers = ` In numbers: e^${number(found.scores[query][best], 3)} = ${number(power, 3)}, divided by the sum of these powers in the row, ${number(power / found.weights[query][best], 3)}.`;
      return `The softmax makes all numbers of a row positive, with a sum of 1. ${named(found, query)} gives ${share(found.weights[query][best])} of its attention to ${named(found, best)}.${inNumbers}`;
    } },
  { name: "Values", title: "Weighted values", part: "values",
    tell: (found, query) => `The values flow to ${named(found, query)}, each times its share, and are added up. Thick lines carry much. The results of all heads together are added to the column.` },
  { name: "Feed-forward", title: "The feed-forward network", part: "feedforward",
    tell: (found, query) => (found.inner ? `Now each column alone: ${found.width} channels widen to ${number(found.inner_width)} neurons and shrink back. In the column of ${named(found, query)} ${share(found.active[query])} of the neurons are active. The result is added to the column.`
      : "Now each column alone goes through a few of several experts. The result is added to the column.") },
  { name: "Output", title: "One column decides", part: "writing", decoder: false,
    tell: (found) => `After all blocks, the vector of ${named(found, found.from)} alone decides on ${goal(found)}: attention has brought there what it needs from the other columns.` },
  { name: "Written", title: "The decoder looks back at what it wrote", part: "back", decoder: true,
    tell: (found) => `The encoder has read. The decoder writes one piece at a time: ${found.read.length === 1 ? `at first there is only ${said(found.read[0])}, the sign to begin` : `so far ${said(found.read.slice(1).join(""))}`}. ${found.cross.back ? "Its newest column asks all before it, in the same way as above, while a mask hides all that is still to come" : "This decoder keeps what it wrote in a state"}.` },
  { name: "Source", title: "Cross-attention: from the source", part: "source", decoder: true,
    tell: (found) => {
      const best = strongest(found.cross.weights);
      return `Then the newest column asks the source: its query meets a key of every column of the encoder. It gives ${share(found.cross.weights[best])} of its attention to ${named(found, best)}, in block ${found.cross.layer + 1} in the mean of the heads. The values flow to it by these shares.`;
    } },
  { name: "Sum", title: "What the decoder adds up", part: "stream", decoder: true,
    tell: (found) => `In block ${found.cross.layer + 1} three parts add to the newest column: self-attention what is written, cross-attention what stands in the source, and a feed-forward network what follows from both. The sum alone decides on ${goal(found)}.` },
  { name: "Logits", title: "Logits: a score for every piece", part: "writing",
    tell: (found) => `This vector is multiplied by a vector for each of the ${number(found.vocabulary)} pieces. Each product is a logit: the higher, the better the piece fits. Below are the ten highest.` },
  { name: "Next word", names: (found) => (found?.predicts === "hidden" ? "Hidden word" : null), title: (found) => (found?.predicts === "hidden" ? "The hidden word" : "The next word"), part: "writing",
    tell: (found) => {
      if (found.ended) return "The end was chosen. Take the last word back to try another way.";
      const then = found.predicts === "hidden" ? "Click a word to put it into the gap, and another to compare." : "Click a word to write it; then everything runs again for the word after it.";
      return `A softmax turns the logits into probabilities: ${share(found.candidates[0].probability)} for ${found.candidates[0].end ? "the end" : named({ pieces: [found.candidates[0].piece] }, 0)}, and ${share(found.others)} for the other ${number(found.vocabulary - found.candidates.length)} together. ${then}`;
    } },
];

/** The stops of a model: one that reads a source and writes has stops of its decoder. */
export const stopsOf = (decoder) => STOPS.filter((each) => each.decoder === undefined || each.decoder === decoder);

/** The title of a stop, which may depend on the model. */
export const titleOf = (stop, found) => (typeof stop.title === "function" ? stop.title(found) : stop.title);

/**
 * Draw the sentence up to a stop.
 * @param found the answer of the call, the same object for the same numbers
 * @param view {stops: those of the model, stop, query: index of the column that is followed, choose: called with a column,
 *   openBlock: called with the number of a block}
 */
export function drawWay(host, found, view) {
  const left = host.clientWidth < 560 ? 76 : LEFT;
  const columns = found.pieces.length;
  const longest = Math.max(...found.pieces.map((piece) => shownPiece(piece).length));
  const passed = [...new Set(view.stops.slice(0, view.stop + 1).map((each) => each.part))];
  const decodes = passed.includes("back");
  // Beside the decoder the encoder's steps are one row, what came out of them: the room is the decoder's.
  const names = decodes ? ["text", "pieces", "memory", ...passed.slice(passed.indexOf("back"))] : passed;
  const all = columns + (decodes ? BETWEEN + WIDER * ASIDE : 0);
  const width = Math.max(host.clientWidth, left + all * Math.max(NARROW, Math.min(44, LETTER * longest + 4)) + 4);
  const step = (width - left - 4) / all;
  const scrolls = width > host.clientWidth;
  const place = { left, step, width, scrolls, seen: host.clientWidth, middle: (i) => left + (i + 0.5) * step, cell: Math.min(step - 4, 74) };
  if (decodes) place.aside = asideOf(found, place);
  const svg = s("svg", { class: [step < 42 ? "narrow" : "", scrolls ? "scrolls" : "", place.aside ? "decodes" : ""].join(" ").trim() || null, width, role: "group", "aria-label": describe(found, view) });
  // Names of rows that go along lie over strips: each has the ground of the page behind it.
  if (scrolls) svg.append(s("filter", { id: "way-ground", x: 0, y: 0, width: 1, height: 1 }, s("feFlood", { style: { floodColor: "var(--paper)" } }), s("feComposite", { in: "SourceGraphic" })));
  const still = isStill();
  const last = host.way?.found === found && host.way.width === width ? host.way : null;
  const before = last?.parts ?? new Map();
  const flies = last && !still && (view.stop > last.stop || (view.stop === last.stop && view.query !== last.query));
  const stood = flies ? marks(before) : null;
  const moves = still ? () => {} : move;
  const parts = new Map();
  const layer = s("g", {});
  let y = 2;
  host.numbers = () => wayNumbers(found, names, { stop: view.stops[view.stop].name, open: view.stops[view.stop].part, query: view.query });
  let gap = 0;
  for (const name of names) {
    const open = name === view.stops[view.stop].part;
    const inner = s("g", {});
    const height = PARTS[name](inner, found, { ...view, open, name: view.stops[view.stop].name, last: view.stop === view.stops.length - 1 }, place);
    const titles = [...inner.querySelectorAll(":scope > .way-title")];
    if (scrolls) titles.forEach((title) => title.setAttribute("y", Number(title.dataset.top) - 3));
    inner.append(...titles); // above what they slide over
    const outer = s("g", { "data-part": name, transform: `translate(0 ${y})` }, inner);
    parts.set(name, { inner, y, height, open });
    moves(outer, parts.get(name), before.get(name) ?? before.get(FOLDS[name]), before.size > 0);
    const isAside = decodes && OF_DECODER.includes(name);
    if (name !== names[0] && !isAside) layer.append(flow(columns, place, y - gap, y, place.aside ? -1 : view.query));
    if (name === "source") layer.append(flow(columns, place, parts.get("back").y - GAP, y));
    if (isAside) layer.append(flow(1, { middle: () => place.aside.newest }, name === "back" ? parts.get("pieces").y + 26 : y - gap, y, 0));
    layer.append(outer);
    gap = !scrolls && names.indexOf(name) > 1 && names.indexOf(name) < names.length - 2 ? PASSED : GAP;
    y += height + gap;
  }
  // The text has no columns yet: the mark begins below it.
  const top = parts.get(names[0]).height + GAP / 2;
  const end = place.aside ? y - GAP : parts.get("writing")?.y ?? y - GAP;
  const at = place.aside?.newest ?? place.middle(view.query); // the decoder's newest column is followed in its stops
  const wide = place.aside?.step ?? step;
  const marked = names.length > 1 ? [s("rect", { class: "way-band", x: at - wide / 2, y: top, width: wide, height: end - top })] : [];
  svg.append(...marked, layer);
  svg.setAttribute("height", y - GAP + 4);
  host.way = { found, width, parts, stop: view.stop, query: view.query };
  const focused = host.contains(document.activeElement) ? document.activeElement : null;
  const [part, column] = [focused?.closest("[data-part]")?.dataset.part, focused?.dataset.column];
  host.replaceChildren(svg);
  labelled(svg);
  if (flies) fly(svg, view.stops[view.stop].name, found, view.query, stood, marks(parts));
  // In a drawing that scrolls the names of rows go along.
  const follow = () => svg.style.setProperty("--scrolled", `${host.scrollLeft}px`);
  host.onscroll = follow;
  // On a narrow screen the column that is followed, or the word that comes out, would lie beyond the edge.
  if (view.stops[view.stop].part === "writing" && !place.aside) host.scrollLeft = (width + left - host.clientWidth) / 2;
  else host.scrollLeft = Math.max(0, at - (host.clientWidth + left) / 2);
  follow();
  const again = column && (svg.querySelector(`[data-part="${part}"] [data-column="${column}"]`) ?? svg.querySelector(`[data-column="${column}"]`));
  if (again) again.focus({ preventScroll: true });
}

/**
 * The decoder's columns, beside the encoder's: the last pieces it wrote, those before them as one, and
 * places to come, which the mask hides.
 */
function asideOf({ pieces, read }, { middle, step }) {
  const first = read.length < ASIDE ? 0 : read.length - ASIDE + 2;
  const shown = [...(first ? [`${first} earlier`] : []), ...read.slice(first)];
  const wide = WIDER * step;
  const at = (i) => middle(pieces.length + BETWEEN - 0.5) + (i + 0.5) * wide;
  return { first, shown, coming: ASIDE - shown.length, step: wide, cell: Math.min(wide - 4, 74), middle: at, newest: at(shown.length - 1) };
}

/** Letters that a scale stretches cannot be read: they come when it is done. */
function lettersLate(inner) {
  for (const text of inner.querySelectorAll("text")) text.animate([{ opacity: 0 }, { opacity: 0, offset: 0.75 }, { opacity: 1 }], UNFOLD * 1.2);
}

/** Let a part go from where and how it stood to where and how it stands. */
function move(outer, now, then, unfolding) {
  const timing = { duration: UNFOLD, easing: "cubic-bezier(0.2, 0.7, 0.2, 1)" };
  const slide = (element, frames) => element.animate(frames, timing);
  if (!then) {
    if (unfolding) {
      slide(now.inner, [{ opacity: 0, transform: "scaleY(0.1)" }, { opacity: 1, transform: "scaleY(1)" }]);
      lettersLate(now.inner);
    }
    return;
  }
  if (then.y !== now.y) slide(outer, [{ transform: `translate(0px, ${then.y}px)` }, { transform: `translate(0px, ${now.y}px)` }]);
  if (then.open === now.open) return;
  if (then.height !== now.height) lettersLate(now.inner);
  slide(now.inner, [{ opacity: 0, transform: `scaleY(${then.height / now.height})` }, { opacity: 1, transform: "scaleY(1)" }]);
  const ghost = s("g", { class: "way-ghost", "aria-hidden": "true" }, ...[...then.inner.childNodes].map((child) => child.cloneNode(true)));
  for (const each of ghost.querySelectorAll("[tabindex]")) each.removeAttribute("tabindex");
  for (const each of ghost.querySelectorAll("text")) each.remove();
  outer.prepend(ghost);
  const end = () => ghost.remove();
  slide(ghost, [{ opacity: 1, transform: "scaleY(1)" }, { opacity: 0, transform: `scaleY(${now.height / then.height})` }]).finished.then(end, end);
}

const describe = (found, { stops, stop, query }) => `${titleOf(stops[stop], found)}. ${stops[stop].tell(found, query)}`;

const flow = (columns, { middle }, from, to, query) => s("g", {}, Array.from({ length: columns }, (_, i) => s("path", { class: `way-flow${i === query ? " followed" : ""}`, d: `M${middle(i)} ${from}L${middle(i)} ${to}` })));
