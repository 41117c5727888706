// Masks as they are written, such as `causal & window(4) | prefix(2)`: who sees whom, and in words.

import { PythonRandom } from "./random.js";
import { Refusal } from "./refusal.js";

const EXAMPLE = "For example: causal & window(4) | prefix(2)";
const DEEPEST = 16; // brackets

const near = (distance, size) => Math.abs(distance) < size;
const modulo = (value, period) => ((value % period) + period) % period;
const block = (position, size) => Math.floor(position / size);

function nth(number) {
  const ending = ["th", "st", "nd", "rd"][number % 10] ?? "th";
  return `${number}${[11, 12, 13].includes(number % 100) ? "th" : ending}`;
}

const far = ({ size, dilation }) => (size - 1) * dilation;

/**
 * The words: `settings` in the order in which they are written, with their least and, where it may be
 * left out, their usual value; `sees` of settings and the positions of a query and a key; `says` the
 * end of a sentence; `wrong` what settings do not go together.
 */
const KINDS = {
  everything: { settings: {}, sees: () => true, says: () => "every key" },
  causal: { settings: {}, sees: (_, query, key) => key <= query, says: () => "keys at or before its own position" },
  window: {
    settings: { size: { least: 1 } }, sees: ({ size }, query, key) => near(key - query, size),
    says: ({ size }) => `keys less than ${size} positions away`,
  },
  prefix: { settings: { length: { least: 0 } }, sees: ({ length }, _, key) => key < length, says: ({ length }) => `the first ${length} positions` },
  segment: { settings: {}, sees: (_, __, ___, same) => same, says: () => "keys of its own segment" },
  dilated: {
    settings: { size: { least: 1 }, dilation: { least: 1, usual: 2 } },
    sees: (own, query, key) => Math.abs(key - query) <= far(own) && (key - query) % own.dilation === 0,
    says: (own) => (own.dilation === 1 ? `keys less than ${own.size} positions away` : `every ${nth(own.dilation)} key up to ${far(own)} positions away`),
  },
  strided: {
    settings: { stride: { least: 1 } }, sees: ({ stride }, query, key) => near(key - query, stride) || (key - query) % stride === 0,
    says: ({ stride }) => `keys less than ${stride} positions away and every ${nth(stride)} key before and after`,
  },
  fixed: {
    settings: { stride: { least: 1 }, summary: { least: 1, usual: 8 } },
    wrong: ({ stride, summary }) => summary > stride && `summary ${summary} exceeds the block of stride ${stride}`,
    sees: ({ stride, summary }, query, key) => block(key, stride) === block(query, stride) || modulo(key, stride) >= stride - summary,
    says: ({ stride, summary }) => `keys of its own block of ${stride} and the last ${summary} of every block`,
  },
  global: {
    settings: { count: { least: 1, usual: 1 } }, sees: ({ count }, query, key) => key < count || query < count,
    says: ({ count }) => `the first ${count} positions, or every key if it is one of them`,
  },
  random: {
    settings: { size: { least: 1 }, count: { least: 1 }, length: { least: 1 }, seed: { least: 0, usual: null } },
    wrong: ({ size, count, length, seed }) => {
      const blocks = Math.ceil(length / size);
      if (seed === null) return "random blocks need a seed: without one the model would see other keys each time it is loaded";
      return count > blocks && `${count} blocks cannot be drawn: ${length} positions make ${blocks} blocks of ${size}`;
    },
    sees: ({ size, drawn }, query, key) => drawn[modulo(block(query, size), drawn.length)].includes(block(key, size)),
    says: ({ size, count, length, seed }) => `${count} of the blocks of ${size} among the first ${length} positions, drawn with seed ${seed}`,
  },
  window_2d: {
    settings: { columns: { least: 1 }, height: { least: 1 }, width: { least: 1 }, first: { least: 0, usual: 0 } },
    wrong: ({ columns, width }) => width > columns && `a window of width ${width} is wider than a row of ${columns} columns`,
    sees: ({ columns, height, width, first }, query, key) => {
      const [at, to] = [query - first, key - first];
      return at < 0 || to < 0 || (near(block(to, columns) - block(at, columns), height) && near(modulo(to, columns) - modulo(at, columns), width));
    },
    says: ({ columns, height, width }) => `keys less than ${height} rows and ${width} columns away in rows of ${columns}`,
  },
};

const JOINED = {
  all_of: { sees: (parts, ...pair) => parts.every((part) => sees(part, ...pair)), between: ", that are also " },
  any_of: { sees: (parts, ...pair) => parts.some((part) => sees(part, ...pair)), between: ", and also " },
};

/**
 * Whether a query sees a key.
 * @param mask {kind, its settings} or {kind: "all_of" or "any_of", parts}
 * @param query its position, and `key` that of the key
 * @param same whether both are of one segment
 */
