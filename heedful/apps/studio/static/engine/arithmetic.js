// Matrix products, norms, activations and softmax over rows of float32; sums are float64.

const BATCH = 4; // rows that share the reading of a weight

/**
 * Rows x [rows, I] times the transposed matrix [O, I], plus a bias [O]: [rows, O].
 * @param weight tensor of `readTensors`; of 8 bits, its factors multiply the sums
 */
export function linear(x, rows, weight, bias = null) {
  const { shape: [outputs, inputs], values, scale } = weight;
  const result = new Float32Array(rows * outputs);
  // Widened once: the loop would widen every number again for each output.
  const wide = new Float64Array(Math.ceil(rows / BATCH) * BATCH * inputs);
  wide.set(x);
  for (let row = 0; row < rows; row += BATCH) {
    // Two or three rows take no longer with zeros beside them; a single one has a loop of its own.
    const several = rows - row > 1;
    const width = several ? BATCH : 1;
    const part = wide.subarray(row * inputs, (row + width) * inputs);
    const sums = (several ? products : rowProducts)(part, values, outputs, inputs);
    for (let output = 0; output < outputs; output += 1) {
      const factor = scale === null ? 1 : scale[output];
      const add = bias === null ? 0 : bias.values[output];
      for (let i = 0; i < width && row + i < rows; i += 1) {
        result[(row + i) * outputs + output] = sums[output * width + i] * factor + add;
      }
    }
  }
  return result;
}

/**
 * Products of four rows x [4, I] with every row of a matrix [O, I]: [O, 4].
 *
 * A sum waits for each of its additions, and a number is read once for two outputs: eight sums at
 * once make 2.4 billion products a second where four make 1.7 and one 0.7.
 */
function products(x, values, outputs, inputs) {
  const sums = new Float64Array((outputs + 1) * BATCH); // an odd number of outputs has one beside it
  for (let output = 0; output < outputs; output += 2) {
    let [a, b, c, d, e, f, g, h] = [0, 0, 0, 0, 0, 0, 0, 0];
    const at = output * inputs;
    const next = output + 1 < outputs ? at + inputs : at;
    for (let i = 0; i < inputs; i += 1) {
      const value = values[at + i];
      const other = values[next + i];
      const first = x[i];
      const second = x[inputs + i];
      const third = x[2 * inputs + i];
      const fourth = x[3 * inputs + i];
      a += value * first;
      b += value * second;
      c += value * third;
      d += value * fourth;
      e += other * first;
      f += other * second;
      g += other * third;
      h += other * fourth;
    }
    sums.set([a, b, c, d, e, f, g, h], output * BATCH);
  }
  return sums;
}

/** Products of one row x [I] with every row of a matrix [O, I]: [O]. */
function rowProducts(x, values, outputs, inputs) {
  const sums = new Float64Array(outputs + 1);
  for (let output = 0; output < outputs; output += 2) {
    const at = output * inputs;
    const next = output + 1 < outputs ? at + inputs : at;
    let sum = 0;
    let other = 0;
    for (let i = 0; i < inputs; i += 1) {
      sum += values[at + i] * x[i];
      other += values[next + i] * x[i];
    }
    sums[output] = sum;
    sums[output + 1] = other;
  }
  return sums;
}

/** Row of a matrix as float32, such as the vector of a token. */
export function rowOf({ shape: [, width], values, scale }, row) {
  const part = values.subarray(row * width, (row + 1) * width);
  return scale === null ? part : Float32Array.from(part, (code) => code * scale[row]);
}

/**
 * Layer norm or root-mean-square norm of rows x [rows, D].
 * @param norm {kind, epsilon, weight, bias: tensor or null}
 */
export function normalize(x, rows, { kind, epsilon, weight, bias }) {
  const width = weight.values.length;
  const result = new Float32Array(x.length);
  for (let row = 0; row < rows; row += 1) {
    const { mean, deviation } = spread(x.subarray(row * width, (row + 1) * width), kind, epsilon);
    for (let i = 0, at = row * width; i < width; i += 1, at += 1) {
      result[at] = ((x[at] - mean) / deviation) * weight.values[i] + (bias ? bias.values[i] : 0);
    }
  }
  return result;
}

