// Small networks: a row of nodes for each level, tokens from left to right, one route in bold.

import { s } from "../dom.js";
import { redrawn, series } from "./colours.js";

const [ROOM, WIDEST] = [14, 460];

/**
 * Draw a network.
 * @param picture {levels, length, links: [[[level, token], [level, token]]], route: [[level, token]],
 *   describe}
 */
export function networkPicture(host, picture) {
  redrawn(host, () => draw(host, picture));
}

function draw(host, { levels, length, links, route, describe }) {
  const width = Math.min(WIDEST, Math.max(220, host.clientWidth));
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
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, style: { color: series(1) }, role: "img", "aria-label": describe });
  svg.append(s("path", { class: "wire", d: links.map(way).join("") }),
    s("path", { class: "route", pathLength: steps.length, "stroke-width": Math.min(3, 0.2 * gap), d: `M${at(route[0]).join(" ")}${steps.map(line).join("")}` }));
  for (let level = 0; level < levels; level += 1) {
    for (let token = 0; token < length; token += 1) {
      const [cx, cy] = at([level, token]);
      const lit = on.has(String([level, token]));
      svg.append(s("circle", { cx, cy, r: lit ? knot : small, class: lit ? "knot on" : "knot" }));
    }
  }
  svg.append(s("text", { class: "tick", x: ROOM - 4, y: height - 6 }, "first token"),
    s("text", { class: "tick", x: width - ROOM + 4, y: height - 6, "text-anchor": "end" }, "last token"));
  host.replaceChildren(svg);
}
