// What a search looked at: a column for each step, lines from each hypothesis to its continuations.

import { h, number, s } from "../dom.js";
import { redrawn } from "./colours.js";

const COLUMN = 122;
const ROW = 34;
const BOX = [104, 26];
const LEFT = 8;
const TOP = 26;
const LETTERS = 8;

/**
 * Draw a tree.
 * @param host where
 * @param tree {columns: [[{label, value, parent, kind, tell}]], value, first, path, describe}
 *   parent: row in the column before; kind: names a style; value: what values are; path: rows to draw boldly, for each
 *   column; second: rows of another way, dashed; tell: the words for who points at it
 */
export function treeChart(host, tree) {
  const from = (column, node) => (column ? tree.columns[column - 1][node.parent].label : tree.first);
  host.numbers = () => ({ title: tree.describe, columns: ["step", "row", "piece", tree.value, "continues row", "continues", "outcome", "best result"],
    rows: tree.columns.flatMap((column, i) => column.map((node, j) => [i + 1, j + 1, node.label, node.value, i ? node.parent + 1 : null, from(i, node), node.kind, tree.path[i] === j])) });
  redrawn(host, () => draw(host, tree));
}

const at = (column, row) => [LEFT + (column + 1) * COLUMN, TOP + row * ROW];

function draw(host, tree) {
  const rows = Math.max(1, ...tree.columns.map((column) => column.length));
  const [width, height] = [LEFT + (tree.columns.length + 1) * COLUMN, TOP + rows * ROW + 8];
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `${tree.describe} Arrow keys go through it.` });
  const nodes = new Map();
  const edges = s("g", {});
  const boxes = s("g", {});
  tree.columns.forEach((column, i) => {
    boxes.append(s("text", { class: "tick", x: at(i, 0)[0] + BOX[0] / 2, y: 14, "text-anchor": "middle" }, i + 1));
    column.forEach((node, j) => {
      const bold = tree.path[i] === j;
      const own = box(node, at(i, j), bold);
      own.dataset.column = i;
      own.dataset.row = j;
      nodes.set(`${i},${j}`, own);
      boxes.append(own);
      edges.append(edge(at(i - 1, i ? node.parent : 0), at(i, j), node, `${bold ? " bold" : ""}${tree.second?.[i] === j ? " second" : ""}`));
    });
  });
  boxes.append(box({ label: tree.first, kind: "first" }, at(-1, 0), true));
  svg.append(edges, boxes);
  const readout = h("p", { class: "readout", role: "status" });
  listen(svg, nodes, readout, tree);
  const scroll = h("div", { class: "scroll tree" }, svg);
  const before = host.querySelector(".tree")?.scrollLeft;
  host.replaceChildren(scroll, readout);
  scroll.scrollLeft = before ?? 0;
}

function box(node, [x, y], bold) {
  const label = node.label.length > LETTERS ? `${node.label.slice(0, LETTERS - 1)}…` : node.label;
  const own = s("g", { class: `node ${node.kind}${bold ? " bold" : ""}` },
    s("rect", { x, y, width: BOX[0], height: BOX[1], rx: 5 }),
    s("text", { x: x + 6, y: y + 17 }, label));
  if (node.value !== undefined) {
    own.append(s("text", { class: "value", x: x + BOX[0] - 5, y: y + 17, "text-anchor": "end" }, number(node.value, 2)));
  }
  return own;
}

function edge([x, y], [toX, toY], node, ways) {
  const [from, to] = [[x + BOX[0], y + BOX[1] / 2], [toX, toY + BOX[1] / 2]];
  const middle = (from[0] + to[0]) / 2;
  return s("path", { class: `edge ${node.kind}${ways}`,
    d: `M${from[0]} ${from[1]}C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}` });
}

function listen(svg, nodes, readout, tree) {
  let chosen = null;
  const show = (column, row) => {
    chosen = [column, row];
    readout.textContent = tree.columns[column][row].tell;
    for (const each of nodes.values()) each.classList.remove("on");
    for (let i = column, j = row; i >= 0; i -= 1) {
      nodes.get(`${i},${j}`).classList.add("on");
      j = tree.columns[i][j].parent;
    }
  };
  const point = (event) => {
    const own = event.target.closest?.(".node");
    if (own?.dataset.column) show(Number(own.dataset.column), Number(own.dataset.row));
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("click", point);
  svg.addEventListener("keydown", (event) => {
    const next = step(event.key, chosen, tree.columns);
    if (!next) return;
    event.preventDefault();
    show(...next);
    nodes.get(next.join(",")).scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

/** Left to where it came from, right to its best continuation, up and down in a step. */
function step(key, chosen, columns) {
  if (!["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"].includes(key) || !columns[0]?.length) return null;
  if (chosen === null) return [0, 0];
  const [column, row] = chosen;
  if (key === "ArrowDown") return [column, Math.min(columns[column].length - 1, row + 1)];
  if (key === "ArrowUp") return [column, Math.max(0, row - 1)];
  if (key === "ArrowLeft") return column ? [column - 1, columns[column][row].parent] : chosen;
  const child = columns[column + 1]?.findIndex((node) => node.parent === row) ?? -1;
  return child < 0 ? chosen : [column + 1, child];
}
