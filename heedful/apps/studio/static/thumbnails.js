// A small drawing for each chapter. They are signs, not measurements: the pages have the numbers.

import { s } from "./dom.js";

const [W, H] = [160, 84];
const range = (count) => Array.from({ length: count }, (_, i) => i);
const box = (x, y, width, height, kind = "soft", opacity = 1) => s("rect", { x, y, width, height, rx: 3, class: `thumb-${kind}`, opacity });
const line = (x1, y1, x2, y2, opacity = 1, width = 2) => s("path", { d: `M${x1} ${y1}L${x2} ${y2}`, class: "thumb-line", opacity, "stroke-width": width });
const arc = (x1, y1, x2, y2, opacity) => s("path", { d: `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`, class: "thumb-line", opacity, "stroke-width": 2.5 });

const word = (x, y, text, kind = "word") => s("text", { x, y, class: `thumb-${kind}` }, text);
const words = (y, ...all) => all.map((text, i) => word(26 + 36 * i, y, text));

const SIGNS = {
  tour: () => range(4).flatMap((i) => [...range(4).map((j) => box(14 + 36 * i, 24 + 9 * j, 24, 7, "fill", 0.2 + 0.2 * ((i * 7 + j * 3) % 5))), line(26 + 36 * i, 60, 26 + 36 * i, 68)]).concat(words(17, "The", "cat", "sat", "on"), box(50, 68, 60, 13, "fill"), word(80, 78, "the", "on")),
  paths: () => range(6).flatMap((i) => [s("circle", { cx: 18 + 25 * i, cy: 60, r: 7, class: "thumb-fill", opacity: 1 - 0.16 * i }), i ? line(0 + 25 * i, 60, 11 + 25 * i, 60) : null]).concat(s("path", { d: "M18 50C50 10 110 10 143 50", class: "thumb-line", "stroke-width": 2.5 }), word(80, 16, "1 step"), word(80, 80, "5 steps")).filter(Boolean),
  steps: () => range(3).flatMap((i) => range(4).map((j) => box(16 + 14 * j, 20 + 16 * i, 12, 13, "fill", 0.2 + 0.8 * ((i + j) % 2)))).concat(range(3).flatMap((i) => range(3).map((j) => box(100 + 16 * j, 20 + 16 * i, 14, 13, "fill", [0.9, 0.3, 0.15, 0.2, 0.8, 0.3, 0.5, 0.3, 0.7][3 * i + j])))).concat(line(76, 42, 94, 42), word(43, 14, "queries"), word(123, 14, "weights")),
  attention: () => [[0, 1, 1], [1, 1, 0.4], [2, 0, 0.9], [3, 2, 0.6], [3, 0, 0.3]].map(([a, b, o]) => arc(26 + 36 * a, 24, 26 + 36 * b, 62, o)).concat(words(19, "The", "cat", "is", "tired"), words(74, "The", "cat", "is", "tired")),
  positions: () => range(9).flatMap((i) => range(16).map((j) => box(8 + 9 * j, 6 + 8 * i, 8, 7, "fill", 0.5 + 0.45 * Math.sin((i + 1) / 1.6 ** (j / 2))))),
  block: () => [box(46, 8, 92, 12, "fill", 0.9), box(46, 36, 92, 12, "fill", 0.5), line(24, 4, 24, 80), line(24, 26, 92, 26), line(92, 20, 92, 26), line(24, 58, 92, 58), line(92, 48, 92, 58), s("circle", { cx: 24, cy: 26, r: 5, class: "thumb-fill" }), s("circle", { cx: 24, cy: 58, r: 5, class: "thumb-fill" }), word(92, 17, "network", "on"), word(92, 45, "attention", "on")],
  masks: () => range(6).flatMap((i) => range(6).map((j) => box(44 + 12 * j, 6 + 12 * i, 11, 11, j <= i ? "fill" : "soft", j <= i ? 0.35 + 0.1 * j : 0.6))),
  builder: () => [box(20, 58, 52, 16, "soft"), box(20, 36, 52, 18, "fill", 0.6), box(20, 10, 52, 22, "fill", 0.9), box(88, 58, 52, 16, "soft"), box(88, 36, 52, 18, "fill", 0.6), s("rect", { x: 88, y: 10, width: 52, height: 22, rx: 3, class: "thumb-open" })],
  image: () => range(4).flatMap((i) => range(4).map((j) => box(46 + 18 * j, 6 + 18 * i, 16, 16, "fill", [0.1, 0.8, 0.8, 0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.3, 0.8, 0.1, 0.1, 0.9, 0.2, 0.1][4 * i + j]))),
  everywhere: () => [box(10, 10, 40, 10, "fill", 0.8), box(10, 24, 26, 10, "fill", 0.4), box(10, 38, 34, 10, "fill", 0.6), ...range(9).map((i) => box(62 + 13 * (i % 3), 10 + 13 * Math.floor(i / 3), 11, 11, "fill", [0.2, 0.7, 0.3, 0.6, 0.9, 0.5, 0.3, 0.8, 0.2][i])), ...range(5).map((i) => box(108 + 9 * i, 36 - [0, 8, 16, 8, 20][i], 9, 6, "fill", 0.9)), line(30, 52, 30, 64), line(80, 52, 80, 64), line(130, 52, 130, 64), box(10, 64, 140, 14, "fill")],
  translate: () => [box(10, 14, 34, 12), box(50, 14, 44, 12), box(100, 14, 46, 12), word(27, 23, "good"), word(72, 23, "morning"), word(123, 23, "Anna"), ...[[10, 48, "Guten"], [64, 36, "Tag"], [106, 40, "Anna"]].flatMap(([x, wide, text]) => [box(x, 57, wide, 14, "fill"), word(x + wide / 2, 67.5, text, "on")]), arc(27, 27, 34, 57, 0.8), arc(72, 27, 82, 57, 0.8), arc(123, 27, 126, 57, 0.8)],
};

