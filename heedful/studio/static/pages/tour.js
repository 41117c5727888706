import { call, live } from "../api.js";
import { button, choice, panel } from "../controls.js";
import { h, number, refilled } from "../dom.js";
import { redrawn } from "../draw/colours.js";
import { shownPiece } from "../draw/links.js";
import { drawWay, STOPS } from "../draw/way.js";
import { noModel, placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const kinds = ["translator", "causal_lm"];

const SECONDS = 4; // between two stops when the tour plays

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), stop: 0, layer: 0, head: 0, query: -1, chosen: [],
});

export function mount({ root, side, state, studio }) {
  if (!placesOf(studio, kinds).length) {
    root.append(noModel("a translator or a language model"));
    return;
  }
  const last = STOPS.length - 1;
  const stop = () => Math.min(last, Math.max(0, state.values.stop));
  const go = (to) => state.set({ stop: Math.min(last, Math.max(0, to)) }, { step: true });
  const count = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
  const layer = choice(state, "layer", { label: "Block to open", options: [[state.values.layer, String(state.values.layer + 1)]] });
  const head = choice(state, "head", { label: "Head to open", options: [[state.values.head, String(state.values.head + 1)]] });
  side.append(panel(...subjectFields(state, studio, kinds, { hint: "Up to 20 pieces, so that all fit side by side." }), layer, head));

  const map = h("ol", { class: "map", "aria-label": "Stops of the tour" });
  const told = h("div", { class: "told", role: "status" });
  const back = button("Back", () => go(stop() - 1), { quiet: true });
  const next = button("Next", () => go(stop() + 1));
  const play = button("Play", () => (timer ? halt() : start()), { quiet: true });
  const drawing = h("div", { class: "drawing", role: "group", "aria-label": "The sentence on its way through the model" });
  const candidates = h("div", {});
  const body = h("div", {}, map, h("p", { class: "walk" }, back, next, play), told, drawing, candidates);
  root.append(body);

  let timer = null;
  let found = null;
  function start() {
    if (stop() === last) go(0);
    timer = setInterval(() => (stop() < last ? go(stop() + 1) : halt()), SECONDS * 1000);
    arrange();
  }
  function halt() {
    clearInterval(timer);
    timer = null;
    arrange();
  }
  const chosen = () => state.values.chosen.map(Number);
  const ask = live(body, async (signal) => {
    const { model, text, layer: l, head: a } = state.values;
    return text.trim() === "" ? null : call("tour", "walk", { model, text, chosen: chosen(), layer: l, head: a }, signal);
  }, (answer) => {
    found = answer && { ...answer, text: state.values.text };
    if (found) {
      layer.fill(count(found.layers));
      head.fill(count(found.heads));
    }
    show();
  });

  function arrange() {
    back.disabled = stop() === 0;
    next.disabled = stop() === last;
    play.textContent = timer ? "Stop" : "Play";
    drawing.classList.toggle("moving", timer !== null);
    map.replaceChildren(...STOPS.map(({ name }, i) => h("li", { class: i < stop() ? "passed" : null },
      h("button", { type: "button", "aria-current": i === stop() ? "step" : null, onclick: () => go(i) }, `${i + 1} ${name}`))));
  }

  /** The query whose row is followed: the one that was clicked, else the last word. */
  function query() {
    const asked = state.values.query;
    if (asked >= 0 && asked < found.pieces.length) return asked;
    const words = found.special.map((special, i) => (special ? -1 : i)).filter((i) => i >= 0);
    return found.stack === "encoder" ? words[Math.max(0, words.length - 3)] ?? 0 : found.pieces.length - 1;
  }

  function show() {
    if (!found) {
      drawing.replaceChildren(h("p", { class: "note" }, "Type a sentence, or choose an example."));
      candidates.replaceChildren();
      told.replaceChildren();
      return;
    }
    const at = STOPS[stop()];
    told.replaceChildren(h("h2", {}, `${stop() + 1}. ${at.title}`), h("p", {}, at.tell(found, query())));
    redrawn(drawing, () => drawWay(drawing, found, { stop: stop(), query: query(), choose: (index) => state.set({ query: index }, { step: true }) }));
    refilled(candidates, () => stop() === last && candidates.append(...words()));
  }

  /** The candidates for the next word, to be clicked. */
  function words() {
    const write = (each) => state.set({ chosen: [...chosen(), each.id].map(String) }, { step: true });
    const undo = button("Take the last word back", () => state.set({ chosen: state.values.chosen.slice(0, -1) }, { step: true }), { quiet: true });
    const list = found.ended ? h("p", { class: "sentence" }, "The model has ended its text.")
      : h("ol", { class: "way-next" }, found.candidates.map((each) => {
        const bar = h("span", { class: "bar" });
        bar.style.width = `${(100 * each.probability) / found.candidates[0].probability}%`;
        return h("li", {}, h("button", { type: "button", onclick: () => write(each) },
          h("span", { dir: "auto" }, each.end ? "(the end)" : shownPiece(each.piece)), h("span", {}, bar), h("span", { class: "count" }, `${number(100 * each.probability, 3)} %`)));
      }));
    return [h("p", { class: "text", dir: "auto", id: "written" }, found.written || h("span", { class: "note" }, "Nothing is written yet.")), list,
      h("p", { class: "row" }, state.values.chosen.length ? undo : null)];
  }

  body.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [role=button]")) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(stop() + step);
  });
  state.watch((_, changed) => {
    if (changed.includes("model") && !changed.includes("layer")) state.set({ layer: 0, head: 0, query: -1, chosen: [] });
    else if (changed.includes("text") && !changed.includes("chosen")) state.set({ query: -1, chosen: [] });
    arrange();
    if (changed.some((name) => ["model", "text", "layer", "head", "chosen"].includes(name))) ask();
    else show();
  });
  arrange();
  ask();
}
