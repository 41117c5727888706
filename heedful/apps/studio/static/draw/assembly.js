// A Transformer as the paper draws it: stacks from the input at the bottom to the output at the top,
// with a lane for each word, and what flows through the parts that are there.

import { engineering, isStill, number, s } from "../dom.js";
import { mixerOf, mixerTitle, positionsOf } from "../parts.js";
import { SENTENCE, strips, WRITTEN } from "./assembly_numbers.js";
import { redrawn, series } from "./colours.js";

/** Heights of parts and of the gaps between them, in which the vectors stand. */
const [ROW, SMALL_ROW] = [{ height: 44, thin: 27, gap: 19, inside: 12, over: 20 }, { height: 32, thin: 21, gap: 12, inside: 16, over: 8 }];
const WORD = 44; // pixels from word to word
const SPEED = 95; // pixels a second
const SLOW = 26; // where words meet and where they are worked on, so that it is seen
const LETTER = 6.3; // pixels of a detail's letter
const PAUSE = 0.9; // seconds between two waves
const NEXT = "Katzen";

/** What a part does, in the words that its box has room for. */
const DOES = { embedding: "a vector for each word", positions: "so that order counts", all: "words look at each other", causal: "words look back", memory: "words look at the text", ff: "each word alone", output: "a score for every piece" };

const EVERY_PART = { has: () => true };

/** The boxes of a stack from bottom to top; those of a block are marked, and `until` bounds a bypass. */
function boxes(view, decoder) {
  const { values, there, counts } = view;
  const prefix = decoder ? "d_" : "";
  const { norm_placement: placement, residual } = values;
  const found = [];
  const add = (key, box) => {
    if (there.has(key)) found.push({ key, ...box });
  };
  const gone = (key, name, block = true) => add(key, { name, gone: true, block });
  const shared = decoder && counts.shared.d_embedding;
  add(`${prefix}embedding`, { name: "Embedding", count: shared ? 0 : counts.embedding, shared, shape: [SENTENCE.length, values.width] });
  if (positionsOf(values) === "none") {
    if (values.family !== "recurrent") gone(`${prefix}positions`, "no positions", false);
  }
  else if (["sinusoidal", "learned"].includes(values.positions)) {
    add(`${prefix}positions`, { name: "+ Positions", count: values.positions === "learned" ? values.max_length * values.width : 0, shape: [SENTENCE.length, values.width] });
  } else add(`${prefix}positions`, { name: `Positions: ${values.positions.replace("_", " ")}`, thin: true });
  const sublayer = (key, box) => {
    const sum = `${key}_sum`;
    const begin = found.length;
    const norm = { name: values.norm === "rms" ? "RMS norm" : "Layer norm", count: counts.norm, thin: true, block: true };
    if (placement === "pre") add(sum, norm);
    if (box.off) gone(key, box.off);
    else add(key, { ...box, block: true });
    if (box.off) return;
    if (residual) add(sum, { name: placement === "post" ? "Add + norm" : "Add", count: placement === "post" ? counts.norm : 0, thin: true, block: true, bypass: begin });
    else if (there.has(sum)) {
      gone(sum, "no residual");
      if (placement === "post") add(sum, norm);
    }
    if (placement === "none" && there.has(sum)) gone(sum, "no norm");
  };
  const masked = decoder || values.task === "causal_lm";
  const mixing = mixer(view, masked, decoder ? counts.d_self : counts.self);
  if (values.family === "blocks") {
    sublayer(`${prefix}self`, mixing);
    if (decoder) sublayer("cross", { ...attention(values, counts.cross), name: `Cross-attention, ${headsOf(values)}`, mixes: "memory" });
    const network = masked && values.channel_mix ? "Channel mix" : "Feed-forward";
    sublayer(`${prefix}ff`, values.network ? { name: network, count: counts.feedforward, shape: [SENTENCE.length, values.feedforward], alone: true } : { off: "no feed-forward network" });
    return found;
  }
  const sum = { name: "Add, times √½", thin: true, block: true };
  const begin = found.length;
  // The first layer also reads what attention found, so that layers differ in size: their sum is shown.
  const uneven = decoder && counts.d_uneven && there.has("d_repeat");
  add(`${prefix}self`, { ...mixing, block: true, ...(uneven ? { size: engineering(mixing.count * view.layers.decoder), note: `in ${view.layers.decoder} layers` } : {}) });
  if (values.family === "convolution") add(`${prefix}self_sum`, { ...sum, bypass: begin });
  if (!decoder) return found;
  const middle = found.length;
  if (values.family === "convolution") {
    add("cross", { name: "Attention, 1 head", count: counts.cross, shape: [1, SENTENCE.length, SENTENCE.length], mixes: "memory", block: true });
    add("cross_sum", { ...sum, bypass: middle });
  } else {
    const name = { none: "One vector of the text", additive: "Additive attention", general: "Multiplicative attention" }[values.attends];
    add("cross", { name: `${name}, with ${values.attends === "none" ? "" : "readout and "}first state`, count: counts.cross, shape: values.attends === "none" ? null : [SENTENCE.length, SENTENCE.length], mixes: "memory" }); // once, above all layers
  }
  return found;
}

