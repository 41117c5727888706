"""Sentence pairs as token ids: encoded once, kept in memory maps, selected, cut into batches."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from heedful.data.array_store import (
    SCHEMA_VERSION,
    Array,
    Notice,
    StoreWriter,
    open_or_write,
    writing,
)
from heedful.data.batch_plan import Indices, Sizes, plan_epoch, plan_once, plan_rows, tempered
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.pair_corpus import (
    SIDES,
    CorpusReader,
    Side,
    content_hash,
    corpus_paths,
    line_name,
)
from heedful.data.text_file import FileFacts, chunks
from heedful.text.tokenizer_pair import TokenizerPair

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]
Reason = Literal["empty source", "empty target", "both empty", "too long", "length ratio"]

# Batches for the tokenizer's threads; the memory of a chunk stays at a few megabytes.
_PAIRS_AT_ONCE = 4096


def text_digest(text: str) -> int:
    """Return a 64-bit hash of a text without white space at its ends."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Ragged:
    """Token ids of rows of different lengths.

    Args:
        ids: token ids of all rows, concatenated.
        offsets: start of each row in `ids`, and the end of the last row.
    """

    ids: Array
    offsets: Array

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: str) -> Ragged:
        """Make one array of lists of ids."""
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=dtype, count=int(offsets[-1])), offsets)

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of several arrays."""
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.cumsum(np.append(0, lengths), dtype=np.int64)
        return cls(np.concatenate([part.ids for part in parts]), offsets)

    @property
    def lengths(self) -> Indices:
        """Length of every row in tokens."""
        # Lengths are computed from offsets alone, so token ids stay on the disk.
        return np.diff(self.offsets)

    def rows(self, numbers: Indices) -> list[Ids]:
        """Return the token ids of some rows, by their numbers."""
        starts, ends = (self.offsets[at].astype(np.int64) for at in (numbers, numbers + 1))
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        # Indices of all wanted tokens, so that a memory map is read in one gather.
        places = np.arange(edges[-1]) + np.repeat(starts - edges[:-1], ends - starts)
        together = np.asarray(self.ids[places], dtype=np.int32)
        return [together[start:end] for start, end in itertools.pairwise(edges.tolist())]


class EncodedCorpus:
    """One corpus in memory maps.

    Args:
        spec: files and weight of the corpus.
        arrays: arrays that `encode_corpus` wrote.
        metadata: metadata that `encode_corpus` wrote.
        key: name of the corpus's folder in the cache.

    Attributes:
        ids: token ids of every pair by side, without special tokens.
    """

    def __init__(
        self, spec: CorpusSpec, arrays: dict[str, Array], metadata: dict[str, Any], key: str
    ) -> None:
        self.spec = spec
        self.key = key
        self._arrays = arrays
        self.ids: dict[Side, Ragged] = {
            side: Ragged(arrays[f"{side}.ids"], arrays[f"{side}.offsets"]) for side in SIDES
        }
        # Facts of reading are stored, as reading is skipped when the corpus comes from the cache.
        self.facts = {
            str(path): FileFacts(**facts)
            for path, facts in zip(corpus_paths(spec), metadata["files"], strict=True)
        }

    def __len__(self) -> int:
        return len(self.ids["source"].offsets) - 1

    def digests(self, side: Side) -> Array:
        """Return `text_digest` of one side of every pair [n]."""
        return self._arrays[f"{side}.digests"]

    def text(self, side: Side, row: int) -> str:
        start, end = self._arrays[f"{side}.text_offsets"][row : row + 2]
        # Offsets are in bytes of UTF-8, not in characters.
        return bytes(self._arrays[f"{side}.text"][start:end]).decode()


class EncodedPairs:
    """The pairs of several corpora, numbered consecutively.

    Args:
        corpora: the corpora, in the order of their numbers.
        tokenizers: tokenizers that encoded the corpora.

    Attributes:
        source_lengths, target_lengths: tokens of every pair [n], special tokens not counted.
        starts: number of the first pair of every corpus, and the number of pairs.
    """

    def __init__(self, corpora: Sequence[EncodedCorpus], tokenizers: TokenizerPair) -> None:
        self.corpora = tuple(corpora)
        self.tokenizers = tokenizers
        ends = np.cumsum([len(corpus) for corpus in self.corpora], dtype=np.int64)
        self.starts: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), ends])
        self.source_lengths = self._lengths("source")
        self.target_lengths = self._lengths("target")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of contents, tokenizers and weights of the corpora."""
        parts = [f"{corpus.key} {corpus.spec.weight!r}" for corpus in self.corpora]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def ids_of(self, side: Side, indices: Indices) -> list[Ids]:
        """Return the token ids of one side of some pairs, without special tokens."""
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        results: list[Ids] = [np.empty(0, np.int32)] * len(indices)
        for number in np.unique(numbers):
            # One gather for each corpus; `results` keeps the order of `indices`.
            places = np.flatnonzero(numbers == number)
            rows = indices[places] - self.starts[number]
            for place, ids in zip(places, self.corpora[number].ids[side].rows(rows), strict=True):
                results[place] = ids
        return results

    def digests(self, side: Side) -> npt.NDArray[np.uint64]:
        """Return `text_digest` of one side of every pair [n]."""
        parts = [np.asarray(corpus.digests(side), np.uint64) for corpus in self.corpora]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def text_of(self, i: int) -> tuple[str, str]:
        """Return the source and target of pair i as they stand in the corpus."""
        corpus, row = self._locate(i)
        return corpus.text("source", row), corpus.text("target", row)

    def line_of(self, i: int) -> str:
        """Return the location of pair i as "file:line"; for aligned files, in the source file."""
        corpus, row = self._locate(i)
        return line_name(corpus.spec, row + 1)

    def _locate(self, i: int) -> tuple[EncodedCorpus, int]:
        assert 0 <= i < len(self), i
        # side="right": a number that begins a corpus belongs to that corpus.
        number = int(np.searchsorted(self.starts, i, side="right")) - 1
        return self.corpora[number], int(i - self.starts[number])

    def _lengths(self, side: Side) -> Ids:
        lengths = [corpus.ids[side].lengths.astype(np.int32) for corpus in self.corpora]
        return np.concatenate(lengths) if lengths else np.empty(0, np.int32)


