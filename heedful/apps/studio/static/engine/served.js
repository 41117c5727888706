// Models by name and their answers, for a page or for the thread of one.

import { answer } from "./answers.js";
import { loadModel } from "./model.js";

/** The two calls, `load` and `ask`, with models of their own. */
export function served() {
  const models = new Map();
  return {
    load: (name, files) => void models.set(name, loadModel(files)),
    ask: (page, call, body) => answer(page, call, body, models.get(body.model)),
  };
}
