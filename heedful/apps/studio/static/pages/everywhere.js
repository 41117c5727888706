import { call, live, problem } from "../api.js";
import { button, choice, tabs } from "../controls.js";
import { figure, folded, foldedSection, h, number, s, section, table } from "../dom.js";
import { redrawn } from "../draw/colours.js";
import { lineChart } from "../draw/lines.js";
import { shownPiece } from "../draw/links.js";
import { pad, read, write } from "../draw/pad.js";
import { greyPicture, isBlank, patchPicture, pixelsOf } from "../draw/patches.js";
import { pianoRoll, pitchName } from "../draw/piano_roll.js";
import { vectorPicture } from "../draw/vectors.js";
import { play } from "../player.js";
import { saves } from "../save.js";
import { sequenceDefaults, sequences } from "../sequences.js";
import { placesOf, subjectDefaults, subjectFields } from "../subject.js";

export const kinds = ["translator", "causal_lm", "encoder"];

const visions = (studio) => placesOf(studio, ["vision"]).map((place) => place.name);

export const defaults = (studio) => ({
  ...subjectDefaults(studio, kinds), vision: visions(studio)[0] ?? "", picture: "", drawing: "", tune: "round",
  kind: "picture", piece: 0, patch: 24, event: 0, ...sequenceDefaults(studio),
});

const CUT = 100; // pixels of the picture in patches
const WAYS = [["text", "Text"], ["picture", "A picture"], ["music", "Music"]];
const SETTINGS = { text: ["piece"], music: ["tune", "event"] }; // an address with one of them is about that kind
const KIND_OF = { text: "text", image: "picture", music: "music" };
const KINDS = { note_on: "on", note_off: "off", time_shift: "+" };

export async function mount({ root, state, studio }) {
  const facts = { text: null, image: null, music: null };
  const rows = h("div", {});
  const query = new URLSearchParams(location.search);
  const named = Object.keys(SETTINGS).find((kind) => SETTINGS[kind].some((name) => query.has(name)));
  if (named && !query.has("kind")) state.set({ kind: named });
  const domains = h("div", { class: "domains" });
  const joint = h("div", { class: "drawing joint" });
  const together = h("div", { class: "drawing everywhere-picture" }, domains, joint);
  const more = h("div", {});
  const distance = foldedSection("Distance in music", more);
  distance.open = named === "music";
  const whole = h("div", {});
  const one = section("Why one kind of block is enough", h("p", {}, "Each kind is cut in its own way. From its vectors on, it is like the others."),
    h("div", { class: "kinds" }, tabs(state, "kind", { label: "What is read", options: WAYS })), together, saves(together, () => "tokens become vectors"),
    folded("What differs between the three, and what does not", rows));
  root.append(whole, one, distance);
  const told = (name) => (found) => {
    facts[name] = found;
    compare(rows, facts);
    drawJoint(joint, facts, state.values.kind);
    // An address that names a text, a picture or a tune is about this part, which stands below the models.
    if (scrollY === 0 && (named ?? (query.has("picture") || query.has("drawing") ? "picture" : null)) === KIND_OF[name]) one.scrollIntoView();
  };
  const arrange = () => {
    [...domains.children].forEach((each, i) => {
      each.hidden = WAYS[i][0] !== state.values.kind;
    });
    drawJoint(joint, facts, state.values.kind);
  };
  domains.append(ofText(state, studio, told("text")), ofImage(state, studio, told("image")));
  const { tunes } = await call("everywhere", "tunes");
  domains.append(ofMusic(state, tunes, told("music"), more));
  arrange();
  state.watch((_, changed) => changed.includes("kind") && arrange());
  sequences(whole, state, studio);
}

