// Elements without markup in strings: text stays text, whatever it holds.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Whether who looks asked for no motion. */
export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/**
 * Call a function with 0, 1, … at a pace in milliseconds, until it returns false.
 * @param over called at the end
 * @returns what ends it before
 */
export function inSteps(pace, step, over) {
  let at = 0;
  const end = () => {
    clearInterval(timer);
    over();
  };
  const next = () => {
    if (step(at) === false) end();
    at += 1;
  };
  const timer = setInterval(next, pace);
  next();
  return end;
}

/** An HTML element: h("p", {class: "note"}, "text", other). */
export const h = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** Words, of which those between ` are code. */
export const prose = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

const RAISED = { "-": "⁻", ...Object.fromEntries([..."⁰¹²³⁴⁵⁶⁷⁸⁹"].map((sign, digit) => [digit, sign])) };

/** A number for people: four significant digits, thousands apart. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value < 0) return `−${number(-value, digits)}`;
  if (value === 0) return "0";
  if (Number.isInteger(value) && value < 1e9) return value.toLocaleString("en");
  if (value >= 1e6 || value < 1e-4) {
    const [factor, power] = value.toExponential(digits - 2).split("e");
    return `${factor} · 10${[...power.replace("+", "")].map((sign) => RAISED[sign]).join("")}`;
  }
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 10 });
}

/** A number with so many decimals. */
export const fixed = (value, decimals) => (value === 0 ? "0" : value.toFixed(decimals).replace("-", "−"));

/** As few decimals, of 2 to 4, as let sums add up as they are written; each is [its total, its terms, …]. */
export const decimalsOf = (sums) => [2, 3].find((decimals) => {
  const units = (value) => Math.round(Number(value.toFixed(decimals)) * 10 ** decimals);
  return sums.every(([total, ...terms]) => terms.reduce((sum, term) => sum + units(term), 0) === units(total));
}) ?? 4;

/** A probability for people, in percent; below 0.1 % more than one digit says nothing. */
export const percent = (share, digits = 3) => (share === 0 ? "0 %" : share < 0.0001 ? "< 0.01 %" : `${number(100 * share, share < 0.001 ? 1 : digits)} %`);

/** A large count: 1.2 M, 3.4 G. */
export function engineering(value, unit = "") {
  const names = ["", " k", " M", " G", " T", " P", " E"];
  let power = 0;
  while (Math.abs(value) >= 999.5 && power < names.length - 1) {
    value /= 1000;
    power += 1;
  }
  const digits = power === 0 ? 0 : value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${names[power]}${unit && (power ? "" : " ")}${unit}`;
}

// A sentence may begin with a number, too: "40 % of its attention is on ...".
const isFigure = (cell) => !(cell instanceof Node) && /^[−+±\d–]/.test(String(cell)) && !/[a-z]{4,} [a-z]/.test(String(cell));

/** A table; wide ones scroll by themselves and can be reached with the keyboard. */
export function table(caption, columns, rows, options = {}) {
  const cells = (row) =>
    row.map((cell, i) =>
      i === 0 ? h("th", { scope: "row" }, cell instanceof Node ? cell : String(cell))
        : h("td", { class: isFigure(cell) && !options.words ? null : "words" }, cell instanceof Node ? cell : String(cell)));
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: options.class ?? "figures" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((name, i) => (name === "" ? h("td", {})
        : h("th", { scope: "col", class: rows.every((row) => isFigure(row[i])) && !options.words ? null : "words" }, name))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

/** What can be unfolded: elements, or a function that makes one when it is. */
export function folded(title, ...content) {
  const [make] = content;
  const details = h("details", {}, h("summary", {}, title));
  if (typeof make !== "function") {
    details.append(...content);
    return details;
  }
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}

/** A part of a page. */
export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

/** A part of a page for who wants to know more: its title stands there, and opens it. */
export function foldedSection(title, ...children) {
  const made = folded(h("h2", {}, title), ...children);
  made.classList.add("chapter-fold");
  return made;
}

let beside = () => "";

/** Say what stands beside every figure's title, given its element. Told once: who makes it needs this file. */
export const besideTitles = (make) => {
  beside = make;
};

/** A place for a drawing, with a title and what saves it above, and words below it. */
export function figure(title, note = null) {
  const host = h("div", { class: "drawing" });
  const words = h("figcaption", {}, note ?? "");
  const head = h("div", { class: "figure-head" }, h("h3", {}, title));
  const element = h("figure", {}, head, host, words);
  head.append(beside(element));
  return { element, host, words };
}

/** Fill a place anew without the page becoming shorter in between, which would move what is seen. */
export function refilled(host, fill) {
  host.style.minHeight = `${host.offsetHeight}px`;
  host.replaceChildren();
  fill();
  host.style.minHeight = "";
}
