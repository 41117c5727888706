// A whole model as the figure of the 2017 paper: encoder left, decoder right, the input below and
// the output above. A box opens where it stands, and its stack then takes the room of the other.

import { engineering, h, isStill, s } from "../dom.js";
import { redrawn } from "./colours.js";

const THIN = ["norm", "sum", "positions", "softmax"];
const FORK = 22; // pixels between the arrows that enter attention: query, key and value
const TURN = 6; // radius of a wire's corner
const [OPENS, ENTERS] = [320, 750]; // milliseconds

/** The name of a box in the address. */
export const addressOfBox = (stack, box) => `${stack.name}.${box.key}`;

/** The block of a stack that is shown, of those that there are. */
export const shownBlock = (stack, block) => Math.min(Math.max(0, block), stack.layers - 1);

/** All boxes of a stack with one of its blocks, from the input to the output. */
export const boxesOf = (stack, block) => [...stack.input, ...stack.blocks[shownBlock(stack, block)], ...stack.output];

/**
 * Draw the model.
 * @param found answer of the call `figure`
 * @param view {open: address of a box, or empty; block: index of the block that is shown;
 *   text: what goes in; ends: words at the ends of a stack; choose: told the box that was pressed;
 *   chooseBlock: told an index; inside: fills the place of an open box, given it, a stack and a box}
 */
export function modelFigure(host, found, view) {
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.box : null;
  const before = host.querySelector("[aria-expanded=true]")?.dataset.box;
  const opened = found.stacks.find((stack) => view.open.startsWith(`${stack.name}.`))?.name ?? "";
  const wires = s("svg", { class: "model-wires", "aria-hidden": "true" });
  const stacks = found.stacks.map((stack) => stackOf(stack, view));
  const figure = h("div", { class: `model-figure of-${found.stacks.length}`, role: "group", "data-open": opened,
    "aria-label": "The whole model, from its input below to its output above. Arrow keys go from box to box, Enter opens one, Escape closes it" }, stacks, wires);
  figure.addEventListener("keydown", (event) => move(event, figure, view));
  host.replaceChildren(figure);
  const again = focused && figure.querySelector(`[data-box="${focused}"]`);
  if (again) {
    again.focus({ preventScroll: true });
    again.scrollIntoView({ block: "nearest" }); // what opens below a box may move it
  }
  const panel = figure.querySelector(".model-inside");
  if (panel && before !== view.open && !isStill()) {
    panel.animate([{ opacity: 0, transform: "scaleY(0.3)" }, { opacity: 1, transform: "none" }], { duration: OPENS, easing: "ease-out" });
  }
  const draw = () => drawWires(wires, figure, found);
  const grows = new ResizeObserver(draw); // what opens fills up later, and boxes beside it move
  for (const each of [figure, ...stacks]) grows.observe(each);
  redrawn(host, draw);
}

/**
 * Go into the model where its input enters: the figure grows from there and fades, over what is drawn next.
 * @param figure the element, still in its place
 * @returns called with a host, which has a position: over which the figure fades
 */
export function zoomInto(figure) {
  const [own, input] = [figure, figure.querySelector('[data-end="input"]')].map((each) => each.getBoundingClientRect());
  const [x, y] = [input.left + input.width / 2 - own.left, input.top - own.top];
  return (host) => {
    const over = h("div", { class: "zoomed", inert: true, "aria-hidden": "true", }, h("div", { style: { width: `${own.width}px` } }, figure));
    const frames = [{ opacity: 1 }, { opacity: 0, transform: `translateY(${-y}px) scale(2.6)` }];
    host.append(over);
    const end = () => over.remove();
    figure.style.transformOrigin = `${x}px ${y}px`;
    figure.animate(frames, { duration: ENTERS, easing: "ease-in" }).finished.then(end, end);
  };
}

function stackOf(stack, view) {
  const box = (each) => boxOf(stack, each, view);
  const at = shownBlock(stack, view.block);
  const ends = view.ends(stack);
  const choose = h("select", { "aria-label": `Block of the ${stack.name} that is shown`, onchange: (event) => view.chooseBlock(Number(event.target.value)) },
    Array.from({ length: stack.layers }, (_, i) => h("option", { value: i, selected: i === at }, String(i + 1))));
  return h("div", { class: "model-stack", role: "group", "aria-label": stack.name === "encoder" ? "Encoder" : "Decoder", "data-stack": stack.name },
    h("p", { class: "model-end", "data-end": "input" }, h("strong", {}, ends.input), ends.text ? h("span", { dir: "auto" }, ends.text) : null),
    stack.input.map(box),
    h("div", { class: "model-frame" },
      h("div", { class: "model-block" }, stack.blocks[at].map(box)),
      h("div", { class: "model-times" }, h("span", {}, `${stack.layers} ×`), stack.layers > 1 ? choose : null)),
    stack.output.map(box),
    ends.output ? h("p", { class: "model-end", "data-end": "output" }, h("strong", {}, ends.output)) : null);
}

