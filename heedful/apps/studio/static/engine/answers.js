// Answers to a page's calls by a model in the browser, in the form of the studio's own.

import { influence, neurons, overview, show } from "./attention_answers.js";
import { flow, stream } from "./block_answers.js";
import { build } from "./builder_answers.js";
import { contexts } from "./contexts_answers.js";
import { beam, greedy, step } from "./decoding_answers.js";
import { labels } from "./labels_answers.js";
import { lost } from "./lost_words.js";
import { draw } from "./masks_answers.js";
import { passOf } from "./passes.js";
import { steps } from "./paths_answers.js";
import { beyond, show as positions, shuffled } from "./positions_answers.js";
import { measure } from "./reach_answers.js";
import { complete, ofRecords, weights } from "./records_answers.js";
import { compare as compareRuns, curves, history, samples, states, worst } from "./runs_answers.js";
import { compare, sweep } from "./scale_answers.js";
import { curve } from "./schedule_answers.js";
import { attend, follow } from "./steps_answers.js";
import { walk } from "./tour_answers.js";
import { alternatives, text } from "./translate_answers.js";
import { rowsOf } from "./uploads.js";
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
  attention: { influence, labels, neurons, overview, show },
  block: { contexts, flow, stream },
  decoding: { beam, greedy, step },
  everywhere: { complete, image: entering, text: tokens, weights },
  image: { erase, look },
  steps: { follow },
  tour: { walk },
  translate: { again, alternatives, inside, lost, text, why },
};
const OF_TRANSLATORS = [alternatives, lost, text];
const OF_IMAGES = [entering, erase, look];
const OF_RECORDS = [complete, weights];
/** What needs no model. */
const BARE = {
  builder: { build },
  masks: { draw },
  paths: { measure, steps },
  positions: { beyond, show: positions, shuffled },
  runs: { compare: compareRuns, curves, history, samples, states, worst },
  scale: { compare, sweep },
  schedule: { curve },
  steps: { attend },
};

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
  if (!call || (OF_TRANSLATORS.includes(call) && !model.translates)) return undefined;
  if (OF_IMAGES.includes(call) !== model instanceof VisionModel || OF_RECORDS.includes(call) !== ofRecords(model)) return undefined;
  if (!OF_IMAGES.includes(call) || !body.upload) return call(model, body);
  const drawing = await rowsOf(model, body.upload);
  return drawing && call(model, { ...body, drawing });
}