@dataclass(frozen=True)
class PairSelection:
    """The pairs to use and those left out.

    Args:
        kept: numbers of the pairs to use, ascending.
        left_out: numbers of the other pairs by reason; every reason is a key.
    """

    kept: Indices
    left_out: dict[Reason, Indices]


def select_pairs(pairs: EncodedPairs, spec: DataSpec) -> PairSelection:
    """Leave out pairs with an empty side, over-long ones, and lopsided ones if a limit is set.

    A side is too long past `spec.max_length` tokens, or when it alone would not fit a batch.

    Args:
        pairs: the encoded corpora.
        spec: limits on pairs.
    """
    lengths = (pairs.source_lengths, pairs.target_lengths)
    return select_rows(*lengths, _empty(pairs, "source"), _empty(pairs, "target"), spec)


def select_rows(
    source_lengths: Sizes,
    target_lengths: Sizes,
    source_empty: Mask,
    target_empty: Mask,
    spec: DataSpec,
) -> PairSelection:
    """Leave out pairs as `select_pairs` does.

    Args:
        source_lengths, target_lengths: tokens of every pair [n], special tokens not counted.
        source_empty, target_empty: masks of the pairs with only white space on a side [n].
        spec: limits on pairs.
    """
    longer = np.maximum(source_lengths, target_lengths)
    shorter = np.minimum(source_lengths, target_lengths)
    limit = min(spec.max_length, spec.budget - 1)  # one position is for eos or bos
    lopsided = np.zeros(len(longer), dtype=bool)
    if spec.max_length_ratio is not None:
        lopsided = longer > spec.max_length_ratio * shorter
    # The order counts: a pair is reported once, by the first test that it fails.
    tests: dict[Reason, Mask] = {
        "both empty": source_empty & target_empty,
        "empty source": source_empty,
        "empty target": target_empty,
        "too long": longer > limit,
        "length ratio": lopsided,
    }
    remaining = np.ones(len(longer), dtype=bool)
    left_out: dict[Reason, Indices] = {reason: np.empty(0, np.int64) for reason in get_args(Reason)}
    for reason, fails in tests.items():
        left_out[reason] = np.flatnonzero(fails & remaining)
        remaining &= ~fails
    return PairSelection(np.flatnonzero(remaining), left_out)