const headsOf = ({ num_heads: heads, scale }) => `${heads} ${heads === 1 ? "head" : "heads"}${scale ? "" : ", unscaled"}`;
const attention = (values, count) => ({ count, shape: [values.num_heads, SENTENCE.length, SENTENCE.length] });

/** The part in which words meet: attention, or what stands in its place. */
function mixer(view, masked, count) {
  const { values } = view;
  const kind = mixerOf(values, masked);
  const every = values.attention_every && kind !== "attention" && values.family === "blocks" ? `, 1 in ${values.attention_every} attention` : "";
  const box = { count, name: `${mixerTitle(values, masked)}${every}` };
  if (kind === "attention") return { ...attention(values, count), name: `${masked ? "Masked self" : "Self"}-attention, ${headsOf(values)}`, mixes: masked ? "causal" : "all" };
  if (kind === "convolution") return { ...box, name: `${box.name} of ${values.kernel_width}`, mixes: masked ? "back" : "near", ...noted(view, masked) };
  if (kind === "recurrent") return { ...box, mixes: masked ? "chain" : "both", ...noted(view, masked) };
  return { ...box, mixes: masked ? "chain" : "all", ...noted(view, masked) };
}

/** What a decoder's layer remembers of a text, however long. */
function noted({ states }, masked) {
  return { note: masked && states?.decoder !== undefined ? `state ${engineering(states.decoder, "B")}` : "" };
}

/** The parameters of what is drawn, in all blocks; a table that two boxes share counts once. */
export function drawnParameters(view) {
  const stack = (decoder) => boxes(view, decoder)
    .reduce((all, box) => all + (box.count ?? 0) * (box.block && view.there.has(decoder ? "d_repeat" : "repeat") ? view.layers[decoder ? "decoder" : "encoder"] : 1), 0);
  return stack(false) + (view.values.task === "translation" ? stack(true) : 0) + (view.there.has("output") ? view.counts.output : 0);
}

/**
 * Draw the model.
 * @param view {values, sized: whether sizes stand in the boxes, instead of what a part does, there: set of parts, next: {name, adds: its parts} or null, newest: parts of the last step, which come in from above, reach: called with a part, to build up to it,
 *   numbers: what a model computes (assembly_numbers.js), or null; counts: parameters by part,
 *   layers: {encoder, decoder}, states: bytes of a layer's state by stack,
 *   broken: whether a part is switched off, so that nobody knows what it writes, moving}
 */
export function assemblyPicture(host, view) {
  host.view = view;
  redrawn(host, () => draw(host));
}

function draw(host) {
  const { view } = host;
  cancelAnimationFrame(host.frame);
  const two = view.values.task === "translation";
  const width = Math.max(300, host.clientWidth);
  const gap = width < 560 ? 14 : 46;
  const column = two || width >= 560 ? (width - gap) / 2 - 2 : width - 4;
  const stacks = [stackOf(view, false, { left: two ? 2 : width < 560 ? (width - column) / 2 : width - column - 2, width: column })]; // words stand on its left
  if (two) stacks.push(stackOf(view, true, { left: column + gap + 2, width: column }));
  const height = Math.max(...stacks.map((each) => each.height), 150);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: stacks[0].narrow ? null : "large", role: "img", "aria-label": describe(view, stacks) });
  svg.append(s("defs", {}, s("marker", { id: "asm-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" },
    s("path", { class: "asm-branch", d: "M0 0L8 4L0 8z" }))));
  for (const each of stacks) place(each, height);
  const ways = stacks.flatMap((each) => each.draw(svg, view));
  if (stacks.length === 2) ways.push(...crossing(svg, stacks, view));
  host.replaceChildren(svg);
  if (view.moving && !isStill()) flow(host, svg, ways, stacks);
}