const ellipse = (cx, cy, r) => s("circle", { cx, cy, r, class: "thumb-fill" });
const path = (d) => s("path", { d, class: "thumb-line", "stroke-width": 3, fill: "none" });

/** What the models at hand read. */
Object.assign(SIGNS, {
  "bach-chorales": () => [[12, 8, 40], [58, 16, 30], [94, 8, 54], [12, 26, 30], [48, 30, 46], [100, 24, 46], [12, 46, 56], [74, 42, 34], [114, 50, 34], [12, 66, 40], [58, 72, 40], [104, 66, 44]].map(([x, y, w]) => box(x, y, w, 6, "fill", 0.9)),
  "coin-player": () => [...range(5).flatMap((i) => range(3).map((j) => box(32 + 20 * i, 12 + 21 * j, 18, 19))), ...[[41, 21], [101, 21], [81, 63], [121, 63]].map(([x, y]) => ellipse(x, y, 6))],
  "digit-pixels": () => range(7).flatMap((i) => range(7).map((j) => box(46 + 10 * j, 7 + 10 * i, 9, 9, "fill", i > 3 ? 0.07 : [0, 28, 34, 2].map((row) => (row >> (6 - j)) & 1)[i] ? 0.95 : 0.18))),
  digits: () => range(4).flatMap((i) => range(4).map((j) => box(46 + 18 * j, 6 + 18 * i, 16, 16, "fill", [0.1, 0.8, 0.8, 0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.3, 0.8, 0.1, 0.1, 0.9, 0.2, 0.1][4 * i + j]))),
  "room-actor": () => [s("rect", { x: 34, y: 6, width: 92, height: 72, class: "thumb-open" }), box(46, 16, 16, 16, "fill", 0.5), box(98, 50, 16, 16, "fill", 0.9), ellipse(60, 60, 8), path("M70 60H92")],
  "seasonal-series": () => [path("M8 60C20 10 32 10 44 50S68 74 80 40S104 10 116 46"), s("path", { d: "M116 46C128 74 140 60 152 30", class: "thumb-line", "stroke-width": 3, fill: "none", "stroke-dasharray": "5 5" })],
  "spoken-digits": () => range(14).flatMap((i) => range(6).map((j) => box(10 + 10 * i, 66 - 12 * j, 9, 11, "fill", 0.12 + 0.85 * Math.exp(-((j - 2 - 2 * Math.sin(i / 2.5)) ** 2)) * Math.exp(-(((i - 6) / 4) ** 2))))),
});

/** The sign of a chapter, by the name of its first page, or of a model at hand. */
export const thumbnail = (name) => s("svg", { class: "thumbnail", viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" }, SIGNS[name]?.() ?? []);
