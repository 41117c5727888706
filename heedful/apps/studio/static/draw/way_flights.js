// What moves from one stop of the tour to the next: numbers, vectors and shares fly from where they
// stood to what they become. A part marks its shapes with `data-at`, such as “key:3”; the flights name
// them, so that neither knows the other's sizes.

import { s } from "../dom.js";

const BEAT = 420; // milliseconds of a flight
const SWEEP = 2600; // in which a query meets all keys, at most
const SETTLE = 260; // until the parts have made room

const each = (found, flights) => found.pieces.flatMap((_, i) => flights(i));

/**
 * Flights that lead to a stop, by its name: a `path` of marks (the first one is what flies, the others
 * are hidden until it is there), `begin` in milliseconds, `beat` of each stretch, `share` of its colour.
 */
const FLIGHTS = {
  Embedding: (found) => each(found, (i) => [
    { path: [`number:${i}`, `token:${i}`], begin: 20 * i },
    { path: [`token:${i}`, `input:${i}`], begin: 2 * BEAT },
    { path: [`position:${i}`, `input:${i}`], begin: 3 * BEAT },
  ]),
  Blocks: (found) => found.after.flatMap((_, layer) => each(found, (i) => [
    { path: [layer ? `after${layer - 1}:${i}` : `input:${i}`, `after${layer}:${i}`], begin: layer * 1.5 * BEAT },
  ])),
  Head: (found) => each(found, (i) => ["query", "key", "value"].map((role, third) => (
    { path: [found.layer ? `after${found.layer - 1}:${i}` : `input:${i}`, `${role}:${i}`], begin: third * 1.5 * BEAT }))),
  // The query goes along its row; each key comes down to meet it, and there is the score.
  Scores: (found, query) => {
    const beat = Math.min(BEAT, SWEEP / found.pieces.length);
    return [
      { path: [`query:${query}`, ...found.pieces.map((_, j) => `score:${query}:${j}`)], beat },
      ...each(found, (j) => (found.scores[query][j] === null ? [] : [{ path: [`key:${j}`, `score:${query}:${j}`], begin: j * beat, beat }])),
    ];
  },
  Softmax: (found, query) => each(found, (j) => [{ path: [`score:${query}:${j}`, `weight:${query}:${j}`], begin: 90 * j }]),
  Values: (found, query) => [
    ...each(found, (j) => [
      { path: [`weight in words:${j}`, `share:${j}`], begin: 40 * j },
      { path: [`given:${j}`, `mixed:${query}`], begin: 2.5 * BEAT, share: found.weights[query][j] },
    ]),
    { path: [`mixed:${query}`, `heads:${query}`], begin: 4 * BEAT },
  ],
  "Feed-forward": (found) => each(found, (i) => [
    { path: [`heads:${i}`, `neurons:${i}`] },
    { path: [`neurons:${i}`, `added:${i}`], begin: 1.5 * BEAT },
    { path: [`added:${i}`, `out:${i}`], begin: 3 * BEAT },
  ]),
  Output: (found) => each(found, (i) => [{ path: [`out:${i}`, "word"], begin: 40 * i, share: Number(i === found.from) }]),
  Source: (found) => each(found, (i) => [{ path: [`added:${i}`, "asking"], begin: 40 * i, share: found.cross.weights[i] }]),
};

/**
 * Where the marked shapes of a drawing stand.
 * @param parts the parts of the drawing: {inner, y} by name
 * @returns {Map} {node, down: how far its part lies below, x, y, width, height} by mark, within the drawing
 */
export function marks(parts) {
  const found = new Map();
  for (const { inner, y: down } of parts.values()) {
    for (const node of inner.querySelectorAll("[data-at]")) {
      const { x, y, width, height } = node.getBBox();
      found.set(node.dataset.at, { node, down, x, y: y + down, width, height });
    }
  }
  return found;
}

/**
 * Let the numbers fly to the stop that is now drawn.
 * @param svg the drawing, in the page
 * @param name of the stop
 * @param before the marks of the drawing that was there
 * @param now the marks of this one
 */
export function fly(svg, name, found, query, before, now) {
  const arrivals = new Map();
  for (const { path, begin = 0, beat = BEAT, share = 1 } of FLIGHTS[name]?.(found, query) ?? []) {
    const way = path.map((mark, i) => (i ? now.get(mark) : before.get(mark) ?? now.get(mark)));
    if (way.some((place) => !place?.width)) continue;
    svg.append(flight(way, share, { delay: SETTLE + begin, duration: beat * (way.length - 1), easing: way.length > 2 ? "linear" : "ease-in-out" }));
    path.slice(1).forEach((mark, i) => arrivals.set(mark, Math.max(SETTLE + begin + beat * (i + 1), arrivals.get(mark) ?? 0)));
  }
  for (const [mark, duration] of arrivals) {
    const hidden = [{ opacity: 0 }, { opacity: 0, offset: 0.9 }, { opacity: 1 }];
    for (const node of svg.querySelectorAll(`[data-at="${mark}"], [data-with="${mark}"]`)) node.animate(hidden, { duration: duration / 0.9 });
  }
}

/** A copy of a shape that goes from place to place, and is gone at the end. */
function flight(way, share, timing) {
  const [start] = way;
  const within = start.y - start.down; // the copy is drawn where the shape stands in its part
  const keeps = start.node.tagName === "text";
  const frames = way.map((to, i) => {
    // Words keep their size and go from middle to middle; shapes fill the place that they come to.
    const [wide, high] = keeps ? [1, 1] : [to.width / start.width, to.height / start.height];
    const [x, y] = keeps ? [to.x + (to.width - start.width) / 2, to.y + (to.height - start.height) / 2] : [to.x, to.y];
    return { transform: `translate(${x - wide * start.x}px, ${y - high * within}px) scale(${wide}, ${high})`, opacity: i ? Math.max(0.08, share) : 1 };
  });
  const made = s("g", { class: "way-flight", "aria-hidden": "true", style: { opacity: 0 } }, start.node.cloneNode(true));
  // Until it starts, and in a picture that is saved meanwhile, the copy is not seen.
  requestAnimationFrame(() => {
    const end = () => made.remove();
    made.animate(frames, timing).finished.then(end, end);
  });
  return made;
}