function stackOf(view, decoder, { left, width }) {
  const all = boxes({ ...view, there: EVERY_PART }, decoder);
  const narrow = width < 280;
  const size = narrow ? SMALL_ROW : ROW;
  const own = decoder ? view.layers.decoder : view.layers.encoder;
  const last = decoder || view.values.task !== "translation";
  const repeat = view.there.has(decoder ? "d_repeat" : "repeat");
  if (last) {
    all.push({ key: "output", name: narrow ? "Output" : "Output projection", count: view.counts.output, shared: view.counts.shared.output, shape: [SENTENCE.length, view.values.vocabulary], after: true },
      { key: "softmax", name: "Softmax", count: 0, shape: [SENTENCE.length, view.values.vocabulary], after: true, thin: true });
  }
  // What is not there yet keeps its place: the outline of the whole model is seen from the start.
  let rise = 34;
  for (const [i, box] of all.entries()) {
    const inside = box.block && !all[i - 1]?.block;
    const outside = !box.block && all[i - 1]?.block && !box.gone;
    rise += size.gap + (inside ? size.inside : 0) + (outside ? 26 : 0);
    box.low = rise;
    box.height = box.thin || box.gone ? size.thin : size.height;
    rise += box.height;
    box.ghost = !view.there.has(box.key);
    box.next = box.ghost && view.next?.adds.includes(box.key) ? view.next : null;
  }
  const list = all.filter((box) => !box.ghost);
  // Beside the names; the words below stand further apart.
  const lanes = [0, 1, 2].map((i) => left + (narrow ? width - 64 : width - 112) + i * (narrow ? 21 : 38));
  const feet = lanes.map((x, i) => x + (i - 1) * Math.max(0, (narrow ? 25 : WORD) - lanes[1] + lanes[0]));
  const grows = view.next?.adds.includes(decoder ? "d_repeat" : "repeat") ? view.next : null;
  const stack = { decoder, all, list, left, width, narrow, lanes, feet, own, repeat, grows, last, size, numbers: view.numbers, newest: view.newest, sized: view.sized, reach: view.reach, height: rise + (last ? 40 : 36), words: decoder ? WRITTEN : SENTENCE };
  stack.written = view.broken ? "?" : decoder ? view.numbers?.words[0].label ?? NEXT : view.values.task === "masked_lm" ? "hidden word" : "next word";
  stack.draw = (svg) => drawStack(svg, stack);
  return stack;
}

/** Turn rises from the bottom into places from the top. */
function place(stack, height) {
  stack.bottom = height - 30;
  for (const box of stack.all) box.y = height - box.low - box.height;
  const last = stack.list.at(-1);
  stack.top = last ? last.y : stack.bottom - 4;
  if (last?.block && last === stack.all.filter((box) => box.block).at(-1)) stack.top += 8 - stack.size.over; // its vectors stand within the frame
}

