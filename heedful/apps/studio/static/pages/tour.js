import { call, live, StudioError } from "../api.js";
import { button, choice, panel } from "../controls.js";
import { h, isStill, number, refilled } from "../dom.js";
import { redrawn } from "../draw/colours.js";
import { shownPiece, spokenPiece } from "../draw/links.js";
import { modelFigure, zoomInto } from "../draw/model_figure.js";
import { drawWay, stopsOf, titleOf } from "../draw/way.js";
import { tourMap } from "../draw/way_map.js";
import { boxInside, toldOf } from "../model_inside.js";
import { saves } from "../save.js";
import { exampleHead, noModel, openedHead, pieceOf, placeNamed, placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const kinds = ["translator", "causal_lm", "encoder"];
/** Kinds whose figure is drawn; those that read no text have the first stop alone. */
const DRAWN = [...kinds, "vision", "records", "sounds"];

const HINT = "Up to 20 pieces, so that all fit side by side.";
const SECONDS = 6; // between two stops when the tour plays
const FLOWS = 3; // seconds in which the flow is seen after a step
const PACE = 0.9; // seconds between two words when the model writes by itself
const BEGUN = 3; // words that the decoder writes where it is reached, so that it has some to look back at
const LONGEST = 60; // pieces, where a model that finds no end is stopped; the call takes 64

export const counted = ["block", "layer", "head"];

export const defaults = (studio) => ({
  ...subjectDefaults(studio, placesOf(studio, kinds).length ? kinds : DRAWN),
  stop: 0, open: "", block: 0, layer: -1, head: -1, query: -1, chosen: [],
});

export function mount({ root, side, state, studio }) {
  if (!placesOf(studio, DRAWN).length) {
    root.append(noModel("a translator, a language model or an encoder"));
    return;
  }
  const kindOf = () => placeNamed(studio, state.values.model)?.kind ?? "";
  const readsText = () => kinds.includes(kindOf());
  let found = null;
  const stops = () => stopsOf(found ? Boolean(found.cross) : kindOf() === "translator");
  const last = () => stops().length - 1;
  const stop = () => (readsText() ? Math.min(last(), Math.max(0, state.values.stop)) : 0);
  const go = (to) => {
    const arrives = stops()[to]?.part === "back" && to === stop() + 1;
    state.set({ stop: Math.min(last(), Math.max(0, to)) }, { step: true });
    if (arrives) begin();
  };
  /** Let a decoder that has written nothing write some words. */
  const begin = () => {
    if (!chosen().length && !isStill()) write(BEGUN);
  };
  const count = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
  const layer = choice(state, "layer", { label: "Block to open", options: [[state.values.layer, state.values.layer < 0 ? "the first" : String(state.values.layer + 1)]] });
  const head = choice(state, "head", { label: "Head to open", options: [[state.values.head, String(Math.max(0, state.values.head) + 1)]] });
  const [model, ...texts] = subjectFields(state, studio, DRAWN, { rows: 1, hint: HINT });
  let refused = false;
  let opens = true; // until the first answer
  /** Say in the field of the text why it cannot be shown; null: it can. */
  const refuse = (error) => {
    refused = Boolean(error);
    const field = texts.map((each) => each?.querySelector(".hint")).find(Boolean);
    if (!field) return; // no model reads text
    field.textContent = error ? `${error.message}. ${error.remedy ?? ""}` : HINT;
    field.classList.toggle("problem", refused);
    field.parentNode.querySelector("textarea").setAttribute("aria-invalid", String(refused));
  };
  side.append(panel(...[model, ...texts].filter(Boolean), layer, head));

  const mapped = h("div", {});
  let map = null;
  let shownStops = null;
  /** The map of this model's stops. */
  function renewMap() {
    const names = stops().map((each) => each.name).join();
    if (names === shownStops) return;
    shownStops = names;
    map = tourMap(stops(), go);
    mapped.replaceChildren(map.element);
  }
  const told = h("div", { class: "told", role: "status" });
  const back = button("Back", () => go(stop() - 1), { quiet: true });
  const next = button("Next", () => go(stop() + 1));
  const play = button("Play", () => (timer ? halt() : start()), { quiet: true });
  const drawing = h("div", { class: "drawing", role: "group", "aria-label": "The sentence on its way through the model" });
  const candidates = h("div", {});
  const drawn = h("div", { class: "way-place" }, drawing, candidates);
  const body = h("div", {}, mapped, h("div", { class: "tour-head" }, told, h("p", { class: "walk" }, back, next, play)), drawn, saves(drawn, () => told.querySelector("h2")?.textContent));
  root.append(body);

  let timer = null; // while the tour plays
  let flowing = null; // while a step lets the flow be seen
  let writing = null; // while the model writes by itself: the timer of its next word
  let enough = LONGEST; // words after which it stops
  let pictured = null; // the model's own parts
  const askFigure = live(body, (signal) => call("tour", "figure", { model: state.values.model }, signal), (answer) => {
    pictured = answer;
    show();
  });
  function start() {
    if (stop() === last()) go(0);
    timer = setInterval(() => {
      if (!drawing.isConnected) halt();
      else go(stop() + 1);
      if (stop() === last()) halt();
    }, SECONDS * 1000);
    arrange();
  }
  function halt() {
    clearInterval(timer);
    timer = null;
    arrange();
  }
  /** Let the data flow for a moment, or as long as the tour plays. */
  function flow() {
    clearTimeout(flowing);
    flowing = setTimeout(() => {
      flowing = null;
      arrange();
    }, FLOWS * 1000);
  }
  /** Write the likeliest word, and so on until the end; not at once, so that each can be seen. */
  function write(most = enough) {
    enough = most;
    clearTimeout(writing);
    writing = setTimeout(() => {
      if (!drawing.isConnected || !found) rest();
      else state.set({ chosen: [...chosen(), found.candidates[0].id].map(String) });
    }, PACE * 1000);
  }
  function rest() {
    clearTimeout(writing);
    writing = null;
  }
  const shows = () => exampleHead(studio, state.values.model, "encoder");
  const chosen = () => state.values.chosen.map(Number);
  const guesses = () => found?.predicts === "hidden";
  const ask = live(body, async (signal) => {
    const { model, text } = state.values;
    if (text.trim() === "" || !readsText()) {
      refuse(null);
      return null;
    }
    const hidden = placesOf(studio, ["encoder"]).some((place) => place.name === model);
    try {
      return await call("tour", "walk", { model, text, chosen: hidden ? [] : chosen(), ...openedHead(shows(), state.values) }, signal);
    } catch (error) {
      if (stop() || !(error instanceof StudioError) || error.away) throw error;
      if (error.where === "text") refuse(error);
      return null; // the whole model is drawn without a sentence, too; the next stop says what is wrong
    }
  }, (answer) => {
    found = answer && { ...answer, hides: answer.predicts === "hidden" };
    if (found) refuse(null);
    if (found) {
      layer.fill(found.can_open.map((i) => [i, String(i + 1)]));
      layer.querySelector("select").value = String(found.layer);
      head.fill(count(found.heads));
      head.querySelector("select").value = String(found.head);
    }
    if (found?.ended || chosen().length >= enough) rest();
    else if (writing) write();
    else if (opens && found && ["back", "source", "stream"].includes(stops()[stop()]?.part)) begin(); // an address of a stop
    opens = false;
    arrange();
    show();
  });

  function arrange() {
    renewMap();
    // An address may name a stop past the last one.
    if (found && state.values.stop > last()) state.set({ stop: last() });
    const first = stop() === 0;
    root.parentElement.classList.toggle("wide", !first); // the figure of the whole model is tall, and wants no settings above it
    back.disabled = first;
    next.disabled = stop() === last() || !readsText() || refused;
    play.disabled = !readsText() || refused;
    map.element.hidden = first; // the figure is the map of itself
    layer.hidden = head.hidden = first;
    for (const each of texts) each.hidden = !readsText();
    play.textContent = timer ? "Stop" : "Play";
    play.setAttribute("aria-label", timer ? "Stop the tour" : "Play the tour by itself");
    drawing.classList.toggle("moving", timer !== null || flowing !== null);
    map.mark(stop(), found);
  }

  /** The query whose row is followed: the one that was clicked, else the word that an example is about, else one near the end. */
  function query() {
    const asked = state.values.query;
    if (asked >= 0 && asked < found.pieces.length) return asked;
    if (found.stack === "decoder" || guesses()) return found.from;
    const shown = pieceOf(found.pieces, shows()?.word);
    if (shown >= 0) return shown;
    const words = found.special.map((special, i) => (special ? -1 : i)).filter((i) => i >= 0);
    return words[Math.max(0, words.length - 3)] ?? 0;
  }

  /** The whole model, of which a box can be opened. */
  function showFigure() {
    const { model: name, text, open, block } = state.values;
    const kind = kindOf();
    told.replaceChildren(h("h2", {}, stops()[0].title), h("p", {}, toldOf(pictured, name)));
    modelFigure(drawing, pictured, {
      open: ownBox(pictured, open), block, ends: endsOf(pictured, kind, text),
      choose: (box) => state.set({ open: box }, { step: true }),
      chooseBlock: (index) => state.set({ block: index }, { step: true }),
      inside: (place, stack, box) => boxInside(place, stack, box, { studio, model: name, text, kind, block, walk: found }),
    });
  }

  function show() {
    if (stop() === 0) {
      candidates.replaceChildren();
      if (pictured) showFigure();
      return;
    }
    if (!found) {
      drawing.replaceChildren(h("p", { class: "note" }, "Type a sentence, or choose an example."));
      drawing.numbers = null;
      candidates.replaceChildren();
      told.replaceChildren();
      return;
    }
    const at = stops()[stop()];
    told.replaceChildren(h("h2", {}, `${stop()}. ${titleOf(at, found)}`), h("p", {}, at.tell(found, query())));
    const figure = drawing.querySelector(".model-figure");
    const enter = figure && !isStill() ? zoomInto(figure) : null;
    redrawn(drawing, () => drawWay(drawing, found, {
      stops: stops(), stop: stop(), query: query(), boxes: pictured?.stacks.find(({ name }) => name === found.stack)?.blocks,
      choose: (index) => state.set({ query: index }, { step: true }),
      openBlock: (index) => state.set({ layer: index }, { step: true }),
    }));
    enter?.(drawn);
    refilled(candidates, () => {
      if (["back", "source", "stream", "writing"].includes(at.part)) candidates.append(written());
      if (stop() === last()) candidates.append(probabilities());
      else if (at.name === "Logits") candidates.append(logits());
    });
  }

  /** The words so far; a click on one goes back to it, to choose another. */
  function written() {
    const pick = (ids) => {
      rest();
      state.set({ chosen: ids.map(String) }, { step: true });
    };
    if (guesses()) {
      const word = found.candidates.find((each) => each.id === chosen()[0])?.word;
      return h("p", { class: "text", dir: "auto", id: "written" }, found.text.replace("[MASK]", word ?? "___"));
    }
    const ids = chosen();
    const pieces = found.read.slice(found.read.length - ids.length + Number(found.ended));
    const before = found.read.slice(0, found.read.length - pieces.length).filter((_, i) => !(i === 0 && found.cross));
    const on = () => {
      if (writing) rest();
      else write(LONGEST);
      show();
    };
    return h("div", { class: "row written" },
      h("p", { class: "row", dir: "auto", id: "written" },
        before.length ? h("span", { class: "note" }, before.map(shownPiece).join("").replaceAll("·", " "), ids.length ? "" : " …") : null,
        ids.length ? ids.map((_, i) => h("button", { type: "button", class: "quiet", title: "Go back to this word and choose another", onclick: () => pick(ids.slice(0, i)) },
          pieces[i] === undefined ? "(the end)" : spokenPiece(pieces[i]))) : before.length ? null : h("span", { class: "note" }, writing ? "The first word comes …" : "Nothing is written yet.")),
      ids.length ? button("Take the last word back", () => pick(ids.slice(0, -1)), { quiet: true }) : null,
      found.ended ? null : button(writing ? "Stop writing" : "Let it write", on, { quiet: true }));
  }

  const name = (each) => h("span", { dir: "auto" }, each.end ? "(the end)" : spokenPiece(each.piece));

  function logits() {
    const most = Math.max(...found.candidates.map((each) => Math.abs(each.logit)), 1e-9);
    return h("ol", { class: "way-next" }, found.candidates.map((each) => h("li", { class: "logit" }, name(each), h("span", {}, bar(Math.abs(each.logit) / most, each.logit < 0)), h("span", { class: "count" }, number(each.logit, 3)))));
  }

  /** The candidates, to be clicked. */
  function probabilities() {
    if (found.ended) return h("p", { class: "sentence" }, "The model has ended its text.");
    const press = (each) => state.set({ chosen: [...(guesses() ? [] : chosen()), each.id].map(String) }, { step: true });
    return h("ol", { class: "way-next" }, found.candidates.map((each) => h("li", {}, h("button", {
      type: "button", "aria-pressed": guesses() ? String(each.id === chosen()[0]) : null, onclick: () => press(each),
    }, name(each), h("span", {}, bar(each.probability)), h("span", { class: "count" }, `${number(100 * each.probability, 3)} %`)))));
  }

  body.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [role=button]")) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(stop() + step);
  });
  state.watch((_, changed) => {
    if (["model", "text", "stop"].some((each) => changed.includes(each))) rest();
    if (changed.includes("model") && !changed.includes("layer")) state.set({ open: "", block: 0, layer: -1, head: -1, query: -1, chosen: [] });
    else if (changed.includes("text") && !changed.includes("chosen")) state.set({ query: -1, chosen: [] });
    if (changed.includes("stop")) flow();
    arrange();
    if (changed.includes("model")) askFigure();
    const again = ["model", "text", "layer", "head", ...(guesses() ? [] : ["chosen"])];
    if (changed.some((each) => again.includes(each)) || (changed.includes("stop") && !found)) ask();
    else show();
  });
  arrange();
  askFigure();
  ask();
}

/** The box of an address that was written for another model: that of the only stack, where it has no such stack. */
function ownBox({ stacks }, open) {
  const [stack, box] = open.split(".");
  return box === undefined || stacks.some(({ name }) => name === stack) ? open : `${stacks.at(-1).name}.${box}`;
}

/** The words below and above a stack of the figure. */
function endsOf({ stacks }, kind, text) {
  const inputs = { vision: "Image", sounds: "Sound, as a picture", records: "Tokens" }[kind] ?? "Inputs";
  return (stack) => {
    const last = stack === stacks.at(-1);
    const written = last && stacks.length > 1;
    return { input: written ? "Outputs (shifted right)" : inputs, text: !written && inputs === "Inputs" ? text : "", output: last ? "Output probabilities" : "" };
  };
}

function bar(share, below = false) {
  const made = h("span", { class: below ? "bar below" : "bar" });
  made.style.width = `${100 * share}%`;
  return made;
}