/** A column: its title, what is cut, its tokens, their vectors. */
function column(title, raw, tokens) {
  const vectors = h("div", { class: "drawing" });
  const said = h("p", { class: "note chosen-token", role: "status" });
  const size = h("p", { class: "shape-line" });
  const body = h("div", { class: "column-body" }, tokens, vectors);
  const element = h("section", { class: "domain" }, h("h2", {}, title), h("div", { class: "raw" }, raw), body, said, size);
  return {
    element, body, vectors, said,
    sized(found) {
      size.replaceChildren(h("strong", {}, `[${number(found.vectors.length)}]`), " tokens → ", h("strong", {}, `[${number(found.vectors.length)}, ${number(found.width)}]`), " vectors");
    },
  };
}

/** Draw again when only the chosen token has changed; ask again when anything else has. */
function follow(state, names, chosen, ask, show) {
  state.watch((_, changed) => {
    if (names.some((name) => changed.includes(name))) ask();
    else if (changed.includes(chosen)) show();
  });
}

const chip = (content, pressed, press, kind = null) => h("button", { type: "button", class: kind ? `token ${kind}` : "token", "aria-pressed": String(pressed), onclick: press }, content);

function ofText(state, studio, told) {
  if (!placesOf(studio, kinds).length) return missing("Text", "reads text");
  const tokens = h("div", { class: "tokens", role: "group", "aria-label": "Pieces" });
  const fields = subjectFields(state, studio, kinds, { rows: 2 });
  const own = column("Text → pieces of words → vectors", [fields.pop(), folded("Another text or model", ...fields.filter(Boolean))], tokens);
  let found = null;
  const choose = (piece) => state.set({ piece }, { step: true });
  const show = () => {
    const at = Math.min(state.values.piece, found.pieces.length - 1);
    tokens.replaceChildren(...found.pieces.map((piece, i) => chip([shownPiece(piece), h("small", {}, found.ids[i])], i === at, () => choose(i))));
    vectorPicture(own.vectors, { values: found.vectors, chosen: at, choose, describe: `The vectors of ${found.pieces.length} pieces.` });
    own.said.textContent = `Token ${at + 1}: “${shownPiece(found.pieces[at])}” is row ${number(found.ids[at])} of a table of ${number(found.vocabulary)}; with its position it is a vector.`;
    own.sized(found);
  };
  const ask = live(own.body, async (signal) => {
    const { model, text: written } = state.values;
    return written.trim() === "" ? null : call("everywhere", "text", { model, text: written }, signal);
  }, (answer) => {
    if (answer === null) return; // an empty text leaves the last picture
    found = answer;
    show();
    told(found);
  });
  follow(state, ["model", "text"], "piece", ask, () => found && show());
  ask();
  return own.element;
}

function ofImage(state, studio, told) {
  if (!visions(studio).length) return missing("Picture", "reads pictures");
  const examples = choice(state, "picture", { label: "Picture", options: [["", "…"]] });
  const easel = h("div", { class: "easel" });
  const strip = h("div", { class: "drawing" });
  const own = column("Picture → patches → vectors", [easel, h("div", {}, examples, button("Clear and draw", () => state.set({ picture: "drawing", drawing: "" }, { step: true }), { quiet: true }))], strip);
  let found = null;
  let board = null;
  const choose = (patch) => state.set({ patch }, { step: true });
  const show = () => {
    const count = found.side / found.patch;
    const at = Math.min(Math.max(0, state.values.patch), count * count - 1);
    patchPicture(strip, { pixels: pixelsOf(found), side: found.side, patch: found.patch, channels: found.channels, shares: null, size: CUT, chosen: at, choose, describe: `${count * count} patches in reading order.` });
    vectorPicture(own.vectors, { values: found.vectors, chosen: at + found.first, choose: (row) => choose(row - found.first), describe: `The vectors of ${count * count} patches.` });
    own.said.textContent = `Patch ${at + 1}: row ${Math.floor(at / count) + 1}, column ${(at % count) + 1}; ${number(found.patch ** 2 * found.channels)} numbers times a matrix. ${isBlank(found) ? "Nothing is drawn yet." : `The model reads “${found.label}”.`}`;
    own.sized(found);
  };
  const ask = live(own.body, async (signal) => {
    const { vision: model, picture, drawing } = state.values;
    const asked = picture === "drawing" ? { model, drawing: read(drawing, board?.side ?? 28) } : { model, example: picture || "two" };
    return call("everywhere", "image", asked, signal);
  }, (answer) => {
    found = answer;
    if (!board) {
      const made = pad({ side: answer.canvas, changed: (rows) => state.set({ picture: "drawing", drawing: write(rows) }) });
      board = { side: answer.canvas, ...made };
      easel.replaceChildren(made.element);
      examples.fill([["", "example: two"], ...answer.examples.filter((name) => name !== "two").map((name) => [name, `example: ${name}`]), ["drawing", "your drawing"]]);
    }
    board.set(greyPicture(answer, board.side));
    show();
    told(found);
  });
  follow(state, ["vision", "picture", "drawing"], "patch", ask, () => found && show());
  ask();
  return own.element;
}

