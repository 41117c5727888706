// The random numbers of Python and of PyTorch: a page draws what the studio draws.

const SIZE = 624; // words of the state of MT19937 (Matsumoto 1998)

/** MT19937, which both use; they differ in how they seed it and in what they make of a word. */
class Twister {
  constructor(seed) {
    this.state = new Uint32Array(SIZE);
    this.place = SIZE;
    this.state[0] = seed;
    for (let i = 1; i < SIZE; i += 1) this.state[i] = Math.imul(1812433253, this.state[i - 1] ^ (this.state[i - 1] >>> 30)) + i;
  }

  /** The next word of 32 bits. */
  word() {
    const { state } = this;
    if (this.place === SIZE) {
      for (let i = 0; i < SIZE; i += 1) {
        const y = (state[i] & 0x80000000) | (state[(i + 1) % SIZE] & 0x7fffffff);
        state[i] = state[(i + 397) % SIZE] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      this.place = 0;
    }
    let y = state[this.place];
    this.place += 1;
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }
}

/** Numbers like those of `torch.Generator().manual_seed(seed)`. */
export class Generator extends Twister {
  /** As many of mean 0 and variance 1 as `torch.randn` draws at once; at least 16, of which fewer come another way. */
  normals(count) {
    const drawn = new Float32Array(count);
    const fill = (from, to) => {
      for (let i = from; i < to; i += 1) drawn[i] = (this.word() & 0xffffff) / 0x1000000;
    };
    // Box and Muller on blocks of 16: radii from the first half of a block, angles from the second.
    const turn = (from) => {
      for (let i = from; i < from + 8; i += 1) {
        const radius = Math.sqrt(-2 * Math.log(1 - drawn[i]));
        const angle = 2 * Math.PI * drawn[i + 8];
        drawn[i] = radius * Math.cos(angle);
        drawn[i + 8] = radius * Math.sin(angle);
      }
    };
    fill(0, count);
    for (let from = 0; from + 16 <= count; from += 16) turn(from);
    if (count % 16) {
      // The last block reaches back over numbers that were made, which are drawn anew.
      fill(count - 16, count);
      turn(count - 16);
    }
    return drawn;
  }
}

/** Numbers like those of `random.Random(seed)`, of words of 32 bits, the lowest first. */
export class PythonRandom extends Twister {
  constructor(words) {
    super(19650218);
    const { state } = this;
    let i = 1;
    const mixed = (factor) => state[i] ^ Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), factor);
    const on = () => {
      i += 1;
      if (i < SIZE) return;
      state[0] = state[SIZE - 1];
      i = 1;
    };
    for (let k = 0; k < Math.max(SIZE, words.length); k += 1) {
      state[i] = mixed(1664525) + words[k % words.length] + (k % words.length);
      on();
    }
    for (let k = 1; k < SIZE; k += 1) {
      state[i] = mixed(1566083941) - i;
      on();
    }
    state[0] = 0x80000000;
  }

  /** That of a text, which Python hashes; where the browser lends no hashes, undefined. */
  static async ofText(text) {
    const bytes = new TextEncoder().encode(text);
    const digest = await globalThis.crypto?.subtle?.digest("SHA-512", bytes);
    if (!digest) return undefined;
    const all = [...bytes, ...new Uint8Array(digest)].reverse(); // the whole is one number, its highest byte first
    const words = Array.from({ length: Math.ceil(all.length / 4) }, (_, i) => all.slice(4 * i, 4 * i + 4).reduce((sum, byte, j) => sum + byte * 256 ** j, 0));
    return new PythonRandom(words);
  }

  below(count) {
    const bits = 32 - Math.clz32(count);
    let drawn;
    do drawn = this.word() >>> (32 - bits);
    while (drawn >= count);
    return drawn;
  }

  /** `sample(items, count)`. */
  sample(items, count) {
    const few = 21 + (count > 5 ? 4 ** Math.ceil(Math.log(count * 3) / Math.log(4)) : 0);
    if (items.length > few) {
      const chosen = new Set(); // in the order of insertion
      while (chosen.size < count) chosen.add(this.below(items.length));
      return [...chosen].map((i) => items[i]);
    }
    const pool = [...items];
    return Array.from({ length: count }, (_, i) => {
      const j = this.below(pool.length - i);
      const item = pool[j];
      pool[j] = pool[pool.length - i - 1];
      return item;
    });
  }
}
