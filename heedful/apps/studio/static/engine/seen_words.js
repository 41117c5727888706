// The words that a model was trained to write, as a Bloom filter; see `text/seen_words.py`.

export const FEWEST_LETTERS = 4; // of a word that the filter holds

const MASK = (1n << 64n) - 1n;
const BLOCK = 128; // bytes
const DIGEST = 16n; // bytes
const BEGINNING = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDERS = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d", "2c6a0b834d75fe19",
  "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef", "ea489fd61c02b753",
].map((order) => [...order].map((digit) => Number.parseInt(digit, 16)));
const COLUMNS_AND_DIAGONALS = ["048c", "159d", "26ae", "37bf", "05af", "16bc", "278d", "349e"]
  .map((places) => [...places].map((digit) => Number.parseInt(digit, 16)));

/** Read what a model directory has of them; a function that tells whether a word is probably seen. */
export function seenWords({ bits: packed, hashes }) {
  const bits = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const places = BigInt(8 * bits.length);
  return (word) => {
    const [start, step] = digest(new TextEncoder().encode(word.normalize("NFC").toLowerCase().replaceAll("ß", "ss")));
    return Array.from({ length: hashes }, (_, i) => Number((start + BigInt(i) * (step | 1n)) % places))
      .every((place) => (bits[place >> 3] >> (place & 7)) & 1);
  };
}

/** The two 64-bit words of a BLAKE2b digest (RFC 7693) of 16 bytes. */
function digest(bytes) {
  const state = [...BEGINNING];
  state[0] ^= 0x01010000n ^ DIGEST;
  for (let start = 0; start === 0 || start < bytes.length; start += BLOCK) {
    const end = Math.min(bytes.length, start + BLOCK);
    const block = new DataView(new ArrayBuffer(BLOCK));
    bytes.subarray(start, end).forEach((byte, i) => block.setUint8(i, byte));
    const words = Array.from({ length: 16 }, (_, i) => block.getBigUint64(8 * i, true));
    compress(state, words, BigInt(end), end === bytes.length);
  }
  return state.slice(0, 2);
}

function compress(state, words, count, last) {
  const v = [...state, ...BEGINNING];
  v[12] ^= count;
  if (last) v[14] ^= MASK;
  const turned = (value, by) => ((value >> by) | (value << (64n - by))) & MASK;
  for (const order of ORDERS) {
    COLUMNS_AND_DIAGONALS.forEach(([a, b, c, d], i) => {
      for (const [word, first, second] of [[words[order[2 * i]], 32n, 24n], [words[order[2 * i + 1]], 16n, 63n]]) {
        v[a] = (v[a] + v[b] + word) & MASK;
        v[d] = turned(v[d] ^ v[a], first);
        v[c] = (v[c] + v[d]) & MASK;
        v[b] = turned(v[b] ^ v[c], second);
      }
    });
  }
  for (let i = 0; i < 8; i += 1) state[i] ^= v[i] ^ v[i + 8];
}