export function sees(mask, query, key, same = true) {
  return JOINED[mask.kind] ? JOINED[mask.kind].sees(mask.parts, query, key, same) : KINDS[mask.kind].sees(mask, query, key, same);
}

/** What a query sees, as the end of a sentence. */
export function describeMask(mask) {
  const joined = JOINED[mask.kind];
  if (!joined) return KINDS[mask.kind].says(mask);
  // A part that is itself a combination gets brackets, so that the sentence has one reading.
  return mask.parts.map(describeMask).map((words) => (words.includes(" also ") ? `(${words})` : words)).join(joined.between);
}

/**
 * The mask of an expression; an empty one is every key.
 * @throws Refusal that points at the mistake
 */
export async function parseMask(text) {
  if (!text.trim()) return { kind: "everything" };
  const tokens = [...text.matchAll(/\s*(?:(?<word>[A-Za-z_]\w*)|(?<number>\d{1,6})|(?<sign>[&|(),])|(?<bad>\S))/g)].map(({ groups, index, 0: all }) => {
    const [kind, found] = Object.entries(groups).find(([, each]) => each !== undefined);
    return { kind, text: found, at: index + all.length - found.length };
  });
  tokens.push({ kind: "end", text: "the end", at: text.length });
  const where = () => `${text.slice(0, tokens[0].at)}▸${text.slice(tokens[0].at)}`;
  const fail = (reason) => {
    throw new Refusal({ what: `The mask cannot be understood at '${tokens[0].text.slice(0, 20)}': ${reason}`, where: where(), remedy: EXAMPLE });
  };
  const take = (sign) => {
    const there = tokens[0].kind === "sign" && tokens[0].text === sign;
    if (there) tokens.shift();
    return there;
  };
  const joined = (sign, kind, next) => (depth) => {
    const parts = [next(depth)];
    while (take(sign)) parts.push(next(depth));
    return parts.length === 1 ? parts[0] : { kind, parts };
  };
  const both = joined("&", "all_of", one);
  const either = joined("|", "any_of", both);
  function one(depth) {
    if (depth > DEEPEST) fail("brackets are nested too deeply");
    if (take("(")) {
      const inner = either(depth + 1);
      if (!take(")")) fail("')' is expected");
      return inner;
    }
    const { kind, text: word } = tokens[0];
    if (kind !== "word") fail("a mask is expected");
    if (!KINDS[word]) throw new Refusal({ what: `No mask is called '${word}'`, where: where(), remedy: `Known: ${Object.keys(KINDS).sort().join(", ")}` });
    tokens.shift();
    return withSettings(word, numbers(word));
  }
  function numbers(word) {
    const names = Object.keys(KINDS[word].settings);
    const needed = `${word} needs ${names.join(", ") || "no numbers"}`;
    const values = [];
    if (take("(")) {
      while (!take(")")) {
        if (values.length && !take(",")) fail("',' is expected");
        if (tokens[0].kind !== "number") fail(`a number is expected: ${needed}`);
        values.push(Number(tokens.shift().text));
      }
    }
    if (values.length > names.length) fail(needed);
    return values;
  }
  const mask = either(0);
  if (tokens[0].kind !== "end") fail("'&' or '|' is expected");
  await draw(mask);
  return mask;
}

/** A mask of a kind with the numbers that were written. */
function withSettings(kind, values) {
  const { settings, wrong } = KINDS[kind];
  const names = Object.keys(settings);
  const refuse = (what) => {
    throw new Refusal({ what, where: `${kind}(${names.join(", ")})` });
  };
  const mistakes = names.flatMap((name, i) => {
    const { least, usual } = settings[name];
    if (values[i] === undefined && usual === undefined) return [`Setting '${name}' is required and missing`];
    return values[i] < least ? [`Setting '${name}' = ${values[i]}: must be greater than ${least - 1}`] : [];
  });
  if (mistakes.length) refuse(mistakes.join("; "));
  const mask = { kind, ...Object.fromEntries(names.map((name, i) => [name, values[i] ?? settings[name].usual])) };
  const mistake = wrong?.(mask);
  if (mistake) refuse(mistake);
  return mask;
}

/** Draw the blocks of random masks, each block of queries by itself. */
async function draw(mask) {
  for (const part of mask.parts ?? []) await draw(part);
  if (mask.kind !== "random") return;
  const blocks = Array.from({ length: Math.ceil(mask.length / mask.size) }, (_, i) => i);
  const sources = await Promise.all(blocks.map((each) => PythonRandom.ofText(`${mask.seed} ${each}`)));
  if (sources.includes(undefined)) throw new Refusal({ what: "This browser draws no random blocks here", remedy: "Open the page from a disk or over https" });
  mask.drawn = sources.map((source) => source.sample(blocks, mask.count));
}
