// The distribution of a draw, and the random number that the package draws by.

const COLDEST = 1e-100; // temperature below which a draw is greedy
const MASK = (1n << 64n) - 1n;
const GOLDEN = 0x9e3779b97f4a7c15n; // 2^64 over the golden ratio, odd (Steele 2014)

/**
 * Probabilities by which tokens are drawn, and the order in which they are summed up.
 * @param scores log-probabilities [V]
 * @param settings temperature, top_k, top_p, min_p
 */
export function distribution(scores, { temperature = 1, top_k: topK = 0, top_p: topP = 1, min_p: minP = 0 }) {
  let order = Array.from(scores, (_, id) => id);
  const probabilities = new Float64Array(scores.length);
  const sorted = topK > 0 || topP < 1 || temperature < COLDEST;
  if (sorted) order.sort((a, b) => scores[b] - scores[a]);
  if (topK > 0) order = order.slice(0, topK);
  if (temperature < COLDEST) {
    [order] = [order.slice(0, 1)];
    probabilities[order[0]] = 1;
    return { order, probabilities };
  }
  const most = order.reduce((best, id) => Math.max(best, scores[id]), -Infinity);
  let weights = order.map((id) => Math.exp((scores[id] - most) / temperature));
  const total = weights.reduce((sum, each) => sum + each, 0);
  weights = weights.map((each) => each / total);
  const largest = 1 / total; // the likeliest token has a weight of exp 0
  let before = 0;
  weights = weights.map((each) => {
    // The mass before a token: the one that reaches top_p is kept (Holtzman 2020).
    const keeps = each >= minP * largest && before < topP;
    before += each;
    return keeps ? each : 0;
  });
  const kept = weights.reduce((sum, each) => sum + each, 0);
  order.forEach((id, i) => {
    probabilities[id] = weights[i] / kept;
  });
  return { order, probabilities };
}

/** The token at a point in [0, 1) of the summed probabilities: never one of probability 0. */
export function draw({ order, probabilities }, point) {
  let sum = 0;
  let last = order[0];
  for (const id of order) {
    sum += probabilities[id];
    if (probabilities[id] > 0) last = id;
    if (sum > point) return id;
  }
  return last; // sums end a rounding error below 1
}

/** Uniform number in [0, 1) for a step of a sample: hashes of its keys (SplitMix64). */
export function randomNumber(seed, step, sample = 0) {
  let key = mix(BigInt(seed));
  for (const part of [0n, BigInt(sample), BigInt(step)]) key = mix(key ^ part);
  return Number(key >> 12n) * 2 ** -52;
}

function mix(x) {
  let y = (x + GOLDEN) & MASK;
  y = ((y ^ (y >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  y = ((y ^ (y >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return y ^ (y >> 31n);
}
