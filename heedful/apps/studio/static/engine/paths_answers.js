// Answers of the page Paths: costs of layers by formula, and the connections of small networks.

const LENGTHS = Array.from({ length: 10 }, (_, power) => 2 ** (power + 1));
const DRAWN = 12; // tokens of a drawn network that takes several levels

const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
const least = (test) => {
  let count = 0;
  while (!test(count)) count += 1;
  return count;
};

/** Pairs of n tokens at a distance below the window, in both directions. */
function windowPairs(n, window) {
  const reach = Math.min(window - 1, n - 1);
  return n + 2 * n * reach - reach * (reach + 1);
}

const convolution = {
  operations: (n, { width, kernel }) => kernel * n * width ** 2,
  path: (n, { kernel }) => Math.ceil((n - 1) / (kernel - 1)),
  inputs: (token, level, { kernel }) => range(0, kernel).map((place) => token - place).filter((before) => before >= 0),
};

/** Of each kind of layers: multiply-adds of one, the longest path, and what a token of a level reads. */
const KINDS = {
  attention: {
    operations: (n, { width }) => n * n * width,
    path: (n) => Math.min(n - 1, 1),
    inputs: (token, level, { length }) => (token === length - 1 ? range(0, length) : []), // to the last token alone: all would be n²
  },
  recurrent: { operations: (n, { width }) => n * width ** 2, path: (n) => n - 1 },
  window: {
    operations: (n, { width, window }) => windowPairs(n, window) * width,
    path: (n, { window }) => Math.ceil((n - 1) / (window - 1)),
    inputs: (token, level, { window, length }) => range(Math.max(0, token - window + 1), Math.min(length, token + window)),
  },
  convolution,
  dilated: {
    operations: convolution.operations,
    path: (n, { kernel }) => least((depth) => kernel ** depth >= n),
    inputs: (token, level, { kernel }) => range(0, kernel).map((place) => token - kernel ** level * place).filter((before) => before >= 0),
  },
};

/** Costs of every kind of layer at many lengths and at the given one, and networks to draw. */
export function steps({ length = 64, width = 64, num_layers = 2, window = 4, kernel = 3 }) {
  const settings = { width, num_layers, window, kernel };
  const costs = (lengths) => Object.entries(KINDS).map(([kind, { operations, path }]) => ({
    kind,
    lengths,
    operations: lengths.map((n) => num_layers * operations(n, settings)),
    // Layers overlap: each further recurrent layer is one token behind the one below it.
    steps: lengths.map((n) => (kind === "recurrent" ? n + num_layers - 1 : num_layers)),
    path: lengths.map((n) => path(n, settings)),
  }));
  return {
    costs: costs([...new Set([...LENGTHS, length])].sort((a, b) => a - b)),
    here: costs([length]),
    networks: Object.keys(KINDS).map((kind) => network(kind, length, settings)),
  };
}

/** Connections of a network that connects its first and last token, and a shortest path. */
function network(kind, asked, settings) {
  const length = ["attention", "recurrent"].includes(kind) ? asked : Math.min(asked, DRAWN);
  const { path, inputs } = KINDS[kind];
  if (kind === "recurrent") {
    const nodes = range(0, length).map((token) => [0, token]);
    return { kind, levels: 1, length, links: nodes.slice(1).map((node, i) => [nodes[i], node]), route: nodes };
  }
  const depth = path(length, settings);
  const read = (level, token) => inputs(token, level, { ...settings, length });
  const links = range(0, depth).flatMap((level) => range(0, length).flatMap((token) => read(level, token).map((before) => [[level, before], [level + 1, token]])));
  const reaching = [new Set([0])]; // the tokens of each level that the first one reaches
  for (const level of range(0, depth)) reaching.push(new Set(range(0, length).filter((token) => read(level, token).some((before) => reaching[level].has(before)))));
  // From the end with the leftmost inputs, so that long connections are at the top.
  const route = [[depth, length - 1]];
  for (let level = depth - 1; level >= 0; level -= 1) {
    route.unshift([level, Math.min(...read(level, route[0][1]).filter((before) => reaching[level].has(before)))]);
  }
  return { kind, levels: depth + 1, length, links, route };
}
