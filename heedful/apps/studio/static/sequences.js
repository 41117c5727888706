// Models of other data than text: a sample, its tokens, what a model makes of it, and what it attends to.

import { live, problem } from "./api.js";
import { button, choice, more, slider } from "./controls.js";
import { figure, folded, h, inSteps, isStill, number, percent } from "./dom.js";
import { series } from "./draw/colours.js";
import { shownPiece } from "./draw/links.js";
import { labelBars, patchOf, shareKey } from "./draw/patches.js";
import { drawSample, PADDING, pieceWords, placeWords, sharesOf, stepsOf } from "./draw/samples.js";
import { play, playSound } from "./player.js";
import { sameBlock } from "./same_block.js";
import { asksOf } from "./sample_models.js";
import { placesOf } from "./subject.js";
import { thumbnail } from "./thumbnails.js";
import { base64Of } from "./upload.js";

const MIXED = 45; // per cent of the glow behind a token, so that its text stays readable
const PLAYED = 6000; // milliseconds in which a sample is written again, at most
const LITTLE = 0.05; // a share of the begin token below this needs no word
const TITLES = { notes: "After the dashed line the model composes", pixels: "The model paints", coins: "The model plays", room: "The model acts", series: "The model forecasts", patches: "Cut into patches" };
const VOICES = ["soprano", "alto", "tenor", "bass"]; // in the order of the tokens of a moment
const MOVE = 3; // tokens of a moment of a player: what is still to come, where it is, and the action, which the model chooses
const MOST_SOUND = 1 << 19; // bytes: half a minute at 8 kHz

const models = (studio) => placesOf(studio, ["records", "sounds", "vision"]);

/** What a model is called for people: bach-chorales is Bach chorales. */
const titleOf = ({ name }) => `${name[0].toUpperCase()}${name.slice(1).replaceAll(/[-_]/g, " ")}`;

export const sequenceDefaults = (studio) => ({
  records: models(studio)[0]?.name ?? "", sample: 0, keep: 0, temperature: 0.8, seed: 1, step: 0, token: -1, layer: 0, head: 0,
});