function drawStack(svg, stack) {
  const { all, list, left, width, lanes, feet, bottom, narrow } = stack;
  const end = Math.min(bottom - 12, stack.top - 10);
  lanes.forEach((x, i) => svg.append(
    s("text", { class: `asm-word${narrow ? " small" : ""}${stack.decoder && !list.length ? " ghost" : ""}`, x: feet[i], y: bottom + 22 }, stack.words[i]),
    s("path", { class: "asm-lane", d: `M${feet[i]} ${bottom + 6}L${x} ${bottom - 6}V${end}` })));
  svg.append(s("text", { class: "asm-side", x: left + 4, y: bottom + 22 }, narrow ? (stack.decoder ? "so far" : "text") : stack.decoder ? "written so far" : "text"));
  frame(svg, stack);
  const ways = list.length === 0 ? [] : lanes.map((x, i) => ({ stack, colour: i, lane: i, points: [[feet[i], bottom + 6], [x, bottom - 6], [x, end]] }));
  for (const box of all.filter((each) => each.ghost)) svg.append(drawGhost(box, stack));
  for (const box of list) {
    svg.append(drawBox(box, stack));
    const vectors = stack.numbers?.vectors[box.key];
    if (vectors) svg.append(strips(vectors, lanes, { key: box.key, y: box.y - stack.size.gap / 2 - (narrow ? 2.5 : 5.5), width: narrow ? 18 : 34, height: narrow ? 5 : 11 }));
    ways.push(...inside(svg, box, stack), ...bypass(svg, box, stack));
  }
  if (stack.last && list.at(-1)?.key === "softmax") {
    const y = stack.top - 9;
    svg.append(s("text", { class: "asm-word next", x: lanes[0] - (narrow ? 10 : 14), y }, stack.written));
    if (!narrow && stack.decoder) svg.append(s("text", { class: "asm-side", x: left + 4, y }, "next word"));
  }
  return ways;
}

function frame(svg, { all, left, width, own, repeat, grows, reach, decoder, narrow, size }) {
  const block = all.filter((box) => box.block);
  const high = Math.min(...block.map((box) => box.y)) - size.over;
  const low = Math.max(...block.map((box) => box.y + box.height)) + 12;
  if (repeat) for (const by of [6, 3]) svg.append(s("rect", { class: "asm-behind", x: left + by, y: high - by, width: width - 1, height: low - high, rx: 9 }));
  const kind = grows ? " next" : block.every((box) => box.ghost) ? " ghost" : "";
  const text = grows ? `+ ${own} ×` : repeat ? `${own} ×` : kind ? "" : "1 ×";
  svg.append(s("rect", { class: `asm-frame${kind}`, x: left, y: high, width: width - 1, height: low - high, rx: 9 }),
    s("text", { class: `asm-times${kind}`, x: left + 4, y: high - (repeat ? 9 : 4), ...(grows ? { "data-next": grows.name, onclick: () => reach(grows.adds[0]) } : {}) }, narrow ? text : [text, decoder ? "decoder" : "", "block"].filter(Boolean).join(" ")));
}

const titleOf = (title, narrow) => (narrow ? title.replace("Masked self-attention", "Masked att.").replace("-attention", "-att.").replace("Feed-forward", "Feed-fwd") : title);

/** The outline of a part that is not there yet; a click builds up to it. */
function drawGhost({ key, next, y, height, name, block }, { left, width, narrow, reach, decoder }) {
  const [x, w] = [left + 8, width - 17];
  const group = s("g", { class: `asm-box ${next ? "next" : "ghost"}`, onclick: () => reach(key), ...(next ? { "data-next": next.name } : {}) },
    s("rect", { x, y, width: w, height, rx: 6 }));
  const title = titleOf(name.split(", ")[0], narrow);
  const text = `${next ? "+ " : ""}${title.replace(/^\+ /, "")}`;
  group.append(s("text", { class: "name", x: x + 8, y: y + height / 2 + 4 }, narrow && text.length > 20 ? `${text.slice(0, 19)}…` : text),
    s("title", {}, next ? `next: ${next.name}` : `${block && decoder ? "decoder, " : ""}to come: ${title}`));
  return group;
}

/** Facts in a line; where they are too many, without the first. */
function detailOf(all, room) {
  const line = all.filter(Boolean).join(" · ");
  return line.length > room && all.length > 1 ? detailOf(all.slice(1), room) : line;
}