function boxOf(stack, box, view) {
  const address = addressOfBox(stack, box);
  const open = view.open === address;
  const note = [box.note, box.parameters ? `${engineering(box.parameters)} params` : ""].filter(Boolean).join(" · ");
  const press = h("button", { type: "button", "aria-expanded": String(open), "data-box": address, onclick: () => view.choose(open ? "" : address) },
    h("span", { class: "title" }, box.title), note ? h("span", { class: "size" }, note) : null);
  const made = h("div", { class: `model-box ${box.kind}${THIN.includes(box.kind) ? " thin" : ""}${open ? " open" : ""}` }, press);
  if (open) {
    const panel = h("div", { class: "model-inside", role: "region", "aria-label": `${box.title}, opened` });
    made.append(panel);
    view.inside(panel, stack, box);
  }
  return made;
}

/** Arrow keys go up and down the boxes in the order of the data; Escape closes. */
function move(event, figure, view) {
  if (event.key === "Escape" && view.open) {
    figure.querySelector(`[data-box="${view.open}"]`).focus();
    view.choose("");
    return;
  }
  const all = [...figure.querySelectorAll("[data-box]")];
  const at = all.indexOf(event.target);
  const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (at < 0 || !step) return;
  event.preventDefault();
  all[Math.min(all.length - 1, Math.max(0, at + step))].focus();
}

/** Lines between the boxes, measured where these stand. */
function drawWires(svg, figure, found) {
  const origin = figure.getBoundingClientRect();
  const place = (element) => {
    const box = element.getBoundingClientRect();
    const [left, top] = [box.left - origin.left, box.top - origin.top];
    return { left, right: left + box.width, top, bottom: top + box.height, middle: left + box.width / 2, height: box.height };
  };
  svg.setAttribute("viewBox", `0 0 ${origin.width} ${origin.height}`);
  svg.setAttribute("width", origin.width);
  svg.setAttribute("height", origin.height);
  const paths = found.stacks.flatMap((stack, i) => stackWires(figure.querySelector(`[data-stack="${stack.name}"]`), place, i > 0 || found.stacks.length === 1));
  const [encoder, decoder] = [...figure.querySelectorAll(".model-stack")];
  if (decoder) paths.push(...memory(encoder, decoder, place));
  svg.replaceChildren(...paths);
}

const wire = (points, kind = "") => {
  const [first, ...rest] = points;
  const d = rest.map(([x, y], i) => {
    const next = rest[i + 1];
    if (!next) return `L${x} ${y}`;
    const before = rest[i - 1] ?? first;
    const toward = ([a, b]) => [x + Math.sign(a - x) * Math.min(TURN, Math.abs(a - x)), y + Math.sign(b - y) * Math.min(TURN, Math.abs(b - y))];
    return `L${toward(before).join(" ")}Q${x} ${y} ${toward(next).join(" ")}`;
  });
  return s("path", { class: `model-wire ${kind}`, d: `M${first.join(" ")}${d.join("")}` });
};
const tip = (x, y, [dx, dy]) => s("path", { class: "model-tip", d: `M${x} ${y}L${x - 6 * dx - 3.5 * dy} ${y - 6 * dy - 3.5 * dx}L${x - 6 * dx + 3.5 * dy} ${y - 6 * dy + 3.5 * dx}Z` });

/** From each box to the next one, and around each sub-layer to its sum. */
function stackWires(stack, place, right) {
  const steps = [...stack.querySelectorAll(".model-box, .model-end")];
  const x = place(stack.querySelector(".model-block")).middle;
  const made = [];
  steps.forEach((element, i) => {
    const before = steps[i - 1];
    if (!before) return;
    const [from, to] = [place(before).top, place(element).bottom];
    made.push(wire([[x, from], [x, to]]));
    // Queries, keys and values are three maps of one stream; across, keys and values come from the side.
    if (element.matches(".attention")) made.push(...[-FORK, FORK].flatMap((by) => [wire([[x, from - 3], [x + by, from - 3], [x + by, to]]), tip(x + by, to, [0, -1])]));
    made.push(tip(x, to, [0, -1]));
  });
  const block = [...stack.querySelectorAll(".model-block > .model-box")];
  let begin = 0;
  block.forEach((element, i) => {
    if (!element.matches(".sum")) return;
    const [first, sum] = [place(block[begin]), place(element)];
    const edge = right ? sum.right : sum.left;
    const out = edge + (right ? 13 : -13);
    const low = first.bottom + 5;
    const high = sum.bottom - Math.min(sum.height, 22) / 2;
    made.push(wire([[x, low], [out, low], [out, high], [edge, high]], "bypass"), tip(edge, high, [right ? -1 : 1, 0]));
    begin = i + 1;
  });
  return made;
}

/** From the top of the encoder into each cross-attention of the decoder. */
function memory(encoder, decoder, place) {
  const from = place(encoder.lastElementChild).top;
  const x = place(encoder.querySelector(".model-block")).middle;
  const between = (place(encoder).right + place(decoder).left) / 2;
  return [...decoder.querySelectorAll(".model-box.cross > button")].flatMap((element) => {
    const box = place(element);
    const high = from - 14;
    // Two lines: the keys, and the values.
    return [-4, 4].flatMap((by) => {
      const y = box.top + box.height / 2 + by;
      return [wire([[x, from], [x, high], [between + by, high], [between + by, y], [box.left, y]], "memory"), tip(box.left, y, [1, 0])];
    });
  });
}