/** The part of a page, in its place. */
export function sequences(host, state, studio) {
  if (!models(studio).length) {
    host.replaceChildren(h("p", { class: "note" }, "None of the models at hand reads other things than text. Drop a run of heedful train --task tokens onto the start page."));
    return;
  }
  const place = () => models(studio).find((each) => each.name === state.values.records) ?? models(studio)[0];
  const about = h("p", { class: "about" });
  const limits = h("ul", { class: "note" });
  const limited = folded("What it cannot do", limits);
  const samples = choice(state, "sample", { label: "Sample", options: [[0, "…"]] });
  const layer = choice(state, "layer", { label: "Layer", options: [[0, "the last"]] });
  const head = choice(state, "head", { label: "Head", options: [[0, "the mean of all"]] });
  const file = h("input", { type: "file", id: "sound", accept: "audio/wav,.wav" });
  const own = h("div", { class: "field" }, h("label", { for: "sound" }, "A WAV file of yours"), file);
  const keep = h("div", {});
  const step = h("div", {});
  const warmth = slider(state, "temperature", { label: "Temperature", min: 0, max: 1.5, step: 0.1 });
  const another = button("Another", () => state.set({ seed: state.values.seed + 1, step: 0 }, { step: true }), { quiet: true });
  const given = figure("What is given");
  const whole = figure("");
  const answer = figure("");
  const looked = figure("What it looks at");
  const legend = h("div", {});
  looked.host.after(legend);
  const player = button("Listen", () => (stop ? stop() : start()));
  const chips = h("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  const said = h("p", { class: "note chosen-token", role: "status" });
  const pictures = h("div", { class: "easel-row samples" }, given.element, whole.element, looked.element);
  const cut = folded("", chips);
  const body = h("div", {}, h("div", { class: "with-answer" }, pictures, answer.element), cut, said);
  const buttons = h("div", { class: "row" }, player, another);
  const cards = models(studio).map((each) => h("button", { type: "button", class: "quiet", "data-model": each.name, title: [each.name, each.summary].filter(Boolean).join(": "), onclick: () => state.set({ records: each.name }, { step: true }) }, thumbnail(each.name), titleOf(each)));
  const joint = sameBlock(cards.length);
  const press = () => cards.forEach((each, i) => {
    each.setAttribute("aria-pressed", String(each.dataset.model === place().name));
    if (each.dataset.model === place().name) joint.choose(i);
  });
  press();
  host.replaceChildren(h("div", { class: "examples model-cards", role: "group", "aria-label": "Model" }, cards), joint.element, about, h("div", { class: "panel sample-panel", role: "group", "aria-label": "Sample and head" },
    h("div", { class: "fours" }, samples, own, keep, step, buttons, more("Head and temperature", layer, head, warmth))),
  body, limited);

  let found = null;
  let usual = 0; // tokens that are given where no number is chosen
  let upload = null;
  let stop = null;
  let move = () => {};

  const current = () => found.samples[Math.min(Math.max(0, state.values.step), found.samples.length - 1)];
  const chosen = () => {
    const { tokens, kept, opens } = current();
    const { token } = state.values;
    if (token >= 0 && token < tokens.length) return token;
    if (opens !== undefined) return opens;
    const first = kept < tokens.length ? kept : 0; // the middle of what is written, or of all, and of its row
    const rows = Math.floor((tokens.length - first) / found.step / 2);
    const middle = first + rows * found.step + Math.floor(found.step / 2);
    return Math.min(tokens.length - 1, current().drawing.kind === "coins" ? middle - (middle % MOVE) + MOVE - 1 : middle);
  };
  const hasVoices = () => current().drawing.kind === "notes" && found.step === VOICES.length;
  const choose = (token) => state.set({ token }, { step: true });

  /** Draw how the sample was written, step by step. */
  function grow(steps, over) {
    const own = found;
    return inSteps(Math.max(40, Math.min(600, PLAYED / steps.length)), (at) => {
      if (at >= steps.length || own !== found) return false;
      drawSample(whole.host, { drawing: steps[at].drawing, shares: null, token: -1, choose, describe: steps[at].words });
      whole.words.textContent = steps[at].words;
      return true;
    }, over);
  }

  async function start() {
    const steps = stepsOf(found, current());
    if (steps.length) {
      player.textContent = "Stop";
      stop = grow(steps, () => {
        stop = null;
        player.textContent = "Play";
        look();
      });
      return;
    }
    const tell = (at) => {
      move(at);
      if (at !== null) return;
      stop = null;
      player.textContent = "Listen";
    };
    try {
      const { drawing } = current();
      const wav = await asksOf(place()).sound(place(), current());
      stop = wav ? playSound(wav, tell) : play(drawing.notes, drawing.seconds_per_step, tell);
      player.textContent = "Silence";
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  }

  /** The controls that depend on the model and on the sample. */
  function fill() {
    about.textContent = place().summary ? `${place().summary}.` : "";
    limits.replaceChildren(...(place().limits ?? []).map((limit) => h("li", {}, limit)));
    limited.hidden = !limits.children.length;
    samples.fill(asksOf(place()).samples(place(), found).map((name, i) => [i, name]));
    layer.fill([[0, `the last, ${found.layers}`], ...counted(found.layers).map((n) => [n, String(n)])]);
    head.fill([[0, "the mean of all"], ...counted(found.heads).map((n) => [n, String(n)])]);
    const { drawing } = found.begun;
    const stops = [];
    for (let at = found.conditions; at < found.whole; at += found.step) stops.push(at);
    stops.push(found.whole);
    if (!state.values.keep) usual = found.begun.kept;
    stepped(keep, "keep", "Tokens given", stops.length > 2 && drawing.kind !== "room" ? stops.filter((at) => at > 0) : [], (kept) => kept || usual);
    stepped(step, "step", "Steps taken", found.samples.length > 1 ? counted(found.samples.length).map((n) => n - 1) : []);
    const writes = found.conditions < found.samples[0]?.tokens.length;
    another.hidden = !writes || drawing.kind === "room";
    warmth.hidden = another.hidden || drawing.kind === "coins"; // players are as random as those they learned from
    own.hidden = place().kind !== "sounds";
    const grows = stepsOf(found, current()).length > 0;
    player.hidden = grows ? isStill() : drawing.kind !== "notes" && own.hidden;
    if (!stop) player.textContent = grows ? "Play" : "Listen";
    buttons.hidden = another.hidden && player.hidden;
    cut.firstChild.textContent = found.vocabulary === null ? "The tokens: row and column of each patch" : "The tokens, with their numbers in the vocabulary";
  }

  /** A slider over some stops, made anew only when they change: it may be in somebody's hand. */
  function stepped(host, name, label, stops, shown) {
    const key = [...stops, shown?.(0)].join();
    if (host.dataset.stops === key) return;
    host.dataset.stops = key;
    host.hidden = !stops.length;
    host.replaceChildren(stops.length ? slider(state, name, { label, stops, shown }) : "");
  }

  function show(shares) {
    const sample = current();
    const { drawing, kept, tokens } = sample;
    const at = chosen();
    const drawn = Boolean(drawing.places);
    for (const each of [given, whole, looked]) each.element.hidden = !drawn;
    cut.open ||= !drawn; // then nothing else shows the sample
    // Notes and series are drawn whole, with a line or a colour where the given ones end; a picture that is only read is there already.
    const labels = drawing.labels ?? shares?.candidates;
    if (labels || !found.begun.drawing.places) answer.element.hidden = !labels?.length; // else the next ones are on their way
    if (labels?.length) {
      answer.element.querySelector("h3").textContent = !drawing.labels ? "Chances" : place().kind === "sounds" ? "It hears" : "It reads";
      const named = drawing.labels ?? labels.map((each) => ({ ...each, label: pieceWords(drawing, tokens, found.fields, at, each.label) }));
      answer.host.replaceChildren(labelBars(named, drawing.labels ? named[0] : named.find((each) => each.own)));
      answer.words.textContent = drawing.labels ? "" : `What could stand in the frame. Bold: what ${at < kept ? "stands there" : "was drawn"}.`;
    }
    whole.element.querySelector("h3").textContent = TITLES[drawing.kind] ?? "What the model writes";
    given.element.hidden ||= ["notes", "series"].includes(drawing.kind) || sample === found.begun;
    if (drawn) {
      // Pictures side by side have one scale.
      const pitches = [...found.begun.drawing.notes ?? [], ...drawing.notes ?? []].map((note) => note[1]);
      const range = pitches.length ? [Math.min(...pitches), Math.max(...pitches)] : undefined;
      const voices = hasVoices() ? VOICES.length : 0;
      const shared = { token: at, range, voices, choose };
      pictures.classList.toggle("series", drawing.kind === "series");
      pictures.classList.toggle("notes", drawing.kind === "notes");
      const count = kept < tokens.length ? `${number(found.begun.kept)} of ${number(tokens.length)} tokens are given.` : `${number(tokens.length)} tokens.`;
      drawSample(given.host, { drawing: found.begun.drawing, shares: null, token: -1, range, choose, describe: `The sample as far as it is given. ${count}` });
      given.words.textContent = [drawing.said ? `“${drawing.said}”.` : "", count].join(" ");
      const describe = "The sample, completed by the model.";
      move = drawSample(whole.host, { drawing, shares: null, ...shared, describe });
      if (place().kind === "sounds" && !isStill()) move = hears(whole.host, { drawing, shares: null, ...shared, describe });
      whole.words.replaceChildren(voices ? h("span", { class: "legend" }, VOICES.map((name, i) => h("span", { style: { color: series(i) } }, `▬ ${name}`)), "A line every four beats; C4 is middle C.") : "", completion(sample, found, state.values));
      if (shares) {
        drawSample(looked.host, { drawing, shares: shares.shares, ...shared, describe: "The sample, coloured by attention." });
        legend.replaceChildren(shareKey(Math.max(...sharesOf(drawing, shares.shares))));
        const where = placeWords(drawing, at) || `“${tokens[at][0]}”`;
        const rest = (shares.begin ?? 0) < LITTLE ? "" : ` The start has ${percent(shares.begin, 2)}.`;
        looked.words.textContent = `From ${where}${at < kept ? "" : ", when the model wrote it"}: ${headWords(state.values, found)}.${rest}`;
      }
    }
    showJoint(sample, at, labels);
    showChips(tokens, kept, at, shares);
  }

  /** What the model has read and what it makes of it: of a sample that is only read its label, else the token in the frame. */
  function showJoint({ drawing, tokens }, at, labels) {
    const words = (i) => (tokens[i][1] === null && drawing.patches ? patchOf(drawing, i) : pieceWords(drawing, tokens, found.fields, i));
    const [best] = [...labels ?? []].sort((one, other) => other.probability - one.probability);
    // Of a sample that is only read those around the frame are shown.
    const read = tokens.map((_, i) => i).slice(0, drawing.labels ? Math.max(6, at + 3) : at).filter((i) => tokens[i][0] !== PADDING);
    joint.show({
      pieces: read.slice(-6).map(words), tokens: tokens.length, layers: found.layers,
      answer: best ? { title: drawing.labels ? "what it is" : "what comes next", label: drawing.labels ? best.label : pieceWords(drawing, tokens, found.fields, at, best.label), probability: best.probability } : null,
    });
  }

  function showChips(tokens, kept, at, shares) {
    const focused = chips.contains(document.activeElement);
    const most = shares ? Math.max(...shares.shares, 1e-12) : 1;
    const voices = hasVoices();
    chips.classList.toggle("voices", voices);
    const made = tokens.map(([piece, id], i) => {
      const chip = h("button", { type: "button", class: i < kept ? "token" : "token written", "aria-pressed": String(i === at), onclick: () => choose(i) }, piece === PADDING ? "padding" : shownPiece(String(piece)), id === null ? null : h("small", {}, id));
      if (shares?.shares[i]) chip.style.background = `color-mix(in srgb, var(--glow) ${Math.round((MIXED * shares.shares[i]) / most)}%, var(--raised))`;
      return chip;
    });
    chips.replaceChildren(...(voices ? VOICES.map((name) => h("span", { class: "voice" }, name)) : []), ...made);
    const pressed = made[at];
    if (focused) pressed.focus({ preventScroll: true });
    const begins = state.values.token < 0; // nobody has chosen one: the tokens begin at the first
    chips.scrollTop = begins ? 0 : Math.max(0, pressed.offsetTop - chips.clientHeight / 2);
    chips.scrollLeft = begins ? 0 : Math.max(0, pressed.offsetLeft - chips.clientWidth / 2);
    const [piece, id, field] = tokens[at];
    said.replaceChildren(...(id === null
      ? [`Token ${at + 1} of ${tokens.length}: row and column ${piece}. Its pixels, times a matrix, and its position make its vector: ${found.fields[0].form}.`]
      : [`Token ${at + 1} of ${tokens.length}: “`, pieceWords(current().drawing, tokens, found.fields, at), `” is number ${number(id)} of ${number(found.vocabulary)}${found.fields.length > 1 ? `, in the field ${found.fields[field].name}` : ""}; it is ${at < kept ? "given" : "written by the model"}.`]));
  }

  const look = live(body, (signal) => asksOf(place()).weights(place(), state.values, current(), chosen(), signal), show);

  const ask = live(body, (signal) => asksOf(place()).complete(place(), state.values, upload, signal), (answer) => {
    stop?.();
    found = answer;
    fill();
    if (!found.samples.length) return; // the goal is reached already
    show(null);
    look();
  });

  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    try {
      upload = await base64Of(file.files[0], MOST_SOUND);
      ask();
    } catch (error) {
      said.replaceChildren(problem(error));
    }
  });
  state.watch((_, changed) => {
    press();
    if (changed.includes("records") || changed.includes("sample")) upload = null;
    if (changed.includes("records")) {
      state.set({ sample: 0, keep: 0, step: 0, token: -1, layer: 0, head: 0 });
      ask();
    } else if (changed.includes("sample")) {
      state.set({ keep: 0, step: 0, token: -1 });
      ask();
    } else if (["keep", "temperature", "seed"].some((name) => changed.includes(name))) ask();
    else if (found?.samples.length && ["step", "token", "layer", "head"].some((name) => changed.includes(name))) look();
  });
  addEventListener("pagehide", () => stop?.());
  ask();
}

