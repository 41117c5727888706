// Notes in time: a bar for each note, low ones below; what a chosen event does is marked.

import { isStill, s } from "../dom.js";
import { redrawn, series } from "./colours.js";

const ROOM = 4;
const NAMES = 30; // pixels at the left, for the names of pitches

/** The name of a pitch, with its octave: 60 is C4. Without a key, each black key has the name that fewest accidentals ask for. */
export const pitchName = (pitch) => ["C", "C♯", "D", "E♭", "E", "F", "F♯", "G", "G♯", "A", "B♭", "B"][pitch % 12] + (Math.floor(pitch / 12) - 1);

/**
 * Draw a piano roll.
 * @param roll {notes: [[start, pitch, end]], chosen: {kind, value, time} or null, choose: called with the number of a
 *   note, describe, length: number of steps, by default up to the last end; range: [lowest, highest] pitch,
 *   by default those of the notes; from: step at which a model begins to
 *   write; height: in pixels; voices: for each note the number of its voice, which has a colour, with the names of some pitches
 *   at the left; bar: steps after which there is a line; marked: number of a note with a frame; shares: for each note how much it glows}
 * @returns a function that moves the line of the player to a step, with the notes up to it, or hides it at null
 */
export function pianoRoll(host, roll) {
  let place = null;
  let head = null;
  const at = { x: null, bars: [] };
  const move = (step) => {
    place = step;
    if (!head) return;
    head.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) head.setAttribute("transform", `translate(${at.x(step)} 0)`);
    at.bars.forEach((bar, i) => bar.classList.toggle("to-come", step !== null && roll.notes[i][0] > step && !isStill()));
  };
  redrawn(host, () => {
    head = draw(host, roll, at);
    move(place);
  });
  return move;
}

function draw(host, { notes, chosen, choose, describe, length, range, from, marked, shares, voices, bar: measure, height = 96 }, at) {
  const width = Math.max(200, host.clientWidth);
  const last = length ?? Math.max(...notes.map((note) => note[2]));
  const most = shares ? Math.max(...shares, 1e-12) : 1;
  const pitches = notes.map((note) => note[1]);
  const [low, high] = range ?? [Math.min(...pitches), Math.max(...pitches)];
  const tall = (height - 2 * ROOM) / (high - low + 1);
  const left = voices ? NAMES : ROOM;
  const x = (step) => left + (step / last) * (width - left - ROOM);
  at.x = x;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe });
  svg.append(s("rect", { class: "plate", x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 6 }));
  if (chosen?.kind === "time_shift") {
    svg.append(s("rect", { class: "roll-time", x: x(chosen.time), y: 1, width: Math.max(2, x(chosen.time + chosen.value) - x(chosen.time)), height: height - 2 }));
  }
  if (voices) {
    for (let pitch = 12 * Math.ceil(low / 12); pitch <= high; pitch += 12) {
      const y = ROOM + (high - pitch + 0.5) * tall;
      svg.append(s("text", { class: "tick", x: ROOM + 2, y: y + 4 }, pitchName(pitch)), s("line", { class: "roll-grid", x1: left, x2: width - ROOM, y1: y, y2: y }));
    }
  }
  for (let step = measure; step < last; step += measure) svg.append(s("line", { class: "roll-grid", x1: x(step), x2: x(step), y1: 1, y2: height - 1 }));
  notes.forEach(([start, pitch, end], i) => {
    const on = chosen && chosen.value === pitch && ((chosen.kind === "note_on" && chosen.time === start) || (chosen.kind === "note_off" && chosen.time === end));
    const bar = s("rect", { class: on ? "roll-note on" : "roll-note", x: x(start) + 0.5, y: ROOM + (high - pitch) * tall, width: Math.max(2, x(end) - x(start) - 1), height: Math.max(2, tall - 0.5), rx: 1.5 });
    bar.append(s("title", {}, pitchName(pitch)));
    if (voices) bar.style.fill = series(voices[i]);
    if (shares) bar.style.fill = `color-mix(in srgb, var(--glow) ${Math.round((100 * shares[i]) / most)}%, var(--line))`;
    if (marked === i) bar.classList.add("marked");
    bar.addEventListener("click", () => choose(i));
    at.bars[i] = bar;
    svg.append(bar);
  });
  if (chosen && chosen.kind !== "time_shift") {
    svg.append(s("line", { class: "roll-mark", x1: x(chosen.time), x2: x(chosen.time), y1: 1, y2: height - 1 }));
  }
  if (from !== undefined && from < last) {
    svg.append(s("line", { class: "roll-from", x1: x(from), x2: x(from), y1: 1, y2: height - 1 }));
  }
  const head = s("line", { class: "roll-head", x1: 0, x2: 0, y1: 1, y2: height - 1, visibility: "hidden" });
  svg.append(head);
  host.replaceChildren(svg);
  return head;
}