def _empty(pairs: EncodedPairs, side: Literal["source", "target"]) -> Mask:
    """Return a mask of the pairs with only white space on a side [n]."""
    # The digest ignores outer white space, so all blank texts share one.
    blank = np.uint64(text_digest(""))
    return np.asarray(pairs.digests(side) == blank)


def epoch_batches(
    pairs: EncodedPairs, selection: PairSelection, spec: DataSpec, *, seed: int, epoch: int
) -> list[Indices]:
    """Plan the batches of an epoch as arrays of pair numbers, in the order of training.

    Args:
        pairs: the encoded corpora.
        selection: pairs to use.
        spec: batch sizes and temperature.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
    """
    bounds = np.searchsorted(selection.kept, pairs.starts)
    # Sizes count only pairs that are kept, so the share of a corpus does not depend on filtered
    # pairs.
    weights = tempered(
        np.diff(bounds).tolist(),
        [corpus.spec.weight for corpus in pairs.corpora],
        spec.temperature,
    )
    groups = [
        (selection.kept[start:end], weight)
        for weight, start, end in zip(weights, bounds[:-1], bounds[1:], strict=True)
    ]
    lengths = pairs.source_lengths, pairs.target_lengths
    return plan_pairs(lengths, groups, spec, pairs.tokenizers, seed=seed, epoch=epoch)


def plan_pairs(
    lengths: tuple[Sizes, Sizes],
    groups: Sequence[tuple[Indices, float]],
    spec: DataSpec,
    tokenizers: TokenizerPair,
    *,
    seed: int,
    epoch: int,
) -> list[Indices]:
    """Cut an epoch of pairs into batches of similar lengths [B], or of packed rows [R, P].

    Args:
        lengths: lengths of the sources and of the targets in tokens [n], special tokens excluded.
        groups: pair numbers with their sampling weight; see `plan_epoch`.
        spec: token budget, size of pools, and the length of packed rows or None.
        tokenizers: tokenizers of the pairs, which decide the special tokens of a source.
        seed: seed of the run.
        epoch: number of the epoch, from 0.

    Raises:
        ConfigError: when a pair is longer than a packed row.
    """
    if spec.packed_length is not None:
        around = len(tokenizers.source.first) + len(tokenizers.source.last)
        return plan_rows(
            (lengths[0] + around, lengths[1] + 1),  # bos or eos of the target
            groups,
            row_length=spec.packed_length,
            batch_rows=spec.batch_rows,
            pool_batches=spec.pool_batches,
            seed=seed,
            epoch=epoch,
        )
    return plan_epoch(
        pair_sizes(*lengths),
        groups,
        batch_tokens=spec.budget,
        pool_batches=spec.pool_batches,
        seed=seed,
        epoch=epoch,
        ties=lengths,  # among equal sizes by target, then source: less padding on the shorter side
    )


def validation_batches(pairs: EncodedPairs, spec: DataSpec) -> list[Indices]:
    """Plan batches that hold every usable pair once, the same in every call."""
    ties = (pairs.source_lengths, pairs.target_lengths)
    return plan_once(pair_sizes(*ties), spec, select_pairs(pairs, spec).kept, ties)


def pair_sizes(source_lengths: Sizes, target_lengths: Sizes) -> Indices:
    """Return the number of positions of each pair's longer side [n], one special token counted."""
    return np.maximum(source_lengths, target_lengths).astype(np.int64) + 1