/** The columns of a sound's picture appear as they are heard; the returned function takes the share, and null for all of them. */
function hears(host, sample) {
  const { side, patch } = sample.drawing;
  const columns = side / patch;
  let shown = columns;
  return (share) => {
    const heard = share === null ? columns : Math.min(columns, Math.ceil(share * columns));
    if (heard === shown) return;
    shown = heard;
    drawSample(host, { ...sample, drawing: { ...sample.drawing, known: sample.drawing.places.map(([i]) => i % columns < heard) } });
  };
}

const coins = (count) => `${number(count)} ${count === 1 ? "coin" : "coins"}`;

const counted = (count) => Array.from({ length: count }, (_, i) => i + 1);

const headWords = ({ layer, head }, { layers }) => `layer ${layer || layers} of ${layers}, ${head ? `head ${head}` : "the mean of its heads"}`;

/** What the model made of a sample, in a sentence. */
function completion({ drawing, record }, found, { step, temperature }) {
  if (drawing.labels) return `${found.fields[0].form}.`;
  if (drawing.kind === "room") return `Step ${Math.max(0, step) + 1} of ${found.samples.length}: the model writes “${drawing.action}”, and the world answers.`;
  if (drawing.kind === "coins") return `Asked for ${coins(JSON.parse(record).moments.flat()[0])}, it has ${coins(drawing.coins)} after twelve moves. Dots: where it was.`;
  if (drawing.kind === "series") return "Forty futures are drawn; eight of ten lie between the dashed lines at each value.";
  return `${drawing.kind === "notes" ? `${number(found.begun.kept)} tokens are given. ` : ""}Written one token after the other, each ${temperature > 0 ? "drawn by its chance" : "the most probable"}.`;
}