function drawBox(box, { left, width, narrow, newest, sized, reach }) {
  const [x, w] = [left + 8, width - 17];
  const group = s("g", { class: `asm-box${box.gone ? " gone" : ""}${box.thin ? " thin" : ""}${box.after ? " after" : ""}${newest.includes(box.key) ? " newest" : ""}`, "data-part": box.key, onclick: () => reach(box.key) },
    s("rect", { x, y: box.y, width: w, height: box.height, rx: 6 }));
  const room = narrow ? Math.floor((width - 78) / 7) : 24;
  const [title, ...rest] = box.thin || box.gone ? [box.name] : box.name.split(", ");
  const size = box.size ?? (box.count === undefined ? "" : box.shared ? `same table${box.count ? ` + ${engineering(box.count)}` : ""}` : box.count === 0 ? "no weights" : engineering(box.count));
  const shape = box.shape ? box.shape.map((each) => number(each)).join(" × ") : box.note ?? "";
  const detail = box.thin || box.gone ? "" : !sized ? rest.filter((each) => !/ heads$/.test(each)).join(", ") || (narrow ? "" : DOES[box.mixes ?? box.key.replace("d_", "")]) : narrow ? rest.join(", ") : detailOf([...rest, size, shape], (width - 132) / LETTER);
  const name = titleOf(title, narrow);
  const [first, second] = narrow ? [13.5, 26.5] : [19, 34];
  if (detail) group.append(s("text", { class: "detail", x: x + 8, y: box.y + second }, detail));
  group.append(s("text", { class: "name", x: x + 8, y: detail ? box.y + first : box.y + box.height / 2 + 4 }, name.length > room && (narrow || !box.gone) ? `${name.slice(0, room - 1)}…` : name), s("title", {}, `${box.name}${box.thin ? `: ${size}` : ""}`));
  return group;
}

/** From which word, i, something goes to which, j: all pairs, back only, or from neighbour to neighbour. */
const MEETS = {
  all: () => true, causal: (i, j) => i < j, chain: (i, j) => j === i + 1, both: (i, j) => Math.abs(i - j) === 1,
  near: (i, j) => Math.abs(i - j) === 1, back: (i, j) => i < j,
};

/** The word of the source that a written one looks at most, with its share. */
function lookedAt(weights, x, y) {
  const most = weights.indexOf(Math.max(...weights));
  return s("g", { class: "asm-looks" }, s("text", { x, y: y + 18 }, SENTENCE[most]), s("text", { x, y: y + 34 }, `${Math.round(100 * weights[most])} %`));
}

/** The ways within a part: between lanes where words meet, a cell for each where they do not. */
function inside(svg, box, { lanes, numbers, ...stack }) {
  const [low, high] = [box.y + box.height - 3, box.y + 3];
  if (box.alone) svg.append(...lanes.map((x) => s("rect", { class: "asm-cell", "data-within": box.key, x: x - 5, y: high + 3, width: 10, height: box.height - 12, rx: 2 })));
  const looks = box.mixes === "memory" && box.height === ROW.height && numbers?.weights[box.key];
  if (looks) svg.append(...lanes.map((x, i) => lookedAt(looks[i].slice(0, SENTENCE.length), x, box.y)));
  const meets = MEETS[box.mixes];
  if (!meets) return [];
  const ways = [];
  const passed = ["chain", "both"].includes(box.mixes); // from word to word, at one height
  lanes.forEach((from, i) => lanes.forEach((to, j) => {
    if (i === j || !meets(i, j)) return;
    const height = (low + high) / 2 + (passed ? Math.sign(i - j) * 4 : 0);
    const points = passed ? [[from, height], [to, height]] : [[from, low], [to, high]];
    const weight = numbers?.weights[box.key]?.[j][i];
    svg.append(s("path", { class: passed ? "asm-mix asm-state" : "asm-mix", "data-within": box.key, ...(weight === undefined ? {} : { style: { opacity: Math.min(1, 0.12 + 1.6 * weight), strokeWidth: 0.8 + 6 * weight } }), d: `M${points.map((point) => point.join(" ")).join("L")}` }));
    ways.push({ stack: { ...stack, lanes }, colour: i, small: true, points, until: passed ? null : high });
  }));
  return ways;
}

/** The way around a part, from below it to the sum. */
function bypass(svg, box, stack) {
  if (box.bypass === undefined) return [];
  const first = stack.list[box.bypass];
  const x = stack.left + stack.width - 4;
  const inner = stack.left + stack.width - 9;
  const [low, high] = [first.y + first.height + 5, box.y + box.height / 2];
  const from = stack.lanes[2];
  svg.append(s("circle", { class: "asm-branch", cx: from, cy: low, r: 2.6 }), s("path", { class: "asm-bypass", "marker-end": "url(#asm-tip)", d: `M${from} ${low}H${x - 5}Q${x} ${low} ${x} ${low - 5}V${high + 5}Q${x} ${high} ${inner} ${high}` }));
  return [{ stack, colour: 2, small: true, points: [[from, low], [x, low], [x, high], [inner, high]], until: high }];
}

