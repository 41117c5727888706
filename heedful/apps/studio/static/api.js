// The server's answers, and what is shown when there is none.

import { site } from "./address.js";
import { h } from "./dom.js";
import { answerHere } from "./recorded.js";

/** What went wrong, where, and what to do. */
export class StudioError extends Error {
  constructor({ what, where = null, remedy = null, away = false }) {
    super(what);
    this.away = away;
    this.where = where;
    this.remedy = remedy;
  }
}

const near = new WeakMap(); // what is said of a signal's answer that is the nearest there is

/** Ask a page's call; give a signal to be able to change one's mind. */
export async function call(page, name, body = {}, signal = undefined) {
  if (site) {
    try {
      return await answerHere(page, name, body, signal);
    } catch (error) {
      if (error.instead && signal) {
        near.set(signal, new StudioError(error));
        return error.instead;
      }
      throw error.what ? new StudioError(error) : error;
    }
  }
  return answer(`/api/${page}/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

/** The studio's pages, models and runs. */
export const studioFacts = async () => site?.facts ?? answer("/api/studio", {});

async function answer(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new StudioError({
      what: "The studio does not answer",
      where: location.host,
      remedy: "Check that heedful studio still runs in its terminal. This page goes on by itself when it is back",
      away: true,
    });
  }
  const content = await response.json().catch(() => null);
  if (response.ok && content !== null) return content;
  throw new StudioError(content?.what ? content : { what: `The studio answered ${response.status}` });
}

/** A box that says what went wrong. */
export function problem(error) {
  const known = error instanceof StudioError;
  if (!known) console.error(error);
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, known ? `${error.message}.` : `This page failed: ${error.message}.`)),
    known && error.where ? h("p", {}, h("code", {}, error.where)) : null,
    known && error.remedy ? h("p", {}, `${error.remedy}.`) : null);
}

const AGAIN = 2000; // milliseconds between two tries while the server is away
const SOON = 25; // milliseconds: one question for what a slider says in a moment
const PATIENCE = 400; // milliseconds after which a region says that it waits

const awaited = new WeakMap(); // regions, and the questions whose answers each waits for: some show several

/** Mark a region as busy for as long as it waits for an answer. */
function waits(region, question, is) {
  const questions = awaited.get(region) ?? new Set();
  awaited.set(region, questions);
  if (is) questions.add(question);
  else questions.delete(question);
  region.setAttribute("aria-busy", String(questions.size > 0));
}

/**
 * Keeps a part of a page equal to an answer: asks anew when it is told to, drops older questions,
 * and shows errors above the last good picture.
 * @param region where errors are shown, and what is marked as busy
 * @param ask makes a promise, given a signal
 * @param show draws what came
 */
export function live(region, ask, show) {
  let waiting = null;
  let asked = null;
  let box = null;
  let patience = null;

  /** Ask again until the server is back. */
  function retry() {
    clearTimeout(waiting);
    waiting = setTimeout(run, AGAIN);
  }

  async function run() {
    waiting = null;
    asked?.abort();
    const own = new AbortController();
    asked = own;
    const tell = (error) => {
      const next = problem(error);
      if (box) box.replaceWith(next);
      else region.prepend(next);
      box = next;
    };
    try {
      const found = await ask(own.signal);
      if (own.signal.aborted) return;
      if (near.has(own.signal)) {
        tell(near.get(own.signal));
      } else {
        box?.remove();
        box = null;
      }
      await show(found);
      performance.mark("drawn"); // the first is the page's first picture, see tools/site_speed.py
    } catch (error) {
      if (own.signal.aborted || error.name === "AbortError") return;
      tell(error);
      if (error.away) retry();
    }
    if (asked !== own || waiting !== null) return;
    waits(region, run, false);
    region.classList.remove("slow");
    clearTimeout(patience);
    patience = null;
  }

  return () => {
    waits(region, run, true);
    patience ??= setTimeout(() => region.classList.add("slow"), PATIENCE);
    clearTimeout(waiting);
    waiting = setTimeout(run, SOON);
  };
}
