// A page's settings, in its address: what is not at its default stands in the query. A link shows
// the same picture, a reload keeps it, and going back undoes what was chosen.

import { embedded } from "./address.js";

const CHOSEN = ["model", "text", "runs", "records"]; // by default those of the studio that is open
const WRITE_AFTER = 200; // milliseconds; browsers refuse addresses that change with every pixel

/** A number that is counted from 0 in scripts and from 1 in addresses; others, such as "all", as they are. */
const shifted = (text, by) => (/^\d+$/.test(text) ? String(Math.max(0, Number(text) + by)) : text);

function parse(texts, like) {
  if (Array.isArray(like)) return texts.filter((text) => text !== "");
  const text = texts[0];
  if (typeof like === "number") {
    const value = Number(text);
    return text.trim() !== "" && Number.isFinite(value) ? value : like;
  }
  if (typeof like === "boolean") return text === "1" ? true : text === "0" ? false : like;
  return text;
}

/** A value as it stands in the address: once, or for each item of a list. */
function write(value) {
  if (typeof value === "boolean") return [value ? "1" : "0"];
  if (Array.isArray(value)) return value.length ? value : [""];
  return [String(value)];
}

let opened = null;

/** The settings of the page, once it is open. */
export const openedState = () => opened;

const same = (a, b) => JSON.stringify(write(a)) === JSON.stringify(write(b));

/** Put an address into the address bar. Chromium changes none of a file. */
function writeAddress(kind, address) {
  try {
    history[kind](null, "", address);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
}

/**
 * The settings of the page that is open.
 * @param defaults every setting with its default, which also says what type it is of
 * @param counted names of those that addresses count from 1, as the page does: layers and heads
 */
export function openState(defaults, counted = []) {
  const watchers = new Set();
  const shift = (name, texts, by) => (counted.includes(name) ? texts.map((text) => shifted(text, by)) : texts);
  let values = read();
  let waiting = null;

  function read() {
    const query = new URLSearchParams(location.search);
    return Object.fromEntries(Object.entries(defaults).map(([name, value]) =>
      [name, query.has(name) ? parse(shift(name, query.getAll(name), -1), value) : value]));
  }

  function address(named = []) {
    const query = new URLSearchParams(embedded ? { embed: "1" } : {});
    for (const [name, value] of Object.entries(values)) {
      if (same(value, defaults[name]) && !named.includes(name)) continue;
      for (const text of shift(name, write(value), 1)) query.append(name, text);
    }
    const text = query.toString();
    return location.pathname + (text ? `?${text}` : "") + location.hash;
  }

  function flush() {
    if (waiting === null) return;
    clearTimeout(waiting);
    waiting = null;
    writeAddress("replaceState", address());
  }

  function tell(changed) {
    for (const watcher of [...watchers]) watcher(values, changed);
  }

  addEventListener("pagehide", flush);
  addEventListener("popstate", () => {
    clearTimeout(waiting);
    waiting = null;
    values = read();
    tell(Object.keys(defaults));
  });

  opened = {
    get values() {
      return values;
    },
    /** The whole address of what is shown. What another studio would choose for itself is named, too. */
    link: () => new URL(address(CHOSEN), location.href).href,
    /** Change settings. A choice makes a step that one can go back from; sliding does not. */
    set(changes, { step = false } = {}) {
      const changed = Object.keys(changes).filter((name) => !same(values[name], changes[name]));
      if (changed.length === 0) return;
      if (step) flush();
      values = { ...values, ...changes };
      if (step) {
        writeAddress("pushState", address());
      } else {
        clearTimeout(waiting);
        waiting = setTimeout(flush, WRITE_AFTER);
      }
      tell(changed);
    },
    /** Whether any of some settings is not at its default, so that a fold with them opens. */
    differs: (names) => names.some((name) => !same(values[name], defaults[name])),
    /** Call a function after every change. */
    watch(watcher) {
      watchers.add(watcher);
    },
  };
  return opened;
}

const KEPT = "heedful-sentence"; // of this tab: the sentence and the model that pages share

function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
  } catch {
    return {}; // storage may be forbidden
  }
}

const LONGEST = 300; // characters of a text from an address that every page takes

/**
 * Carry the sentence and the model from page to page. An address that names its own wins.
 * @param kinds of model that the page takes; none: it takes no sentence
 */
export function carried(state, studio, kinds) {
  if (!kinds.length || !("text" in state.values)) return;
  const query = new URLSearchParams(location.search);
  const { text, model } = remembered();
  const place = studio.places.find((each) => each.name === model);
  if (place && kinds.includes(place.kind) && text && !query.has("text") && !query.has("model")) state.set({ text, model });
  // A model that is named without a text has its own: what a translator reads is the end of a text for a language model.
  const first = studio.places.find((each) => kinds.includes(each.kind))?.name;
  const own = studio.places.find((each) => each.name === query.get("model") && each.name !== first)?.examples[0]?.text;
  if (own && !query.has("text")) state.set({ text: own });
  const keep = ({ text: written, model: chosen }) => {
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ text: written, model: chosen }));
    } catch {
      // then each page begins with its own
    }
  };
  if (query.has("text") && state.values.text.length <= LONGEST) keep(state.values);
  // What a page opens with goes along when somebody has chosen it: other pages have an example that suits them better.
  state.watch((values, changed) => (changed.includes("text") || changed.includes("model")) && keep(values));
}