function ofMusic(state, tunes, told, more) {
  const roll = h("div", { class: "drawing" });
  const player = button("Play", () => (stop ? stop() : start()));
  const tokens = h("div", { class: "tokens", role: "group", "aria-label": "Events" });
  const own = column("Music → events → vectors", [h("div", { class: "row" }, choice(state, "tune", { label: "Tune", options: tunes }), player), roll], tokens);
  let found = null;
  let stop = null;
  let move = () => {};
  function start() {
    try {
      stop = play(found.notes, found.seconds_per_step, (step) => {
        move(step);
        if (step !== null) return;
        stop = null;
        player.textContent = "Play";
      });
      player.textContent = "Stop";
    } catch (error) {
      own.said.replaceChildren(problem(error));
    }
  }
  const choose = (event) => state.set({ event }, { step: true });
  const show = () => {
    const at = Math.min(state.values.event, found.events.length - 1);
    const [kind, value, id] = found.events[at];
    const focused = tokens.contains(document.activeElement);
    tokens.replaceChildren(...found.events.map(([each, amount], i) => chip(each === "time_shift" ? `+${number(amount / 100)} s` : `${KINDS[each]} ${pitchName(amount)}`, i === at, () => choose(i), each)));
    const pressed = tokens.children[at];
    if (focused) pressed.focus({ preventScroll: true });
    tokens.scrollTop = Math.max(0, pressed.offsetTop - tokens.offsetTop - tokens.clientHeight / 2);
    move = pianoRoll(roll, {
      notes: found.notes, chosen: { kind, value, time: found.times[at] }, describe: `${found.title}: ${found.notes.length} notes.`,
      choose: (note) => choose(found.events.findIndex(([each, pitch], i) => each === "note_on" && pitch === found.notes[note][1] && found.times[i] === found.notes[note][0])),
    });
    vectorPicture(own.vectors, { values: found.vectors, chosen: at, choose, describe: `The vectors of ${found.events.length} events.` });
    const meaning = kind === "time_shift" ? `${number(value / 100)} seconds go by` : `${pitchName(value)} ${kind === "note_on" ? "begins" : "ends"}`;
    own.said.textContent = `Token ${at + 1}: ${meaning}; row ${number(id)} of a table of ${number(found.vocabulary)}, which is still random here.`;
    own.sized(found);
  };
  const ask = live(own.body, (signal) => call("everywhere", "music", { tune: state.values.tune }, signal), (answer) => {
    stop?.();
    found = answer;
    show();
    told(found);
    again(more, found);
  });
  follow(state, ["tune"], "event", ask, () => found && show());
  state.watch((_, changed) => changed.includes("tune") && state.values.event && state.set({ event: 0 }));
  addEventListener("pagehide", () => stop?.());
  ask();
  return own.element;
}

function missing(title, does) {
  return h("section", { class: "domain" }, h("h2", {}, title), h("p", { class: "note" }, `None of the models at hand ${does}. Drop one onto the start page.`));
}