/** From the top of the encoder into the decoder's cross-attention. */
function crossing(svg, [encoder, decoder], view) {
  const cross = decoder.list.find((box) => box.key === "cross" && !box.gone);
  if (!cross) return [];
  const from = [encoder.lanes[1], encoder.top - 10];
  const between = encoder.left + encoder.width + (decoder.left - encoder.left - encoder.width) / 2;
  const y = cross.y + cross.height / 2;
  const points = [from, [between, from[1]], [between, y], [decoder.left + 8, y]];
  svg.append(s("path", { class: "asm-memory", d: `M${points.map((point) => point.join(" ")).join("L")}` }));
  if (!encoder.narrow) svg.append(s("text", { class: "asm-side", x: from[0] + 6, y: from[1] - 6 }, view.sized ? `memory ${SENTENCE.length} × ${number(view.values.width)}` : "memory"));
  return [0, 1, 2].map((i) => ({ stack: encoder, crossing: true, delay: i * 0.12, colour: i, points }));
}

/** When the wave of a stack is how high: it slows down where words meet and where each is worked on. */
function clockOf({ list, bottom }) {
  const slow = list.filter((box) => (box.mixes || box.alone) && !box.gone).map(({ y, height }) => ({ from: bottom + 6 - y - height, height })).sort((a, b) => a.from - b.from);
  const at = (y) => {
    const climbed = bottom + 6 - y;
    return slow.reduce((time, { from, height }) => time + Math.max(0, Math.min(height, climbed - from)) * (1 / SLOW - 1 / SPEED), climbed / SPEED);
  };
  const height = (time) => {
    let [climbed, left] = [0, time];
    for (const box of slow) {
      const [before, within] = [(box.from - climbed) / SPEED, box.height / SLOW];
      if (left < before) break;
      if (left < before + within) return bottom + 6 - box.from - (left - before) * SLOW;
      left -= before + within;
      climbed = box.from + box.height;
    }
    return bottom + 6 - climbed - left * SPEED;
  };
  return { at, height };
}

/** A word on its way: a disc of its colour, then of the colours of the words that it met; framed once it was worked on. */
function traveller({ stack, lane, points: [[foot, low], [x, high]], end }) {
  const disc = s("g", {});
  const frame = s("rect", { class: "asm-worked", x: -6.5, y: -6.5, width: 13, height: 13, rx: 2 });
  const dot = s("g", { class: "asm-dot", "data-lane": lane, visibility: "hidden" }, disc, frame);
  const meetings = stack.list.filter((box) => box.mixes && !box.gone);
  const works = stack.list.filter((box) => box.alone && !box.gone);
  const others = ({ mixes }) => stack.lanes.map((_, i) => i).filter((i) => i !== lane && (mixes === "memory" || MEETS[mixes](i, lane)));
  let drawn = null;
  const move = (y) => {
    const met = [...new Set(meetings.filter((box) => y < box.y + box.height / 2).flatMap(others))].sort();
    if (met.join() !== drawn) {
      drawn = met.join();
      dot.setAttribute("data-met", drawn);
      disc.replaceChildren(s("circle", { r: 4.5, fill: series(lane) }), ...met.map((colour, i) => s("path", { d: wedge(0.5 + i / met.length / 2, 0.5 + (i + 1) / met.length / 2), fill: series(colour) })));
    }
    const grown = works.some((box) => y > box.y && y < box.y + box.height) || meetings.some((box) => y > box.y && y < box.y + box.height) ? 1.5 : 1;
    frame.setAttribute("visibility", works.some((box) => y < box.y + box.height / 2) ? "inherit" : "hidden");
    dot.setAttribute("visibility", y <= low && y >= end ? "visible" : "hidden");
    const across = y > high ? foot + ((x - foot) * (low - y)) / (low - high) : x;
    dot.setAttribute("transform", `translate(${across.toFixed(1)} ${y.toFixed(1)}) scale(${grown})`);
  };
  return { dot, move };
}

