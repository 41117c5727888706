// What is seen of an element, as a drawing of its own: every box, line and word where it stands on
// the page, in the colours it has there. Presentation attributes alone: no styles, no fonts, no links.

import { s } from "./dom.js";

const LEFT_OUT = ".saves, details, input, select, textarea, .unseen, script"; // no part of the drawing
const [MARGIN, LINE] = [14, 18];
const COLOURS = ["fill", "stroke"];
const SHAPES = [
  "fill-rule", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "visibility",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline",
]; // what a part takes over from the one around it

const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map();

/** A colour as drawings outside a browser read it: [#rrggbb, opacity], or null for none. */
function plain(colour) {
  if (!known.has(colour)) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    const hex = [red, green, blue].map((value) => value.toString(16).padStart(2, "0")).join("");
    known.set(colour, alpha ? [`#${hex}`, Number((alpha / 255).toFixed(3))] : null);
  }
  return known.get(colour);
}

/** Set a colour and its opacity. */
function paint(element, name, colour) {
  const found = plain(colour);
  element.setAttribute(name, found ? found[0] : "none");
  if (found && found[1] < 1) element.setAttribute(`${name}-opacity`, found[1]);
  return element;
}

/**
 * Draw what is seen of an element, with lines of words below it.
 * @returns an SVG element that stands alone
 */
export function pictureOf(root, caption) {
  const from = root.getBoundingClientRect();
  const place = (box) => ({ x: box.left - from.left + MARGIN, y: box.top - from.top + MARGIN, width: box.width, height: box.height });
  const into = s("g");
  const reach = { root, right: from.width, bottom: 0 };
  visit(root, into, place, reach);
  const width = Math.ceil(reach.right) + 2 * MARGIN;
  const words = caption.flatMap((line) => wrapped(line, width - 2 * MARGIN));
  const top = Math.ceil(reach.bottom) + 2 * MARGIN;
  const height = top + (words.length ? words.length * LINE + MARGIN : 0);
  const style = getComputedStyle(document.body);
  const text = words.map((line, i) => paint(s("text", { x: MARGIN, y: top + i * LINE + 12, "font-size": 12, "font-family": style.fontFamily }, line), "fill", style.color));
  return s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    paint(s("rect", { width, height }), "fill", style.backgroundColor), into, ...text);
}

/** A line in as many as fit a width. */
function wrapped(line, width) {
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const lines = [""];
  for (const word of line.split(" ")) {
    const next = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && pen.measureText(next).width > width) lines.push(word);
    else lines[lines.length - 1] = next;
  }
  return lines;
}

function visit(element, into, place, reach) {
  if (element.matches(LEFT_OUT) || !element.checkVisibility()) return;
  const style = getComputedStyle(element);
  if (style.visibility === "hidden") return;
  const box = place(element.getBoundingClientRect());
  if (box.width && element !== reach.root) {
    reach.right = Math.max(reach.right, box.x - MARGIN + box.width);
    reach.bottom = Math.max(reach.bottom, box.y - MARGIN + box.height);
  }
  const own = style.opacity === "1" ? into : into.appendChild(s("g", { opacity: style.opacity }));
  if (element instanceof SVGSVGElement) {
    own.append(drawing(element, box));
  } else if (element instanceof HTMLCanvasElement) {
    frame(own, style, box);
    if (element.width && element.height) own.append(s("image", { ...box, href: element.toDataURL(), preserveAspectRatio: "none" }));
  } else {
    frame(own, style, box);
    for (const child of element.childNodes) {
      if (child instanceof Text) own.append(...written(child, style, place));
      else if (child instanceof Element) visit(child, own, place, reach);
    }
  }
}

