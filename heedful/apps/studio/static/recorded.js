// The answers of an exported site: those that were recorded, and those of its models, which run in
// the page. Both lie in scripts, since a page from file:// may read nothing else.

import { site } from "./address.js";
import { engine } from "./engine_thread.js";

export const AT_HOME = "For every choice use the studio on your machine: pip install 'heedful[studio]', then heedful studio";

const scripts = new Map();

/** Load a script of the site once; false where there is none. */
function script(address) {
  if (!scripts.has(address)) {
    scripts.set(address, new Promise((resolve) => {
      const element = document.createElement("script");
      element.src = address;
      element.addEventListener("load", () => resolve(true));
      element.addEventListener("error", () => resolve(false));
      document.head.append(element);
    }));
  }
  return scripts.get(address);
}

/** Data whose names are in order at every depth, which makes equal data equal text. */
function inOrder(value) {
  if (Array.isArray(value)) return value.map(inOrder);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, inOrder(value[name])]));
}

/** A request as its answer is filed: every setting, defaults too. */
const keyOf = (defaults, body) => JSON.stringify(inOrder({ ...defaults, ...body }));

const answers = new Map();

/** The recorded answers of a page: the places of calls and requests, and the answers by place. */
function recorded(page) {
  const read = async () => {
    // A page may ask for answers of another, which a site of a few pages lacks.
    const there = site.facts.pages.some((each) => each.name === page) && await script(`answers/${page}.js`);
    return there ? JSON.parse(await new Response(unpacked(site.answers[page])).text()) : { keys: {}, values: [] };
  };
  if (!answers.has(page)) answers.set(page, read());
  return answers.get(page);
}

/** The stream of bytes that a script holds, compressed and in base64. */
function unpacked(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  // Uint8Array.from would call a function for each of 8 million letters: 560 ms instead of 18.
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  return new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
}

/**
 * Answer a call.
 * @throws {what, where, remedy, instead: the answer to the nearest recorded request, if there is one}
 */
export async function answerHere(page, name, body, signal) {
  const stop = () => {
    if (signal?.aborted) throw new DOMException("stopped", "AbortError");
  };
  const { keys, values } = await recorded(page);
  stop();
  const known = keys[name] ?? {};
  const key = keyOf(site.defaults[page]?.[name] ?? {}, body);
  if (key in known) {
    const answer = structuredClone(values[known[key]]);
    if (answer.refused) throw answer.refused; // as the studio refuses this request
    return answer;
  }
  const computed = await computeHere(page, name, keys.record ? { ...body, logs: logsOf(keys.record, values) } : body, signal);
  stop();
  if (computed !== undefined) return computed;
  const near = nearest(Object.keys(known).filter((each) => !values[known[each]].refused), key);
  throw {
    what: near ? "This choice is not recorded; the picture shows the nearest that is" : "This answer is not recorded in the exported course",
    where: `${page}/${name}`, remedy: AT_HOME,
    instead: near && structuredClone(values[known[near]]),
  };
}

/** The recorded logs of runs by name, which the engine joins. */
const logsOf = (records, values) => Object.fromEntries(Object.entries(records).map(([key, index]) => [JSON.parse(key).run, values[index]]));

const models = new Map();

async function computeHere(page, name, body, signal) {
  // Numbers that are typed, and formulas; of the builder the model is a shape.
  if (!body.model || typeof body.model !== "string") return (await engine()).ask(page, name, body, signal);
  if (!site.models.includes(body.model)) return undefined;
  if (!models.has(body.model)) models.set(body.model, giveModel(body.model));
  return (await models.get(body.model)) ? (await engine()).ask(page, name, body, signal) : undefined;
}

/** Give a model to the engine; false where the site lacks its script. */
async function giveModel(name) {
  if (!await script(`models/${name}.js`)) return false;
  await (await engine()).load(name, await unpack(site.files[name]));
  delete site.files[name]; // the engine has its own copy
  return true;
}

/** The files of a model: parsed JSON, and the bytes of its weights. */
async function unpack(files) {
  const name = "model.safetensors";
  const texts = JSON.parse(await new Response(unpacked(files.texts)).text());
  return { ...texts, [name]: await new Response(unpacked(files[name])).arrayBuffer() };
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Settings with those of a shape beside the others. */
function settings(key) {
  const { model, ...others } = JSON.parse(key);
  return typeof model === "object" ? { ...others, ...model } : { ...others, model };
}

/** The recorded request that differs in the fewest settings, and in those by least. */
function nearest(keys, wanted) {
  const own = settings(wanted);
  const far = (key) => {
    const other = settings(key);
    if (!same(other.model, own.model) || !same(other.text, own.text)) return Infinity;
    return Object.keys({ ...other, ...own }).reduce((sum, name) => {
      const [a, b] = [own[name], other[name]];
      if (same(a, b)) return sum;
      if (typeof a !== "number" || typeof b !== "number") return sum + 1;
      return sum + 1 - 1 / (1 + Math.abs(a - b));
    }, 0);
  };
  const [best, distance] = keys.map((key) => [key, far(key)]).reduce((a, b) => (b[1] < a[1] ? b : a), [null, Infinity]);
  return distance < 2 ? best : null;
}