/** What a norm subtracts from a vector, 0 for a root-mean-square norm, and what it divides by. */
export function spread(vector, kind, epsilon) {
  let [mean, square] = [0, 0];
  if (kind === "layer") {
    for (const value of vector) mean += value;
    mean /= vector.length;
  }
  for (const value of vector) square += (value - mean) ** 2;
  return { mean, deviation: Math.sqrt(square / vector.length + epsilon) };
}

/** Error function, off by at most 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - polynomial * Math.exp(-x * x));
}

export const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** Activation of the gate in each gated form (Shazeer 2020). */
export const GATED = { swiglu: "silu", geglu: "gelu", geglu_tanh: "gelu_tanh", reglu: "relu" };

/** log Σ exp of numbers, in float64; forbidden ones are −∞. */
export function logSumExp(numbers) {
  let most = -Infinity;
  for (const each of numbers) if (each > most) most = each;
  let sum = 0;
  for (const each of numbers) sum += Math.exp(each - most);
  return most + Math.log(sum);
}

/** Indices of the `count` largest numbers, the largest first; of equal ones, the first one first. */
export function largest(numbers, count) {
  const best = [];
  for (let i = 0; i < numbers.length; i += 1) {
    if (best.length === count && numbers[i] <= numbers[best[count - 1]]) continue;
    let place = best.length;
    while (place > 0 && numbers[best[place - 1]] < numbers[i]) place -= 1;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/** Euclidean length of a vector. */
export function lengthOf(vector) {
  let sum = 0;
  for (const value of vector) sum += value * value;
  return Math.sqrt(sum);
}

/**
 * Points in the plane of the two directions in which rows [N, D] differ most.
 * @returns {points: [N, 2], shares: of the variance, of each direction}
 */
export function principal(rows) {
  const width = rows[0].length;
  const means = rows[0].map((_, channel) => rows.reduce((sum, row) => sum + row[channel], 0) / rows.length);
  const centred = rows.map((row) => row.map((value, channel) => value - means[channel]));
  // The smaller of two matrices with the same eigenvalues: products of rows, or of columns.
  const byRows = rows.length <= width;
  const vectors = byRows ? centred : means.map((_, channel) => centred.map((row) => row[channel]));
  const gram = vectors.map((a) => Float64Array.from(vectors, (b) => a.reduce((sum, value, i) => sum + value * b[i], 0)));
  const { values, directions } = eigen(gram);
  const order = largest(values, 2);
  const all = Math.max(1e-30, values.reduce((sum, value) => sum + value, 0));
  const points = centred.map((row, i) => order.map((k) => {
    if (byRows) return directions[i][k] * Math.sqrt(Math.max(0, values[k]));
    return row.reduce((sum, value, channel) => sum + value * directions[channel][k], 0);
  }));
  return { points, shares: order.map((k) => values[k] / all) };
}

/** Eigenvalues of a symmetric matrix, and eigenvectors as columns, by rotations (Jacobi 1846). */
function eigen(given) {
  const matrix = given.map((row) => row.slice());
  const size = matrix.length;
  const directions = matrix.map((_, i) => Float64Array.from({ length: size }, (__, j) => Number(i === j)));
  const total = matrix.reduce((sum, row) => sum + row.reduce((part, value) => part + value * value, 0), 0);
  for (let sweep = 0, off = Infinity; sweep < 30 && off > 1e-22 * total; sweep += 1) {
    off = 0;
    for (let p = 0; p < size; p += 1) {
      for (let q = p + 1; q < size; q += 1) {
        const across = matrix[p][q];
        off += across * across;
        if (across * across <= 1e-30 * total) continue;
        const theta = (matrix[q][q] - matrix[p][p]) / (2 * across);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1);
        const turn = (row) => {
          const [a, b] = [row[p], row[q]];
          row[p] = c * a - t * c * b;
          row[q] = t * c * a + c * b;
        };
        matrix.forEach(turn);
        const [above, below] = [matrix[p], matrix[q]];
        for (let k = 0; k < size; k += 1) {
          const [a, b] = [above[k], below[k]];
          above[k] = c * a - t * c * b;
          below[k] = t * c * a + c * b;
        }
        directions.forEach(turn);
      }
    }
  }
  return { values: matrix.map((row, i) => row[i]), directions };
}
