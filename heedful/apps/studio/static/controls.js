// Controls that are one with a setting: changing either changes the other.

import { folded, h, number } from "./dom.js";

let made = 0;
const newId = (name) => `${name}-${(made += 1)}`;

function follow(state, name, update) {
  state.watch((values, changed) => {
    if (changed.includes(name)) update(values[name]);
  });
  update(state.values[name]);
}

/**
 * A slider with the number beside it.
 * @param stops the values it can take, where they are not evenly spaced
 * @param shown the value that stands for one of the setting
 */
export function slider(state, name, { label, min, max, step = 1, stops = null, unit = "", shown = (value) => value }) {
  const id = newId(name);
  const range = h("input", {
    type: "range", id, min: stops ? 0 : min, max: stops ? stops.length - 1 : max, step: stops ? 1 : step,
  });
  const box = h("input", {
    type: "number", min: stops ? stops[0] : min, max: stops ? stops.at(-1) : max,
    step: stops ? "any" : step, "aria-label": `${label}, number`,
  });
  const nearest = (value) =>
    stops.reduce((best, stop, i) => (Math.abs(stop - value) < Math.abs(stops[best] - value) ? i : best), 0);
  range.addEventListener("input", () =>
    state.set({ [name]: stops ? stops[Number(range.value)] : Number(range.value) }));
  box.addEventListener("change", () => {
    if (box.value !== "" && box.checkValidity()) state.set({ [name]: Number(box.value) }, { step: true });
    else box.reportValidity();
  });
  follow(state, name, (set) => {
    const value = shown(set);
    range.value = stops ? nearest(value) : value;
    range.setAttribute("aria-valuetext", `${number(value)}${unit}`);
    box.value = value;
  });
  return h("div", { class: "field slider" }, h("label", { for: id }, label), range, box);
}

/** One of several values. Options are [value, label] or plain values. */
export function choice(state, name, { label, options }) {
  const id = newId(name);
  const select = h("select", { id });
  const fill = (list) => {
    select.replaceChildren(...list.map((option) => {
      const [value, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value }, text);
    }));
    select.value = state.values[name];
  };
  fill(options);
  select.addEventListener("change", () => {
    const value = typeof state.values[name] === "number" ? Number(select.value) : select.value;
    state.set({ [name]: value }, { step: true });
  });
  follow(state, name, (value) => {
    select.value = value;
  });
  const field = h("div", { class: "field" }, h("label", { for: id }, label), select);
  field.fill = fill;
  return field;
}

/** One of several values, each with a button of its own. Options are [value, label]. */
export function tabs(state, name, { label, options }) {
  const buttons = options.map(([value, text]) => h("button", { type: "button", class: "quiet", onclick: () => state.set({ [name]: value }, { step: true }) }, text));
  follow(state, name, (value) => buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(options[i][0] === value))));
  return h("div", { class: "examples", role: "group", "aria-label": label }, buttons);
}

/** Yes or no. */
export function check(state, name, { label }) {
  const box = h("input", { type: "checkbox" });
  box.addEventListener("change", () => state.set({ [name]: box.checked }, { step: true }));
  follow(state, name, (value) => {
    box.checked = value;
  });
  return h("label", { class: "field check" }, box, h("span", {}, label));
}

/** Some of several values; the setting is a list of them. Options are [value, label] or plain values. */
export function several(state, name, { label, options }) {
  const field = h("fieldset", { class: "field several" });
  let boxes = [];
  field.fill = (list) => {
    const pairs = list.map((option) => (Array.isArray(option) ? option : [option, option]));
    if (JSON.stringify(pairs) === JSON.stringify(boxes.map(({ option, words }) => [option, words]))) return;
    boxes = pairs.map(([option, words]) => {
      const box = h("input", { type: "checkbox", value: option });
      box.checked = state.values[name].includes(option);
      box.addEventListener("change", () => {
        const chosen = boxes.filter((each) => each.box.checked).map((each) => each.option);
        const others = state.values[name].filter((value) => !boxes.some((each) => each.option === value));
        state.set({ [name]: [...others, ...chosen] }, { step: true });
      });
      return { box, option, words };
    });
    field.replaceChildren(h("legend", {}, label),
      ...boxes.map(({ box, words }) => h("label", { class: "check" }, box, h("span", {}, words))));
  };
  field.fill(options);
  follow(state, name, (values) => {
    for (const { box, option } of boxes) box.checked = values.includes(option);
  });
  return field;
}

/** A line or, with rows, some lines of text. */
export function text(state, name, { label, rows = 0, hint = null, code = false }) {
  const id = newId(name);
  const input = h(rows ? "textarea" : "input", {
    id, rows: rows || null, type: rows ? null : "text", spellcheck: "false", dir: "auto",
    autocomplete: "off", class: code ? "code" : null, "aria-describedby": hint ? `${id}-hint` : null,
  });
  input.addEventListener("input", () => state.set({ [name]: input.value }));
  follow(state, name, (value) => {
    if (input.value !== value) input.value = value;
  });
  return h("div", { class: "field wide" }, h("label", { for: id }, label), input,
    hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null);
}

/** A button. */
export const button = (label, press, options = {}) =>
  h("button", { type: "button", class: options.quiet ? "quiet" : null, onclick: press }, label);

/** Controls of a panel that few need, folded away. */
export function more(title, ...controls) {
  const details = folded(title, h("div", { class: "panel inner" }, controls));
  details.className = "field wide";
  return details;
}

/** Controls together. */
export const panel = (...children) => h("div", { class: "panel", role: "group", "aria-label": "Settings" }, ...children);

/** Text to be copied, such as a settings file. */
export function copyable(label) {
  const area = h("textarea", { readonly: true, rows: 12, class: "code", "aria-label": label, spellcheck: "false" });
  const said = h("span", { class: "note", role: "status" });
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(area.value);
      said.textContent = "Copied.";
    } catch {
      area.select();
      said.textContent = "Selected: copy it with the keyboard.";
    }
  }, { quiet: true });
  return {
    element: h("div", { class: "copyable" }, area, h("p", {}, copy, " ", said)),
    set(value) {
      area.value = value;
      area.rows = Math.min(30, value.split("\n").length);
      said.textContent = "";
    },
  };
}
