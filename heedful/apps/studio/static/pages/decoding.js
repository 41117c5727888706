import { call, live, problem } from "../api.js";
import { button, check, choice, more, panel, slider } from "../controls.js";
import { engineering, figure, folded, h, isStill, number, percent, refilled, section, table } from "../dom.js";
import { facts } from "../draw/bars.js";
import { lineChart } from "../draw/lines.js";
import { shownPiece, spokenPiece } from "../draw/links.js";
import { treeChart } from "../draw/tree.js";
import { causalTriangle } from "../draw/triangle.js";
import { noModel, placeNamed, placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const wide = true;
export const kinds = ["translator", "causal_lm"];

const BEGUN = "begun"; // in the place of tokens: the first ones of greedy search, so that a triangle is seen at once
const FIRST = 4;
const WRITES = 800; // milliseconds from token to token

// Greedy search and the beam part here: "hat" is the likelier word after "Tom", and leads to a text that is no German.
const FORK = { model: "en-de", text: "Tom didn't move." };

/** Where greedy search and the beam part, else the shortest example of the first model: its whole tree is seen at once. */
function shortExample(studio) {
  const { model, text } = subjectDefaults(studio, kinds);
  if (model === FORK.model) return FORK;
  const texts = (placeNamed(studio, model)?.examples ?? []).map((each) => each.text);
  return { model, text: texts.reduce((best, each) => (each.length < best.length ? each : best), text) };
}

export const defaults = (studio) => ({
  ...shortExample(studio), chosen: [BEGUN], layer: 0, head: 0, row: -1, why: "",
  temperature: 1, k: 0, p: 1, least: 0, seed: 1,
  beam: 4, n: 1, penalty: 0.6, longest: 30, dropped: false,
});

const LAST = "last"; // the token that is explained: the last one that was written, or a candidate's id
const bytes = (count) => (count < 10000 ? `${number(count)} bytes` : `${number(count / 1000, 4)} kB`);

export function mount({ root, below, side, state, studio }) {
  if (!placesOf(studio, kinds).length) {
    root.append(noModel("a translator or a language model"));
    return;
  }
  const translates = () => placeNamed(studio, state.values.model)?.kind === "translator";
  const [walk, tree, kept] = [h("div", {}), h("div", {}), h("div", {})];
  const [walkBody, treeBody] = [h("div", { class: "result" }, walk), h("div", { class: "result" }, tree)];
  const why = h("div", { class: "why" });
  const layer = choice(state, "layer", { label: "Attention of layer", options: [[0, "the mean of all"]] });
  const head = choice(state, "head", { label: "Head", options: [[0, "the mean of all"]] });
  const drawnHeads = more("Attention that is drawn", layer, head);
  side.append(
    panel(...subjectFields(state, studio, kinds, { rows: 1, more: [FORK] }),
      slider(state, "beam", { label: "Beam", min: 1, max: 8 }),
      slider(state, "temperature", { label: "Temperature", min: 0, max: 3, step: 0.05 }),
      more("Sampling", slider(state, "k", { label: "Top-k (0: all)", min: 0, max: 100 }),
        slider(state, "p", { label: "Top-p", min: 0.01, max: 1, step: 0.01 }),
        slider(state, "least", { label: "Min-p", min: 0, max: 1, step: 0.01 }),
        slider(state, "seed", { label: "Seed of the draws", min: 1, max: 1000 })),
      drawnHeads,
      more("Beam search", slider(state, "n", { label: "Returned", min: 1, max: 8 }),
        slider(state, "penalty", { label: "Length penalty", min: 0, max: 2, step: 0.1 }),
        slider(state, "longest", { label: "Tokens at most", min: 1, max: 60 }),
        check(state, "dropped", { label: "Show what was dropped" }))));
  root.append(treeBody, section("Write it yourself, word by word", walkBody));
  below.append(why, folded("What the model keeps from step to step", kept));

  let begun = { of: "", ids: [] };
  const isBegun = () => state.values.chosen[0] === BEGUN;
  const chosen = () => (isBegun() ? begun.ids : state.values.chosen.map(Number));
  async function begin(signal) {
    const { model, text: given } = state.values;
    const of = JSON.stringify([model, given]);
    if (begun.of === of) return;
    const all = (await call("decoding", "greedy", { model, text: given, chosen: [] }, signal)).chosen;
    begun = { of, ids: all.slice(0, Math.min(FIRST, all.length - 1, Math.ceil(all.length / 4))) };
  }
  const choose = (ids) => state.set({ chosen: ids.map(String) }, { step: true });
  const empty = () => state.values.text.trim() === "";
  const nothing = (host) => host.replaceChildren(h("p", { class: "note" }, "Type a text first."));

  const askStep = live(walkBody, async (signal) => {
    const { model, text: given, layer: l, head: a, temperature, k, p, least, seed } = state.values;
    if (empty()) return null;
    if (isBegun()) await begin(signal);
    return call("decoding", "step", { model, text: given, chosen: chosen(), layer: l ? l - 1 : null, head: a ? a - 1 : null,
      temperature, top_k: k, top_p: p, min_p: least, seed }, signal);
  }, (found) => {
    step = found;
    explain();
    if (found === null) {
      kept.replaceChildren();
      return nothing(walk);
    }
    drawnHeads.hidden = !found.layers.length;
    fill(layer, state, "layer", found.layers);
    fill(head, state, "head", Array.from({ length: found.heads }, (_, i) => i));
    return drawStep();
  });
  let step = null;

  /** Say why the chosen candidate of this step, or the last token that was written, is likely. */
  async function explain() {
    const { model, text: line, why: id, chosen: ids } = state.values;
    const last = id === LAST;
    const tokens = last ? chosen().slice(0, -1) : chosen();
    const token = id === "" || step === null ? null : last ? chosen().at(-1) : Number(id);
    const asked = token === undefined || token === null ? "" : JSON.stringify([model, line, ids, id]);
    if (asked === why.dataset.asked) return;
    why.dataset.asked = asked;
    why.replaceChildren();
    if (!asked) return;
    const { whyWord } = await import("../why_word.js");
    if (why.dataset.asked !== asked) return;
    const piece = last ? step.read.at(-1) : step.candidates.find((each) => each.id === token)?.piece ?? `token ${token}`;
    const { limits } = placeNamed(studio, model) ?? {};
    why.replaceChildren(whyWord({ model, line, tokens, token }, { word: last && step.ended ? "(the end)" : spokenPiece(piece), limits, again: translates() ? undefined : "Continue again" }));
  }
  const drawStep = () => {
    refilled(walk, () => showStep(walk, step, { chosen: chosen(), choose, greedy, translates: translates(), isBegun: isBegun(), state }));
    marks();
    showCache(kept, step, translates());
  };

  async function greedy() {
    walkBody.setAttribute("aria-busy", "true");
    try {
      const { model, text: given } = state.values;
      const found = await call("decoding", "greedy", { model, text: given, chosen: chosen() });
      if (isStill()) choose(found.chosen);
      else write(found.chosen, chosen().length + 1);
    } catch (error) {
      walkBody.prepend(problem(error));
    }
    walkBody.setAttribute("aria-busy", "false");
  }

  /** Write tokens one after the other, while nobody does something else. */
  function write(all, count) {
    const ids = all.slice(0, count).map(String);
    state.set({ chosen: ids }, { step: count >= all.length });
    const next = () => {
      if (count >= all.length || String(state.values.chosen) !== String(ids)) return;
      if (walkBody.getAttribute("aria-busy") === "true") setTimeout(next, WRITES / 4); // its chances are still to come
      else write(all, count + 1);
    };
    setTimeout(next, WRITES);
  }

  let last = null;
  const askBeam = live(treeBody, async (signal) => {
    const { model, text: given, beam, n, penalty, longest } = state.values;
    if (empty()) return null;
    return call("decoding", "beam", { model, text: given, beam, n_best: Math.min(n, beam), length_penalty: penalty, max_length: longest }, signal);
  }, (found) => {
    last = found;
    grown = null;
    if (found === null) return nothing(tree);
    return drawBeam();
  });

  let grown = null;
  const drawBeam = () => {
    refilled(tree, () => {
      grown = showBeam(tree, last, state.values, choose);
    });
    marks();
  };
  /** Frame in the tree what is written, where the search has it. */
  const marks = () => grown?.mark(chosen());

  state.watch((_, changed) => {
    const another = changed.includes("text") || changed.includes("model");
    if (another && !changed.includes("chosen")) state.set({ chosen: [BEGUN], layer: 0, head: 0 });
    if (changed.includes("chosen") && !changed.includes("row")) state.set({ row: -1 }); // the lines of the step that is reached
    if ((another || changed.includes("chosen")) && !changed.includes("why") && state.values.why) state.set({ why: "" });
    else if (changed.includes("why") && !another && !changed.includes("chosen")) explain().then(() => why.scrollIntoView({ block: "start" }));
    if (changed.length === 1 && changed[0] === "row" && step) drawStep();
    if (another || changed.some((name) => ["chosen", "layer", "head", "temperature", "k", "p", "least", "seed"].includes(name))) askStep();
    if (another || changed.some((name) => ["beam", "n", "penalty", "longest"].includes(name))) askBeam();
    else if (changed.includes("dropped") && last) drawBeam();
  });
  askStep();
  askBeam();
}

function fill(select, state, name, numbers) {
  select.hidden = numbers.length === 0;
  select.fill([[0, "the mean of all"], ...numbers.map((i) => [i + 1, String(i + 1)])]);
  select.querySelector("select").value = String(state.values[name]);
}

function showStep(host, found, { chosen, choose, greedy, translates, isBegun, state }) {
  const open = !found.ended;
  const best = found.candidates[0];
  const pick = (id) => choose([...(open ? chosen : chosen.slice(0, -1)), id]); // another token takes the place of the end
  const written = h("p", { class: "row writes" }, h("span", { class: "note", dir: "auto" }, state.values.text, translates ? " →" : ""),
    h("span", { class: open ? "text goes-on" : "text", dir: "auto", id: "written" }, found.text || h("span", { class: "note" }, "Nothing is written yet.")),
    isBegun && chosen.length ? h("span", { class: "note" }, "(begun by the model, with the likeliest words)") : null);
  const bar = h("p", { class: "row" },
    open ? button(`Most probable: ${spokenPiece(best.piece)}`, () => pick(best.id)) : h("strong", {}, "The text has ended."),
    open ? button("Draw one", () => pick(found.drawn), { quiet: true }) : null,
    open ? button("Greedy to the end", greedy, { quiet: true }) : null,
    chosen.length ? button("Back one", () => choose(chosen.slice(0, -1)), { quiet: true }) : null,
    chosen.length ? button("Start again", () => choose([]), { quiet: true }) : null);
  const total = found.read.length;
  const fact = (name, value) => h("strong", { "data-fact": name }, value);
  const numbers = h("p", { class: "note" }, "Written: ", fact("written", number(chosen.length - (open ? 0 : 1))), chosen.length - (open ? 0 : 1) === 1 ? " token, chance " : " tokens, chance ", fact("chance", percent(Math.exp(found.score))), " (log-probability ", fact("score", number(found.score)),
    "). Entropy of the next: ", fact("entropy", `${number(found.entropy, 3)} nats`),
    ...(isChanged(state.values) ? ["; with temperature and filters ", fact("drawn-entropy", `${number(found.drawn_entropy, 3)} nats`), ", and ", fact("drawable", `${number(found.drawable)} of ${number(found.possible)}`), " tokens can be drawn"] : []), ".");
  const reason = chosen.length ? button(`Why ${found.ended ? "the end" : `“${spokenPiece(found.read.at(-1))}”`}?`, () => state.set({ why: LAST }, { step: true }), { quiet: true }) : "";

  const row = state.values.row >= 0 && state.values.row < total ? state.values.row : total - 1;
  const sight = figure("The causal triangle", `A row for each step: it has read a word, ${known(found)}. Grey is still to come. ${crossed(found)}Click a row to follow it.`);
  host.append(written, bar, h("div", { class: "step" }, candidates(found, pick, state, open ? null : chosen.at(-1)), sight.element), h("div", { class: "row" }, reason, numbers));
  const coming = found.visible.length - total;
  // The mask is causal, so an earlier row sees what the last one sees of the positions up to it, as far as a window lets it.
  const weights = found.weights ?? found.read.map(() => []);
  const hidden = weights.map((own, i) => found.visible.map((_, j) => (i === total - 1 ? !found.visible[j] : j > i || own[j] === 0)));
  causalTriangle(sight.host, { read: found.read, ended: found.ended, coming, weights, hidden, source: found.cross && found.source, cross: found.cross, row, choose: (index) => state.set({ row: index }, { step: true }) });
}

/** What the model keeps of each token, in numbers and as it grows. */
function showCache(host, found, translates) {
  const growth = remembered(found, translates);
  host.replaceChildren(h("div", { class: "columns" }, growth.element, cacheFacts(found)));
  const points = found.kept.length > 1 ? found.kept.map((each) => [each.slots, each.bytes]) : [];
  lineChart(growth.host, { empty: "Choose a token to see it change.", series: [{ name: "bytes", points, dots: points.length < 40 }],
    x: { label: "tokens read", whole: true }, y: { label: "bytes", zero: true }, describe: "Bytes that are remembered, by tokens read.", height: 220 });
}

const attends = (found) => found.mixers.includes("attention");
const others = (found) => found.mixers.filter((kind) => kind !== "attention").join(", ");

/** How a step knows of the words before it. */
function known(found) {
  if (found.weights) return "looks at it and those before it";
  const layer = found.layers.length && attends(found) ? "this layer" : "the model";
  return `knows it and those before it by what ${layer} remembers (${others(found)}: there are no weights to colour the cells)`;
}

function crossed(found) {
  if (found.cross) return "Lines lead to the words of the text: cross-attention. ";
  return found.source ? "There are no weights of the words of the text: all that is known of it is one vector. " : "";
}

/** The figure of what grows, or does not, with every token. */
function remembered(found, translates) {
  if (!others(found)) return figure("The key-value cache", `Keys and values of every token, in ${translates ? "the decoder's" : "all"} layers. Without it each step would compute those of all tokens again.`);
  const state = `Layers of ${others(found)} keep a state, which has the same size however long the text`;
  return figure("What is remembered", attends(found) ? `${state}; layers of attention keep keys and values of every token.` : `${state}, where attention would keep keys and values of every token.`);
}

function cacheFacts(found) {
  const last = found.kept.at(-1);
  const before = found.kept.at(-2);
  const other = others(found);
  const grows = before ? (last.bytes - before.bytes) / (last.slots - before.slots) : other ? null : last.bytes / last.slots;
  return h("div", {}, facts([[other ? "the first layer keeps" : "keys of a layer", found.shape.join(" × "), "shape"], [other ? "states, all layers" : "keys and values, all layers", bytes(last.bytes), "bytes"],
    grows === null ? null : ["a token adds", bytes(grows), "each"],
    found.memory ? ["kept of the text", bytes(found.memory), "memory"] : null].filter(Boolean)),
  other ? "" : h("p", { class: "note" }, "Sentences × key/value heads × tokens × width of a head."));
}

/** Whether tokens are drawn with other probabilities than the model's own. */
const isChanged = ({ temperature, k, p, least }) => temperature !== 1 || k !== 0 || p !== 1 || least !== 0;

/** The candidates, to be clicked; `end` is the id of the end where it was chosen. */
function candidates(found, pick, state, end) {
  const changed = isChanged(state.values);
  const most = Math.max(...found.candidates.flatMap((each) => [each.probability, each.drawn]));
  const track = (share, series) => {
    const length = h("span", { class: "length" });
    length.style.width = `${(100 * share) / most}%`;
    length.style.background = `var(--series-${series})`;
    return h("span", { class: "track" }, length);
  };
  return h("div", {}, h("h3", {}, end === null ? "Click what to write next" : "The end was chosen; click another to go on"),
    changed ? h("ul", { class: "legend" }, [["the model's probability", 0], ["with temperature and filters", 1]].map(([name, i]) => {
      const sign = h("span", { class: "swatch" });
      sign.style.background = `var(--series-${i})`;
      return h("li", {}, sign, name);
    })) : null,
    h("ol", { class: changed ? "candidates" : "candidates plain" }, found.candidates.map((each) => h("li", { class: each.drawn === 0 ? "out" : null },
      h("button", { type: "button", class: "quiet", "data-id": each.id, "aria-pressed": end === null ? null : String(each.id === end), "aria-label": `Write ${spokenPiece(each.piece)}`, onclick: () => pick(each.id) }, each.id === end ? "(end)" : shownPiece(each.piece)),
      h("span", { class: "tracks", "aria-hidden": "true" }, track(each.probability, 0), changed ? track(each.drawn, 1) : null),
      h("span", { class: "count" }, percent(each.probability)), changed ? h("span", { class: "count" }, percent(each.drawn)) : null,
      h("button", { type: "button", class: "quiet reason", title: "Why this word?", "aria-label": `Why ${spokenPiece(each.piece)}?`, onclick: () => state.set({ why: String(each.id) }, { step: true }) }, "why?")))));
}

const FATES = { lived: "went on", ended: "ended", dropped: "was dropped" };

const RARE = Math.log(0.0001); // below this a share in per cent has too many zeros

/** The chance of a text for a small box: in per cent, or one in so many. */
const chanceOf = (score) => (score > RARE ? percent(Math.exp(score), 2) : `1 in ${engineering(Math.exp(-score)).replace(/\.\d+/, "")}`);

/** Draw both searches and the tree; returns what frames the written tokens in it. */
function showBeam(host, found, { dropped, longest, beam }, choose) {
  const shown = found.steps.map((step) => step.looked.map((each, j) => ({ ...each, place: j })).filter((each) => dropped || each.fate !== "dropped"));
  const parentOf = (i, each) => (i ? shown[i - 1].findIndex((other) => other.beam === each.parent) : -1);
  const columns = shown.map((step, i) => step.map((each) => {
    const rank = found.paths.findIndex((path) => path.length === i + 1 && path[i] === each.place);
    const end = each.fate === "ended" ? `, ranked by ${number(each.normalized)}${rank < 0 ? "" : `, returned as number ${rank + 1}`}` : "";
    return { label: shownPiece(each.piece), value: each.score, text: chanceOf(each.score), share: Math.exp(each.score), parent: parentOf(i, each), kind: rank < 0 ? each.fate : "ended returned",
      tell: `Step ${i + 1}, “${spokenPiece(each.piece)}”: ${percent(each.probability)} here; “${each.text}” has ${percent(Math.exp(each.score))} in all and ${FATES[each.fate]}${end}.` };
  }));
  const path = found.paths[0]?.map((place, i) => shown[i].findIndex((each) => each.place === place)) ?? [];
  const looked = found.steps.reduce((sum, step) => sum + step.looked.length, 0);
  const ended = found.steps.reduce((sum, step) => sum + step.looked.filter((each) => each.fate === "ended").length, 0);
  const greedy = greedyWay(found.steps);
  const alone = greedy.at(-1);
  const left = alone?.fate === "dropped" ? greedy.length : alone?.fate === "lived" && greedy.length < found.steps.length ? greedy.length + 1 : 0;
  const second = greedy.map(({ place }, i) => shown[i].findIndex((each) => each.place === place));
  const same = String(second) === String(path);
  const picture = figure("The beam as a tree",
    `The chance of the whole text so far. Bold: the best result.${same ? "" : " Dashed: greedy search."} Click a box to go on from its text.`);
  host.append(compare(beam, [
    ...(alone ? [{ ...alone, name: "Greedy", text: `${alone.text}${alone.fate === "ended" ? "" : " …"}`, series: 1, fact: "greedy", more: left ? `dropped by the beam at step ${left}` : "" }] : []),
    ...found.hypotheses.map((each) => ({ ...each, name: "Beam", series: 0, more: found.hypotheses.length > 1 ? `ranked by ${number(each.normalized)}` : "" })),
  ]), picture.element);
  /** The tokens of a node, from the first on. */
  const tokensOf = (column, row) => (column < 0 ? [] : [...tokensOf(column - 1, columns[column][row].parent), shown[column][row].token]);
  const tree = treeChart(picture.host, { columns, path, second: same ? [] : second, value: "log-probability", first: "start", describe: `The beam as a tree of ${found.steps.length} steps.`, choose: (column, row) => choose(tokensOf(column, row)) });
  picture.element.querySelector("h3").append(player(tree));
  picture.element.append(
    h("ul", { class: "legend" }, [["went on", "lived"], ["ended", "ended"], ["returned", "ended returned"], ...(dropped ? [["dropped", "dropped"]] : [])].map(([name, kind]) => h("li", {}, h("span", { class: `sign ${kind}` }), name))),
    folded("How it was ranked, and every number", h("div", {},
      h("p", { class: "note" }, "Ranked by the log-probability divided by a power of the length, the length penalty; at 0 by the log-probability itself. ", why(found, longest)),
      facts([["steps", number(found.steps.length), "steps"], ["continuations scored", number(looked), "looked"], ["of which ended", number(ended), "ended"], ["returned", number(found.hypotheses.length), "returned"]]),
      table("Every continuation that the search scored", ["step", "text", "piece", "log-probability", "outcome"],
        found.steps.flatMap((step, i) => step.looked.map((each) => [i + 1, each.text.replaceAll("\n", "⏎"), shownPiece(each.piece), number(each.score), `${FATES[each.fate]}${each.normalized === null ? "" : `, ranked by ${number(each.normalized)}`}`]))))));
  return {
    mark(tokens) {
      let row = 0;
      const known = tokens.every((token, i) => {
        row = shown[i]?.findIndex((each, j) => each.token === token && (i === 0 || columns[i][j].parent === row)) ?? -1;
        return row >= 0;
      });
      tree.mark(known ? [tokens.length - 1, row] : null);
    },
  };
}

/** Let the tree grow, and stop it. */
function player(tree) {
  let stop = null;
  const play = button("Play", () => {
    if (stop) return stop();
    play.textContent = "Stop";
    stop = tree.grow(() => {
      stop = null;
      play.textContent = "Play";
    });
    return null;
  });
  play.hidden = isStill();
  return play;
}

/** The texts of greedy search and of the beam, with the probability of each as a whole. */
function compare(beam, texts) {
  const same = texts.length > 1 && texts.every((each) => each.text.trim() === texts[0].text.trim());
  const most = Math.max(...texts.map((each) => each.score));
  return h("div", {},
    h("ol", { class: "ranks" }, texts.map(({ name, text, score, series, fact, more }) => {
      const length = h("span", { class: "length", style: { width: `${100 * Math.exp(score - most)}%`, background: `var(--series-${series})` } });
      return h("li", { class: "found" }, h("span", {}, h("span", { class: "note" }, `${name}: `), h("strong", { dir: "auto", "data-fact": fact ?? null }, text.replaceAll("\n", "⏎") || "(nothing)")),
        h("span", { class: "whole" }, h("span", { class: "track", "aria-hidden": "true" }, length), h("strong", {}, score > RARE ? percent(Math.exp(score)) : chanceOf(score))),
        more ? h("span", { class: "count" }, more) : null);
    })),
    h("p", { class: "note" }, `Greedy search takes the likeliest word each time and never goes back. A beam goes on with the ${beam === 1 ? "best text" : `${beam} best texts`}, so a worse start can win.${same ? " Here both find the same." : ""}`));
}

/** The way of greedy search through the tree: what it writes at each step, as far as the beam kept it. */
function greedyWay(steps) {
  const way = [];
  for (const { looked } of steps) {
    const [next] = looked.map((each, place) => ({ ...each, place })).filter(({ parent }) => parent === (way.at(-1)?.beam ?? 0)).sort((a, b) => b.probability - a.probability);
    if (!next) break;
    way.push(next);
    if (next.fate !== "lived") break;
  }
  return way;
}

/** Why the search went no further. */
function why(found, longest) {
  const end = found.steps.at(-1);
  if (found.steps.length > longest) return `It stopped after ${longest} tokens, the most that were allowed.`;
  if (end.bound === null) return "It stopped because no hypothesis was left.";
  return `It stopped because no further hypothesis could score above ${number(end.bound)}, and the results score at least ${number(end.worst)}.`;
}