def encode_corpora(
    specs: Sequence[CorpusSpec],
    tokenizers: TokenizerPair,
    cache: Path,
    *,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> EncodedPairs:
    """Open corpora from the cache, encoding those that are not there yet.

    Args:
        specs: files and weights of the corpora.
        tokenizers: tokenizers of both sides.
        cache: folder of encoded corpora; may be shared between runs.
        progress: function of the bytes done and all bytes of the corpus that is being encoded.
        notice: function that is called with a sentence when a damaged folder is made anew.

    Raises:
        DataError: when a line is not a pair, with file and line.
        RunError: when the cache cannot be written.
    """
    corpora = [encode_corpus(spec, tokenizers, cache, progress, notice) for spec in specs]
    return EncodedPairs(corpora, tokenizers)


def encode_corpus(
    spec: CorpusSpec,
    tokenizers: TokenizerPair,
    cache: Path,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> EncodedCorpus:
    """Open one corpus from the cache, encoding it if it is not there yet; see `encode_corpora`."""
    # The weight is no part of the key: it changes epochs, not the encoding.
    content = f"{SCHEMA_VERSION} {content_hash(spec)} {tokenizers.fingerprint}"

    def write(folder: Path) -> None:
        _write(spec, tokenizers, folder, progress)

    return EncodedCorpus(spec, *open_or_write(cache, content, write, notice))


def _write(
    spec: CorpusSpec, tokenizers: TokenizerPair, folder: Path, progress: Progress | None
) -> None:
    reader = CorpusReader(spec)
    with writing(folder, _dtypes(tokenizers)) as store:
        for side in SIDES:
            # Offsets begin with 0, so row i is offsets[i] to offsets[i + 1].
            store.append(f"{side}.offsets", np.zeros(1))
            store.append(f"{side}.text_offsets", np.zeros(1))
        ends = dict.fromkeys(itertools.product(SIDES, ("tokens", "bytes")), 0)
        for pairs in chunks(reader, _PAIRS_AT_ONCE):
            texts = [(pair.source, pair.target) for pair in pairs]
            rows = encode_pairs(texts, tokenizers)
            for side, plain, ids in zip(SIDES, zip(*texts, strict=True), rows, strict=True):
                _append(store, side, plain, ids, ends)
            if progress:
                progress(*reader.progress)
        store.finish({"files": [asdict(facts) for facts in reader.facts]})


def encode_pairs(
    texts: Sequence[tuple[str, str]], tokenizers: TokenizerPair
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of the sources and of the targets of pairs, without special tokens."""
    if tokenizers.protection is not None:
        texts = [tokenizers.protection.protect_pair(*pair) for pair in texts]
    sources, targets = zip(*texts, strict=True)
    return tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets)


def unknown_share(ids: Array, unk: int) -> float:
    """Return the share of unknown tokens among token ids, 0 to 1."""
    return float(np.count_nonzero(ids == unk)) / max(len(ids), 1)


def id_dtype(vocabulary: int) -> str:
    """Return the smallest stored type for the ids of a vocabulary, as NumPy spells it.

    Args:
        vocabulary: size of the vocabulary.
    """
    # Two bytes hold the ids of the usual vocabularies, which halves the store.
    return "<u2" if vocabulary <= 2**16 else "<i4"


def _dtypes(tokenizers: TokenizerPair) -> dict[str, str]:
    dtypes: dict[str, str] = {}
    for side in SIDES:
        tokenizer = tokenizers.source if side == "source" else tokenizers.target
        dtypes |= {
            f"{side}.ids": id_dtype(tokenizer.size),
            f"{side}.offsets": "<i8",
            # Texts are kept for BPE-dropout, which encodes them anew in every epoch.
            f"{side}.text": "|u1",
            f"{side}.text_offsets": "<i8",
            f"{side}.digests": "<u8",
        }
    return dtypes


def _append(
    store: StoreWriter,
    side: Side,
    texts: Sequence[str],
    rows: Sequence[Sequence[int]],
    ends: dict[tuple[Side, str], int],
) -> None:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    store.append(
        f"{side}.ids",
        # `fromiter` needs no list of all ids in between.
        np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=lengths.sum()),
    )
    encoded = [text.encode() for text in texts]
    text_lengths = np.array([len(text) for text in encoded], dtype=np.int64)
    store.append(f"{side}.text", np.frombuffer(b"".join(encoded), dtype=np.uint8))
    store.append(f"{side}.digests", np.array([text_digest(t) for t in texts], dtype=np.uint64))
    units = (("offsets", "tokens", lengths), ("text_offsets", "bytes", text_lengths))
    for name, unit, sizes in units:
        offsets = ends[side, unit] + np.cumsum(sizes)
        store.append(f"{side}.{name}", offsets)
        ends[side, unit] = int(offsets[-1])