/** After which distance the notes of the tune come again. */
function again(host, found) {
  const { element, host: chart } = figure("Notes that come again", "The share of notes that begin again so many beats later, in any octave. A peak is a distance at which it pays for a head to look back.");
  host.replaceChildren(h("p", {}, h("strong", {}, found.title), ` (${found.origin}). ${found.about}`),
    h("p", {}, "Two choruses may start at bar 1 and at bar 40. An absolute position says “bar 40”, which training may never have seen with this tune; the distance “eight beats ago” is the same in both. So the Music Transformer learns a vector for each distance between query and key, and adds its product with the query to the score."),
    element);
  lineChart(chart, {
    series: [{ name: "share of notes", points: found.recurrence, dots: true }], x: { label: "beats later" }, y: { label: "share", zero: true },
    describe: `${found.title}: the share of notes that begin again, by the distance in beats.`, height: 260,
  });
}

function compare(host, { text: words, image, music }) {
  const cell = (found, value) => (found ? value(found) : "–");
  const three = (name, a, b, c) => [name, cell(words, a), cell(image, b), cell(music, c)];
  host.replaceChildren(table("Text, picture and music side by side", ["", "text", "picture", "music"], [
    three("a token is", () => "a piece of a word", (x) => `a square of ${x.patch} × ${x.patch} pixels`, () => "a note's begin or end, or time"),
    three("vocabulary", (x) => number(x.vocabulary), () => "none: any pixels", (x) => number(x.vocabulary)),
    three("a token becomes a vector by", () => "a row of a table", (x) => `a matrix, ${x.patch ** 2 * x.channels} × ${x.width}`, () => "a row of a table"),
    three("tokens L", (x) => number(x.vectors.length), (x) => number(x.vectors.length), (x) => number(x.vectors.length)),
    three("width D", (x) => number(x.width), (x) => number(x.width), (x) => number(x.width)),
    three("a block of it", (x) => x.parts.join(", then "), (x) => x.parts.join(", then "), () => "the same, with relative positions (Huang 2018)"),
    three("blocks of this model", (x) => number(x.layers), (x) => number(x.layers), () => "no model here"),
  ], { words: true }));
}

/** Three ways into one block; where one alone stands above, it is drawn strong. */
function drawJoint(host, facts, kind) {
  redrawn(host, () => {
    const width = Math.max(240, host.clientWidth);
    const columns = WAYS.length;
    const [top, height] = [26, 44];
    const svg = s("svg", { width, height: top + height + 30, viewBox: `0 0 ${width} ${top + height + 30}`, role: "img", "aria-label": "Text, picture and music enter the same block." });
    const arrow = (x, y1, y2, own) => svg.append(s("path", { class: own ? "flow stream" : "flow", d: `M${x} ${y1}L${x} ${y2 - 5}` }), s("path", { class: "joint-tip", d: `M${x - 6} ${y2 - 7}L${x + 6} ${y2 - 7}L${x} ${y2}Z` }));
    const names = [facts.text, facts.image, facts.music].map((found) => (found ? `[${found.vectors.length}, ${found.width}]` : ""));
    for (let i = 0; i < columns; i += 1) {
      const x = ((i + (width > 700 ? 0.5 : 0.3)) * width) / columns;
      const own = width > 700 || WAYS[i][0] === kind;
      arrow(x, 0, top, own);
      arrow(x, top + height, top + height + 22, own);
      // Columns side by side have their shapes above the arrows.
      svg.append(s("text", { class: own ? "joint-name" : "tick", x: x + 10, y: 15 }, width > 700 ? "" : names[i]), s("text", { class: "tick", x: x + 10, y: top + height + 16 }, names[i]));
    }
    svg.append(s("rect", { class: "joint-block", x: 1, y: top, width: width - 2, height, rx: 8 }),
      s("text", { class: "joint-name", x: width / 2, y: top + 19, "text-anchor": "middle" }, "Attention, then a network"),
      s("text", { class: "tick", x: width / 2, y: top + 35, "text-anchor": "middle" }, width > 700 ? "tokens are mixed, then each is worked on alone; [L, D] in, [L, D] out" : "[L, D] in, [L, D] out"));
    host.replaceChildren(svg);
  });
}
