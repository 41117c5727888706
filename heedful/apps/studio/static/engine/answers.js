// Answers to a page's calls by a model in the browser, in the form of the studio's own.

import { neurons, overview, show } from "./attention_answers.js";
import { flow, stream } from "./block_answers.js";
import { beam, greedy, step } from "./decoding_answers.js";
import { walk } from "./tour_answers.js";
import { alternatives, text } from "./translate_answers.js";
import { again, inside, why } from "./why_answers.js";

const PAGES = {
  attention: { neurons, overview, show },
  block: { flow, stream },
  decoding: { beam, greedy, step },
  tour: { walk },
  translate: { again, alternatives, inside, text, why },
};
const OF_TRANSLATORS = [alternatives, text];

/**
 * Answer a call of a page.
 * @param page name of the page
 * @param name name of the call
 * @param body settings of the request; unset ones have the studio's defaults
 * @param model result of `loadModel`
 * @returns the JSON data that the studio gives; undefined for a call that is not computed here
 * @throws Refusal, with the fields of a `StudioError`, for a request that no model can answer
 */
export async function answer(page, name, body, model) {
  const call = PAGES[page]?.[name];
  if (!call || (OF_TRANSLATORS.includes(call) && !model.translates)) return undefined;
  return call(model, body);
}