/** A piece of a disc between two shares of its turn. */
function wedge(from, to) {
  const edge = (share) => [Math.sin(2 * Math.PI * share), -Math.cos(2 * Math.PI * share)].map((value) => (4.5 * value).toFixed(2)).join(" ");
  return `M0 0L${edge(from)}A4.5 4.5 0 0 1 ${edge(to)}Z`;
}

/** Waves of dots: through the encoder, across, through the decoder; a part lights up as they pass. */
function flow(host, svg, ways, stacks) {
  const [encoder, decoder] = stacks;
  const clocks = stacks.map(clockOf);
  const climb = (i) => clocks[i].at(Math.min(stacks[i].top - 10, stacks[i].bottom - 24));
  const crossed = ways.find((way) => way.crossing);
  const arrive = climb(0) + (crossed ? lengthOf(crossed.points) / SPEED : 0.2);
  const cross = decoder?.list.find((box) => box.key === "cross");
  // The decoder's wave reaches cross-attention when the memory does.
  const begin = decoder ? Math.max(0, arrive - (cross ? clocks[1].at(cross.y + cross.height) : 0)) : 0;
  const period = (decoder ? begin + climb(1) : climb(0)) + PAUSE;
  const clock = (stack) => clocks[stack === encoder || !stack.decoder ? 0 : 1];
  const base = (stack) => (stack.decoder ? begin : 0);
  const words = ways.filter((way) => way.lane !== undefined).map((way) => ({ ...way, ...traveller({ ...way, end: way.points.at(-1)[1] }) }));
  const dots = ways.filter((way) => way.lane === undefined).map((way) => {
    const { at } = clock(way.stack);
    const length = lengthOf(way.points);
    const start = way.crossing ? climb(0) + way.delay : base(way.stack) + at(way.points[0][1]);
    const speed = way.crossing || way.until === null ? SPEED : length / (at(way.until) - at(way.points[0][1]));
    const dot = s("circle", { class: "asm-dot", r: way.small ? 3 : 4.5, fill: series(way.colour), visibility: "hidden" });
    return { ...way, start, speed, dot, length };
  });
  svg.append(...[...dots, ...words].map(({ dot }) => dot));
  const lit = stacks.flatMap((stack) => stack.list.map((box) => ({
    elements: svg.querySelectorAll(`[data-part="${box.key}"], [data-within="${box.key}"]`),
    from: base(stack) + clock(stack).at(box.y + box.height), until: base(stack) + clock(stack).at(box.y),
  })));
  const started = performance.now();
  const step = (now) => {
    if (!svg.isConnected) return;
    const time = ((now - started) / 1000) % period;
    for (const { stack, move } of words) move(clock(stack).height(time - base(stack)));
    for (const { dot, start, speed, length, points } of dots) {
      const gone = (time - start) * speed;
      const visible = gone >= 0 && gone <= length;
      dot.setAttribute("visibility", visible ? "visible" : "hidden");
      if (!visible) continue;
      const [x, y] = along(points, gone);
      dot.setAttribute("cx", x.toFixed(1));
      dot.setAttribute("cy", y.toFixed(1));
    }
    for (const { elements, from, until } of lit) for (const each of elements) each.classList.toggle("lit", time >= from && time <= until + 0.15);
    host.frame = requestAnimationFrame(step);
  };
  host.frame = requestAnimationFrame(step);
}

const distance = ([x1, y1], [x2, y2]) => Math.hypot(x2 - x1, y2 - y1);
const lengthOf = (points) => points.slice(1).reduce((sum, point, i) => sum + distance(points[i], point), 0);

function along(points, way) {
  let left = way;
  for (let i = 1; i < points.length; i += 1) {
    const length = distance(points[i - 1], points[i]);
    if (left <= length) {
      const share = length ? left / length : 0;
      return points[i].map((value, axis) => points[i - 1][axis] + (value - points[i - 1][axis]) * share);
    }
    left -= length;
  }
  return points.at(-1);
}

function describe(view, stacks) {
  const of = (stack) => stack.list.filter((box) => !box.gone).map((box) => box.name).join(", ") || "nothing yet";
  return stacks.map((stack) => `${stack.decoder ? "Decoder" : "Stack"}, from bottom to top: ${of(stack)}${stack.repeat ? `; ${stack.own} blocks` : ""}.`).join(" ");
}