/** The background and the border of an element. */
function frame(into, style, box) {
  const rx = Math.min(Number.parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
  if (plain(style.backgroundColor)) into.append(paint(s("rect", { ...box, rx }), "fill", style.backgroundColor));
  const ring = style.boxShadow.match(/^(.*\)) 0px 0px 0px ([\d.]+)px( inset)?$/);
  if (ring) {
    const half = (ring[3] ? -1 : 1) * Number(ring[2]) / 2;
    const around = { x: box.x - half, y: box.y - half, width: box.width + 2 * half, height: box.height + 2 * half };
    into.append(paint(s("rect", { ...around, rx, fill: "none", "stroke-width": ring[2] }), "stroke", ring[1]));
  }
  const stops = stopsOf(style.backgroundImage);
  const share = style.backgroundSize.includes("px") ? Math.min(1, Number.parseFloat(style.backgroundSize) / box.width) : 1;
  for (const [i, [colour, at]] of stops.entries()) {
    const next = stops[i + 1];
    const width = next ? (next[1] - at) * box.width * share : 0;
    // A ramp in steps as fine as the eye tells apart; a strip of one colour is one step.
    const steps = !next || width <= 0 || !plain(colour) && !plain(next[0]) ? 0 : next[0] === colour ? 1 : 12;
    for (let k = 0; k < steps; k += 1) {
      const mixed = steps === 1 ? colour : `color-mix(in srgb, ${colour} ${100 - (100 * (k + 0.5)) / steps}%, ${next[0]})`;
      into.append(paint(s("rect", { x: box.x + at * box.width * share + (k * width) / steps, y: box.y, width: width / steps + (steps > 1 ? 0.3 : 0), height: box.height }), "fill", mixed));
    }
  }
  for (const [side, line] of Object.entries({ Top: [0, 0, 1, 0], Bottom: [0, 1, 1, 1], Left: [0, 0, 0, 1], Right: [1, 0, 1, 1] })) {
    const width = Number.parseFloat(style[`border${side}Width`]);
    if (!width || style[`border${side}Style`] === "none" || !plain(style[`border${side}Color`])) continue;
    if (side === "Top" && style.borderBottomWidth === style.borderTopWidth && style.borderLeftWidth === style.borderTopWidth) {
      const inner = { x: box.x + width / 2, y: box.y + width / 2, width: Math.max(0, box.width - width), height: Math.max(0, box.height - width) };
      into.append(paint(s("rect", { ...inner, rx, fill: "none", "stroke-width": width }), "stroke", style.borderTopColor));
      return;
    }
    const [x1, y1, x2, y2] = line.map((value, i) => (i % 2 ? box.y + value * box.height : box.x + value * box.width));
    into.append(paint(s("line", { x1, y1, x2, y2, "stroke-width": width }), "stroke", style[`border${side}Color`]));
  }
}

/** [colour, share] of the stops of a gradient to the right. */
function stopsOf(image) {
  if (!image.startsWith("linear-gradient(to right") && !image.startsWith("linear-gradient(90deg")) return [];
  const parts = image.slice(image.indexOf(",") + 1, -1).split(/,(?![^(]*\))/).map((part) => part.trim());
  return parts.map((part, i) => {
    const share = part.match(/ ([\d.]+)%$/);
    return [share ? part.slice(0, -share[0].length) : part, share ? Number(share[1]) / 100 : i / (parts.length - 1)];
  });
}

/** The words of a text, a line at a time. */
function written(node, style, place) {
  const lines = [];
  const range = document.createRange();
  const add = (start, end) => {
    range.setStart(node, start);
    range.setEnd(node, end);
    const boxes = range.getClientRects();
    if (boxes.length > 1 && end - start > 1) {
      for (let i = start; i < end; i += 1) add(i, i + 1);
      return;
    }
    if (!boxes.length || !boxes[0].width) return;
    const box = place(boxes[0]);
    const last = lines.at(-1);
    if (last && Math.abs(last.y - box.y) < 2) Object.assign(last, { end, width: box.x + box.width - last.x });
    else lines.push({ ...box, start, end });
  };
  for (const { 0: word, index } of node.data.matchAll(/\S+/g)) add(index, index + word.length);
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = pen.measureText("x");
  return lines.map(({ x, y, width, height, start, end }) => paint(s("text", {
    x, y: y + (height - above - below) / 2 + above, textLength: width.toFixed(2), "font-family": style.fontFamily, "font-size": style.fontSize,
    "font-weight": style.fontWeight, "font-style": style.fontStyle === "normal" ? null : style.fontStyle,
  }, node.data.slice(start, end).replace(/\s+/g, " ")), "fill", style.color));
}

/** A drawing within the picture, whose looks no longer come from a style sheet. */
function drawing(svg, box) {
  const copy = svg.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [svg, ...svg.querySelectorAll("*")].forEach((each, i) => settle(each, copies[i], each === svg ? null : each.parentElement));
  for (const each of copy.querySelectorAll("[data-left-out]")) each.remove();
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  copy.setAttribute("overflow", getComputedStyle(svg).overflow);
  return copy;
}

function settle(own, copy, parent) {
  const style = getComputedStyle(own);
  const above = parent && getComputedStyle(parent);
  if (style.display === "none") copy.dataset.leftOut = "";
  for (const { name } of [...copy.attributes]) if (/^(class|style|role|tabindex|aria-|data-(?!left))/.test(name)) copy.removeAttribute(name);
  const set = (name, value, same) => (same ? copy.removeAttribute(name) : copy.setAttribute(name, value));
  for (const name of COLOURS) {
    const colour = style.getPropertyValue(name);
    if (colour.startsWith("url(")) continue;
    const [hex, opacity] = (colour !== "none" && plain(colour)) || ["none", 1];
    const whole = opacity * Number(style.getPropertyValue(`${name}-opacity`));
    copy.setAttribute(name, hex);
    set(`${name}-opacity`, Number(whole.toFixed(3)), whole === 1 && (!above || above.getPropertyValue(`${name}-opacity`) === "1"));
  }
  for (const name of SHAPES) {
    const value = style.getPropertyValue(name);
    set(name, value, above?.getPropertyValue(name) === value);
  }
  set("opacity", style.opacity, style.opacity === "1");
}
