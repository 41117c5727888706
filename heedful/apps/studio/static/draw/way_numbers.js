// The numbers of the tour's drawing: a table for each part, open or folded, as it is seen.

const vectors = (title, found, rows) => ({
  title, columns: ["vector", "channel", ...found.pieces],
  rows: rows.filter(([, values]) => values).flatMap(([name, values]) => values[0].map((_, channel) => [name, channel + 1, ...values.map((row) => row[channel])])),
});

const folded = (title, found, values) => vectors(`${title}, folded to a strip`, found, [[title, values]]);

/** A matrix of queries and keys; of a folded one only the followed row is seen. */
const matrix = (title, found, { open, query }, values) => ({
  title, columns: ["query", ...found.pieces],
  rows: values.map((row, i) => [found.pieces[i], ...row]).filter((_, i) => open || i === query),
});

const PARTS = {
  text: (found) => ({ title: "Text", columns: ["text"], rows: [[found.text]] }),
  pieces: (found, { open }) => ({
    title: "Pieces", columns: open ? ["piece", "number"] : ["piece"],
    rows: found.pieces.map((piece, i) => (open ? [piece, found.ids[i]] : [piece])),
  }),
  embedding: (found, { open }) => (open
    ? vectors("Embedding + position", found, [["token", found.tokens], ["+ position", found.positions], ["= input", found.embedding]])
    : folded("Embedding", found, found.embedding)),
  blocks: (found, { open }) => (open
    ? vectors("After each block", found, found.after.map((values, i) => [`block ${i + 1}`, values]))
    : folded(`Block ${found.layer + 1}`, found, found.attention_output)),
  head: (found, { open }) => (open
    ? vectors(`Head ${found.head + 1}`, found, [["query", found.query], ["key", found.key], ["value", found.value]])
    : folded(`Head ${found.head + 1}`, found, found.query)),
  scores: (found, view) => matrix("Scores", found, view, found.scores),
  weights: (found, view) => matrix("Shares", found, view, found.weights),
  values: (found, { open, query }) => (open ? [
    vectors("Values", found, [["value", found.value], ["all heads", found.attention_output]]),
    { title: "× share", columns: found.pieces, rows: [found.weights[query]] },
    { title: `Mixed value of ${found.pieces[query]}`, columns: ["channel", "value"], rows: found.context[query].map((value, channel) => [channel + 1, value]) },
  ] : folded("Values", found, found.context)),
  feedforward: (found, { open }) => (open ? [
    vectors("Feed-forward", found, [["neurons", found.inner], ["added", found.feedforward_output], ["after the block", found.output]]),
    ...(found.active ? [{ title: "Share of active neurons", columns: found.pieces, rows: [found.active] }] : []),
  ] : folded("Feed-forward", found, found.feedforward_output)),
  memory: (found) => vectors("The encoder's output", found, [["after the last block", found.after.at(-1)]]),
  back: (found) => ({ title: "Attention to what is written", columns: ["piece", "weight"], rows: found.read.map((piece, i) => [piece, found.cross.back?.[i] ?? ""]) }),
  source: (found) => ({ title: "Attention to the source", columns: ["piece", "weight"], rows: found.pieces.map((piece, i) => [piece, found.cross.weights[i]]) }),
  stream: (found) => ({ title: "The decoder's newest column", columns: ["channel", ...Object.keys(found.cross.stream)], rows: found.cross.stream.output.map((_, i) => [i + 1, ...Object.values(found.cross.stream).map((vector) => vector[i])]) }),
  writing: (found, { stop }) => (CANDIDATES[stop] && !found.ended ? [{ title: stop, columns: ["piece", CANDIDATES[stop]], rows: found.candidates.map((each) => [each.piece, each[CANDIDATES[stop]]]) }] : []),
};

const CANDIDATES = { Logits: "logit", "Next word": "probability" };

/**
 * Tables of the parts that are drawn.
 * @param names the parts, from top to bottom
 * @param view {stop: name of the stop, open: name of the part that is open, query: column that is followed}
 */
export const wayNumbers = (found, names, { stop, open, query }) => names.flatMap((name) => PARTS[name](found, { stop, query, open: name === open }));
