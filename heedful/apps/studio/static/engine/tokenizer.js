// The tokenizers of the models: BPE of characters, and of bytes.

import { speller } from "./normalization.js";
import { Refusal } from "./refusal.js";

const MARK = "\u2581"; // stands for a space in pieces
const UNKNOWN = "\u2047"; // shown for the unknown token
const SHOWN = { pad: "<pad>", bos: "<s>", eos: "</s>", unk: "<unk>", mask: "<mask>" };
export const MASK = "[MASK]"; // placeholder of a hidden token in texts

/** GPT-2's characters for bytes (Radford 2019): printable Latin-1 is itself. */
const BYTE_CHARACTERS = Array.from({ length: 256 });
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte += 1) {
  const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  const character = String.fromCharCode(printable ? byte : next);
  if (!printable) next += 1;
  BYTE_CHARACTERS[byte] = character;
  BYTES.set(character, byte);
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** A regular expression of the tokenizers library, as JavaScript writes it. */
function splitterOf(state) {
  const steps = state.pre_tokenizer.pretokenizers ?? [state.pre_tokenizer];
  const [split, bytes] = steps;
  const usual = split.type === "Split" && split.behavior === "Isolated" && !split.invert && split.pattern.Regex
    && steps.length < 3 && (!bytes || (bytes.type === "ByteLevel" && !bytes.add_prefix_space && !bytes.use_regex));
  if (!usual) throw unsupported("its words are split in another way");
  const source = split.pattern.Regex
    .replace(/\[\\p\{P\}\\p\{S\}&&(\[\^.\])\]/gu, "(?:(?=$1)[\\p{P}\\p{S}])")
    .replace(/\\s/g, "\\p{White_Space}"); // the library's \s, which knows U+0085 and no U+FEFF
  return new RegExp(source, "gu");
}

const unsupported = (why) => new Refusal({ what: `This tokenizer cannot be run here: ${why}`, where: "tokenizer.json" });

export class Tokenizer {
  /** @param content parsed tokenizer.json */
  constructor(content) {
    const { kind, lowercase, special, tokenizer: state, normalization = "none", sentinels = [] } = content;
    const { model } = state;
    const plain = model.type === "BPE" && !model.byte_fallback && !model.fuse_unk && !model.ignore_merges
      && !model.continuing_subword_prefix && !model.end_of_word_suffix && !state.normalizer && !state.added_tokens.length;
    if (!["bpe", "byte-bpe"].includes(kind) || !plain || sentinels.length) {
      throw unsupported(`it is no plain BPE (${kind})`);
    }
    Object.assign(this, special);
    this.mask ??= null;
    this.inBytes = kind === "byte-bpe";
    this.lowercase = lowercase;
    this.spelled = speller(normalization);
    if (!this.spelled) throw unsupported(`its rule of spelling is ${normalization}`);
    this.space = this.inBytes ? " " : MARK;
    this.first = this.mask === null ? [] : [this.bos];
    this.last = [this.eos];
    this.between = this.mask === null ? null : this.last;
    this.special = new Set([this.pad, this.bos, this.eos, ...this.first, ...this.last]);
    this.splitter = splitterOf(state);
    this.vocabulary = new Map(Object.entries(model.vocab));
    this.size = this.vocabulary.size;
    this.ranks = new Map(model.merges.map((pair, rank) => [pair.join(" "), rank])); // no piece holds a space
    this.cut = new Map(); // pieces of words that were cut before
    this.contents = Array.from({ length: this.size });
    for (const [piece, id] of this.vocabulary) {
      this.contents[id] = this.inBytes ? Uint8Array.from(piece, (each) => BYTES.get(each) ?? 0) : encoder.encode(piece);
    }
    this.shown = this.contents.map((bytes) => decoder.decode(bytes).replaceAll(this.space, MARK));
    for (const [name, id] of Object.entries(special)) {
      this.shown[id] = SHOWN[name];
      this.contents[id] = new Uint8Array(0);
    }
    this.contents[this.unk] = encoder.encode(UNKNOWN);
  }

  /** Convert a spelled line to marked text, with a space before its first word; "" stays empty. */
  mark(text) {
    if (!text) return "";
    const folded = this.lowercase ? text.toLowerCase() : text;
    return this.space + (this.inBytes ? folded : folded.replace(/[ \u2581]/g, (each) => (each === " " ? MARK : " ")));
  }

  /** The ids of a text without the special tokens around it. */
  encode(text) {
    return this.segment(this.mark(this.spelled(text))).map(({ id }) => id);
  }

  /** The ids of a text with `[MASK]` in it; a gap hides the space before it, too. */
  encodeMasked(text) {
    const parts = this.spelled(text).split(MASK);
    if (this.mask === null || parts.length < 2) return this.encode(text);
    const cutEnd = (part) => (part.endsWith(this.space) ? part.slice(0, -1) : part);
    return parts.flatMap((part, index) => {
      // Only the first part has the space before a line; the others go on inside of one.
      const marked = index ? this.mark(part).slice(1) : this.mark(part);
      const ids = this.segment(index < parts.length - 1 ? cutEnd(marked) : marked).map(({ id }) => id);
      return index ? [this.mask, ...ids] : ids;
    });
  }

  /** Start and end of each token of a spelled text, in characters (code points). */
  spans(text) {
    // Lower case of one letter may be two characters.
    const lengths = [...text].map((each) => (this.lowercase ? [...each.toLowerCase()].length : 1));
    const origin = [[0, 0], ...lengths.flatMap((length, i) => Array.from({ length }, () => [i, i + 1]))];
    return this.segment(this.mark(text)).map(({ start, end }) => [origin[start][0], origin[end - 1][1]]);
  }

  /** Cut marked text into tokens, each {id, start, end} in characters of it. */
  segment(marked) {
    const tokens = [];
    let start = 0;
    for (const word of this.words(marked)) {
      for (const { id, from, to } of this.cutWord(word)) tokens.push({ id, start: start + from, end: start + to });
      start += [...word].length;
    }
    return tokens;
  }

  /** Words of marked text, whose edges no piece crosses. */
  words(marked) {
    const words = [];
    let end = 0;
    for (const match of marked.matchAll(this.splitter)) {
      if (match.index > end) words.push(marked.slice(end, match.index));
      words.push(match[0]);
      end = match.index + match[0].length;
    }
    if (end < marked.length) words.push(marked.slice(end));
    return words;
  }

  /** Pieces of a word, each {id, from, to} in characters: merge the pair of the lowest rank first. */
  cutWord(word) {
    if (this.cut.has(word)) return this.cut.get(word);
    const pieces = [...word].flatMap((character, at) => this.inBytes
      // Each byte of a character covers all of it.
      ? Array.from(encoder.encode(character), (byte) => ({ piece: BYTE_CHARACTERS[byte], from: at, to: at + 1 }))
      : [{ piece: character, from: at, to: at + 1 }]);
    for (;;) {
      let [best, place] = [Infinity, -1];
      for (let i = 0; i + 1 < pieces.length; i += 1) {
        const rank = this.ranks.get(`${pieces[i].piece} ${pieces[i + 1].piece}`) ?? Infinity;
        if (rank < best) [best, place] = [rank, i];
      }
      if (place < 0) break;
      const [left, right] = pieces.slice(place, place + 2);
      pieces.splice(place, 2, { piece: left.piece + right.piece, from: left.from, to: right.to });
    }
    const result = pieces.map(({ piece, from, to }) => ({ id: this.vocabulary.get(piece) ?? this.unk, from, to }));
    this.cut.set(word, result);
    return result;
  }

  /** The text of ids without special tokens; bytes that are no UTF-8 are shown as U+FFFD. */
  decode(ids) {
    const parts = ids.map((id) => this.contents[id]);
    const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at); // joined first: a character may be several pieces
      at += part.length;
    }
    const marked = decoder.decode(bytes);
    const text = marked.startsWith(this.space) ? marked.slice(1) : marked;
    return this.inBytes ? text : text.replace(/[ \u2581]/g, (each) => (each === " " ? MARK : " "));
  }

  /** The tokens of ids as text for display. */
  pieces(ids) {
    return ids.map((id) => this.shown[id]);
  }
}
