// A pointer and a stretch of the axis that several charts share: one is pointed at and all read,
// one is zoomed and all follow.

import { brushX } from "./d3_brush.js";

const FACTOR = 1.5; // of a step of zooming by keys
const WHEEL = 0.002; // powers of two for a pixel of the wheel

/**
 * Link charts; each is drawn with `linked` in its settings.
 * @param whole the stretch [low, high] of all that there is, asked when it is needed
 * @param change told the stretch to show, or null for the whole
 * @param told told the place that is pointed at, or null when the pointer leaves
 */
export function linkedCharts({ whole, change, told }) {
  const all = new Set();

  /** Show a stretch, within the whole. */
  function zoom([from, to]) {
    const [first, last] = whole();
    const [low, high] = [Math.max(first, Math.min(from, to)), Math.min(last, Math.max(from, to))];
    if (!(high > low)) return;
    change(low <= first && high >= last ? null : [low, high]);
  }

  /** The stretch around a place in pixels, wider by a factor. */
  const around = ({ x: { scale } }, at, factor) => scale.range().map((end) => scale.invert(at + (end - at) * factor));

  function middle({ plot, value }) {
    const [left, right] = plot.x.scale.range();
    const at = value === null ? null : plot.x.scale(value);
    return at !== null && at >= left && at <= right ? at : (left + right) / 2;
  }

  function move(plot, share) {
    const [left, right] = plot.x.scale.range();
    const [first, last] = whole().map((end) => plot.x.scale(end));
    const shift = Math.min(last - right, Math.max(first - left, share * (right - left)));
    zoom([left + shift, right + shift].map((end) => plot.x.scale.invert(end)));
  }

  function keys(event, parts) {
    const { plot } = parts;
    const act = {
      "+": () => zoom(around(plot, middle(parts), 1 / FACTOR)),
      "=": () => zoom(around(plot, middle(parts), 1 / FACTOR)),
      "-": () => zoom(around(plot, middle(parts), FACTOR)),
      0: () => change(null),
      Escape: () => change(null),
      ArrowLeft: event.shiftKey ? () => move(plot, -0.25) : null,
      ArrowRight: event.shiftKey ? () => move(plot, 0.25) : null,
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  function wheel(event, parts) {
    // Without a click or Ctrl before it, the wheel goes on scrolling the page.
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== parts.svg.node()) return;
    event.preventDefault();
    const at = event.clientX - parts.svg.node().getBoundingClientRect().left;
    zoom(around(parts.plot, at, 2 ** (WHEEL * event.deltaY * (event.deltaMode ? 20 : 1))));
  }

  function begin(parts) {
    const brush = brushX().on("end", ({ selection, sourceEvent }) => {
      if (!selection || !sourceEvent) return;
      parts.over.call(brush.move, null);
      zoom(selection.map((place) => parts.plot.x.scale.invert(place)));
    });
    parts.brush = brush;
    parts.svg.on("keydown.linked", (event) => keys(event, parts))
      .on("wheel.linked", (event) => wheel(event, parts), { passive: false })
      .on("dblclick.linked", () => change(null))
      .on("pointerdown.linked", () => parts.svg.node().focus({ preventScroll: true }));
  }

  return {
    /** A chart was drawn. */
    drawn(parts, plot) {
      for (const each of all) if (!each.svg.node().isConnected) all.delete(each);
      if (!parts.brush) begin(parts);
      all.add(parts);
      parts.brush.extent([[plot.left, plot.top], [plot.right, plot.bottom]]);
      parts.over.call(parts.brush);
      // A finger that moves up or down scrolls; its way to the side chooses the stretch.
      parts.over.selectAll("*").style("touch-action", "pan-y");
    },
    /** A chart is pointed at. */
    point(value, source) {
      for (const each of all) each.show(value, each !== source);
      told(value);
    },
    leave() {
      for (const each of all) each.hide();
      told(null);
    },
    /** One step in or out, for buttons. */
    step(inwards) {
      const [first] = all;
      if (first) zoom(around(first.plot, middle(first), inwards ? 1 / FACTOR : FACTOR));
    },
  };
}
