// What a search looked at: a column for each step, lines from each hypothesis to its continuations.

import { h, inSteps, s } from "../dom.js";
import { redrawn } from "./colours.js";

const SIZES = { column: 122, row: 34, box: [104, 26], letters: 8, value: 16 }; // value: where it stands in the box, as the word does
const NARROW = { column: 75, row: 48, box: [64, 40], letters: 7, value: 31 }; // on a phone it stands below the word
const PHONE = 500; // pixels: narrower than this the boxes are narrow
const LEFT = 8;
const TOP = 26;
const STEP = 700; // milliseconds from column to column while the tree grows

/**
 * Draw a tree.
 * @param host where
 * @param tree {columns: [[{label, value, text, share, parent, kind, tell}]], value, first, path, describe, choose}
 *   parent: row in the column before; kind: names a style; value: what values are; text: what stands in the box for the value; share: length of its bar, of
 *   the whole box; path: rows to draw boldly, for each column; second: rows of another way, dashed; tell: the words for who points at it;
 *   choose: called with column and row of a node that is clicked, or −1
 * @returns {mark: frames the node at the end of some rows, or none; grow: lets the columns come one after the other, calls back at the end, and returns what ends it}
 */
export function treeChart(host, tree) {
  const from = (column, node) => (column ? tree.columns[column - 1][node.parent].label : tree.first);
  host.numbers = () => ({ title: tree.describe, columns: ["step", "row", "piece", tree.value, "continues row", "continues", "outcome", "best result"],
    rows: tree.columns.flatMap((column, i) => column.map((node, j) => [i + 1, j + 1, node.label, node.value, i ? node.parent + 1 : null, from(i, node), node.kind, tree.path[i] === j])) });
  redrawn(host, () => draw(host, tree));
  return {
    mark(place) {
      tree.here = place;
      frame(host, tree);
    },
    grow(over) {
      const show = (count) => host.querySelectorAll("[data-at]").forEach((each) => each.classList.toggle("to-come", Number(each.dataset.at) >= count));
      return inSteps(STEP, (column) => {
        if (column > tree.columns.length || !host.isConnected) return false;
        show(column);
        if (column) host.tell(column - 1, tree.path[column - 1] ?? 0);
        host.firstChild.scrollLeft = (column + 1) * sizesOf(host).column - host.clientWidth; // on a phone it moves along
        return true;
      }, () => {
        show(Infinity);
        over();
      });
    },
  };
}

/** Frame the node that was told. */
function frame(host, { here }) {
  for (const each of host.querySelectorAll(".node")) each.classList.toggle("here", Boolean(here) && each.dataset.column === String(here[0]) && each.dataset.row === String(here[1]));
}

const sizesOf = (host) => (host.clientWidth < PHONE ? NARROW : SIZES);

function draw(host, tree) {
  const sizes = sizesOf(host);
  const at = (column, row) => [LEFT + (column + 1) * sizes.column, TOP + row * sizes.row];
  const rows = Math.max(1, ...tree.columns.map((column) => column.length));
  const [width, height] = [LEFT + (tree.columns.length + 1) * sizes.column, TOP + rows * sizes.row + 8];
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `${tree.describe} Arrow keys go through it, Enter chooses.` });
  const nodes = new Map();
  const edges = s("g", {});
  const boxes = s("g", {});
  tree.columns.forEach((column, i) => {
    boxes.append(s("text", { class: "tick", x: at(i, 0)[0] + sizes.box[0] / 2, y: 14, "text-anchor": "middle" }, i + 1));
    column.forEach((node, j) => {
      const bold = tree.path[i] === j;
      const own = box(node, at(i, j), bold, sizes);
      const line = edge(at(i - 1, i ? node.parent : 0), at(i, j), sizes.box, node, `${bold ? " bold" : ""}${tree.second?.[i] === j ? " second" : ""}`);
      Object.assign(own.dataset, { column: i, row: j, at: i });
      line.dataset.at = i;
      nodes.set(`${i},${j}`, own);
      boxes.append(own);
      edges.append(line);
    });
  });
  const first = box({ label: tree.first, kind: "first" }, at(-1, 0), true, sizes);
  Object.assign(first.dataset, { column: -1, row: 0 });
  boxes.append(first);
  svg.append(edges, boxes);
  const readout = h("p", { class: "readout", role: "status" });
  host.tell = listen(svg, nodes, readout, tree);
  const scroll = h("div", { class: "scroll tree" }, svg);
  const before = host.querySelector(".tree")?.scrollLeft;
  host.replaceChildren(scroll, readout);
  scroll.scrollLeft = before ?? 0;
  frame(host, tree);
}

function box(node, [x, y], bold, { box: [width, height], letters, value }) {
  const label = node.label.length > letters ? `${node.label.slice(0, letters - 1)}…` : node.label;
  const own = s("g", { class: `node ${node.kind}${bold ? " bold" : ""}` },
    s("rect", { x, y, width, height, rx: 5 }),
    s("text", { x: x + 6, y: y + 16 }, label));
  if (node.value !== undefined) {
    own.append(s("text", { class: "value", x: x + width - 5, y: y + value, "text-anchor": "end" }, node.text),
      s("rect", { class: "chance", x: x + 2, y: y + height - 5, width: (width - 4) * node.share, height: 3.5, rx: 1.5 }));
  }
  return own;
}

function edge([x, y], [toX, toY], [width, height], node, ways) {
  const [from, to] = [[x + width, y + height / 2], [toX, toY + height / 2]];
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
    if (!own) return;
    const place = [Number(own.dataset.column), Number(own.dataset.row)];
    if (place[0] >= 0) show(...place);
    if (event.type === "click") tree.choose(...place);
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("click", point);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && chosen) tree.choose(...chosen);
    const next = step(event.key, chosen, tree.columns);
    if (!next) return;
    event.preventDefault();
    show(...next);
    nodes.get(next.join(",")).scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return show;
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
