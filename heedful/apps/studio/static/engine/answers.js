// Answers to a page's calls by a model in the browser, in the form of the studio's own.

import { influence, neurons, overview, show } from "./attention_answers.js";
import { flow, stream } from "./block_answers.js";
import { build } from "./builder_answers.js";
import { beam, greedy, step } from "./decoding_answers.js";
import { passOf } from "./passes.js";
import { steps } from "./paths_answers.js";
import { attend, follow } from "./steps_answers.js";
import { walk } from "./tour_answers.js";
import { alternatives, text } from "./translate_answers.js";
import { entering, erase, look, VisionModel, vectorsOf } from "./vision.js";
import { again, inside, why } from "./why_answers.js";

/** The tokens of a text, and the vectors that enter the first block. */
function tokens(model, { text: written }) {
  // Only what is read is shown, so any translation will do.
  const { reading, capture } = passOf(model, { text: written, ...(model.translates ? { given: "typed", second: "." } : {}) });
  const stack = reading.encoder ? "encoder" : "decoder";
  const { pieces, ids, special } = reading[stack];
  return { pieces, ids, special, vocabulary: model.source.size, ...vectorsOf(capture, model.stacks[stack]) };
}

const PAGES = {
  attention: { influence, neurons, overview, show },
  block: { flow, stream },
  decoding: { beam, greedy, step },
  everywhere: { image: entering, text: tokens },
  image: { erase, look },
  steps: { follow },
  tour: { walk },
  translate: { again, alternatives, inside, text, why },
};
const OF_TRANSLATORS = [alternatives, text];
const OF_IMAGES = [entering, erase, look];
/** What needs no model. */
const BARE = { builder: { build }, paths: { steps }, steps: { attend } };

/**
 * Answer a call of a page.
 * @param page name of the page
 * @param name name of the call
 * @param body settings of the request; unset ones have the studio's defaults
 * @param model result of `loadModel`; undefined for a call that names none
 * @returns the JSON data that the studio gives; undefined for a call that is not computed here
 * @throws Refusal, with the fields of a `StudioError`, for a request that no model can answer
 */
export async function answer(page, name, body, model) {
  if (!model) return BARE[page]?.[name]?.(body);
  const call = PAGES[page]?.[name];
  if (!call || (OF_TRANSLATORS.includes(call) && !model.translates) || OF_IMAGES.includes(call) !== model instanceof VisionModel) return undefined;
  return call(model, body);
}
