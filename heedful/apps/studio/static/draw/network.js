// Small networks: a row of nodes for each level, tokens from left to right, one route in bold.

import { s } from "../dom.js";
import { redrawn, series } from "./colours.js";

const ROOM = 14;

/**
 * Draw a network.
 * @param picture {levels, length, links: [[[level, token], [level, token]]], route: [[level, token]],
 *   widest: largest width in pixels, shades: of each token of the lowest level, from 0 for pale to 1, or null, colour: number of a series, describe}
 */
export function networkPicture(host, picture) {
  host.route = picture.route;
  redrawn(host, () => draw(host, picture));
}

/**
 * Let a dot go along the route, and draw the route behind it. Ends in the picture as it was.
 * @param sent {travel: milliseconds of the whole way, rest: milliseconds until the dot goes, left: how dark it is
 *   after so many steps, from 0 to 1, told: called with each step}
 */
export function sendAlong(host, { travel, rest, left, told }) {
  cancelAnimationFrame(host.frame);
  const started = performance.now();
  let before = -1;
  const move = (now) => {
    cancelAnimationFrame(host.frame);
    const [steps, way] = [host.route.length - 1, host.querySelector(".route")];
    const at = Math.min(1, Math.max(0, now - started) / travel) * steps;
    const step = Math.floor(at);
    const is = now - started < rest;
    host.move = is ? move : null;
    if (is) {
      const { x, y } = way.getPointAtLength((way.getTotalLength() * at) / steps);
      way.setAttribute("stroke-dasharray", `${at} ${steps}`);
      let dot = host.querySelector(".sent");
      if (!dot) way.ownerSVGElement.append(dot = s("g", { class: "sent" }, s("circle", { class: "ground", r: 7 }), s("circle", { r: 7 })));
      dot.setAttribute("transform", `translate(${x} ${y})`);
      dot.lastChild.setAttribute("fill-opacity", left(step));
    } else {
      way.removeAttribute("stroke-dasharray");
      host.querySelector(".sent")?.remove();
    }
    if (step !== before) told(before = step);
    if (is) host.frame = requestAnimationFrame(move);
  };
  host.frame = requestAnimationFrame(move);
}

function draw(host, { levels, length, links, route, widest = 460, shades = null, colour = 1, describe }) {
  const width = Math.min(widest, Math.max(220, host.clientWidth));
  const rise = levels === 1 ? 0 : Math.min(84, Math.max(26, 190 / (levels - 1)));
  const height = 2 * ROOM + rise * (levels - 1) + (levels === 1 ? 34 : 22);
  const bottom = height - 22 - ROOM;
  const gap = (width - 2 * ROOM) / Math.max(1, length - 1);
  const at = ([level, token]) => [ROOM + gap * token, bottom - rise * level];
  const [knot, small] = [Math.min(7, 0.42 * gap), Math.min(4, 0.34 * gap)];
  const line = ([from, to]) => {
    const [[x1, y1], [x2, y2]] = [at(from), at(to)];
    // Along a level a line would hide the nodes between, so that it makes a bow.
    return y1 === y2 ? `Q${(x1 + x2) / 2} ${y1 - 24} ${x2} ${y2}` : `L${x2} ${y2}`;
  };
  const way = (link) => `M${at(link[0]).join(" ")}${line(link)}`;
  const on = new Set(route.map(String));
  const steps = route.slice(1).map((node, i) => [route[i], node]);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, style: { color: series(colour) }, role: "img", "aria-label": describe });
  // From level to level a link is as strong as what arrives of its token.
  svg.append(...(shades && levels > 1 ? links.map((link) => s("path", { class: "wire lit", "stroke-opacity": shades[link[0][1]], d: way(link) })) : [s("path", { class: "wire", d: links.map(way).join("") })]),
    s("path", { class: "route", pathLength: steps.length, "stroke-width": Math.min(3, 0.2 * gap), d: `M${at(route[0]).join(" ")}${steps.map(line).join("")}` }));
  for (let level = 0; level < levels; level += 1) {
    for (let token = 0; token < length; token += 1) {
      const [cx, cy] = at([level, token]);
      // The ground shows through a pale token, and not the line below it.
      const shade = level === 0 && shades ? shades[token] : null;
      const lit = shade !== null || on.has(String([level, token]));
      if (shade !== null) svg.append(s("circle", { cx, cy, r: knot, class: "knot ground" }));
      svg.append(s("circle", { cx, cy, "fill-opacity": shade === null ? 1 : 0.06 + 0.94 * shade, r: lit ? knot : small, class: lit ? "knot on" : "knot" }));
    }
  }
  svg.append(s("text", { class: "tick", x: ROOM - 4, y: height - 6 }, "first token"),
    s("text", { class: "tick", x: width - ROOM + 4, y: height - 6, "text-anchor": "end" }, "last token"));
  host.replaceChildren(svg);
  host.move?.(performance.now()); // a dot on its way goes on in the new drawing
}
