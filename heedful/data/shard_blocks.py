"""Blocks of streamed examples: read, tokenised and cut into batches, each without the others.

No torch here: processes that only tokenise load this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from heedful.data.array_store import Array
from heedful.data.batch_plan import Indices, nothing_shown, shuffle, tempered
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.encoded_pairs import (
    Ids,
    encode_pairs,
    id_dtype,
    ids_of_rows,
    plan_pairs,
    select_rows,
)
from heedful.data.pair_corpus import SIDES, Side
from heedful.data.pair_packing import NO_PAIR
from heedful.data.shard_folder import Kind, ShardFolder, open_shards
from heedful.data.shard_order import ShardOrder
from heedful.errors import DataError
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

_AT_ONCE = 4096
"""Texts that are tokenised at once: more would only take more memory."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BlockPlace(NamedTuple):
    """A block of an epoch, both counted from 0."""

    epoch: int
    block: int


class Planner(Protocol[T_co]):
    """Makes any block; it goes to the processes that do so."""

    def plan(self, place: BlockPlace) -> T_co:
        """The block, a function of the place alone."""
        ...


class ShardStream:
    """The examples of shard folders, block by block.

    Args:
        specs: the folders.
        kind: of the examples.
        data: the size of a block, and how many shards are shuffled together.
        seed: of the run.

    Raises:
        DataError: when a folder cannot be used, or weights leave nothing of any.
    """

    def __init__(self, specs: Sequence[CorpusSpec], kind: Kind, data: DataSpec, seed: int) -> None:
        self.folders = open_shards(specs, kind)
        given = [spec.weight for spec in specs]
        self.weights = tempered([len(each) for each in self.folders], given, data.temperature)
        shown = zip(self.weights, self.folders, strict=True)
        text_bytes = sum(weight * folder.text_bytes for weight, folder in shown)
        self.order = ShardOrder(
            [folder.starts for folder in self.folders],
            self.weights,
            blocks=max(1, round(text_bytes / (data.block_mb * 1e6))),
            shuffle_shards=data.shuffle_shards,
            seed=seed,
        )
        if not len(self.order):
            raise nothing_shown()
        self.seed = seed

    @property
    def fingerprint(self) -> str:
        """Differs where the shards or the weights do."""
        parts = zip(self.folders, self.weights, strict=True)
        return " ".join(f"{folder.fingerprint} {weight!r}" for folder, weight in parts)

    def line_of(self, number: int) -> str:
        """The place of an example, as "file:line"."""
        folder, local = self._locate(number)
        return folder.line_of(local)

    def numbers(self, place: BlockPlace) -> Indices:
        """Numbers of the examples of a block; one that is shown twice stands there twice.

        Raises:
            DataError: when there are none.
        """
        numbers = self.order.block(*place)
        if not len(numbers):
            raise self.nothing_left({})
        return numbers

    def pairs(self, numbers: Indices) -> Iterator[tuple[str, str]]:
        """The pairs of ascending numbers; each shard is read once."""
        for folder, shard, rows in self._rows(numbers):
            yield from folder.pairs(shard, rows)

    def texts(self, numbers: Indices) -> Iterator[str]:
        """The texts of ascending numbers; each shard is read once."""
        for folder, shard, rows in self._rows(numbers):
            yield from folder.texts(shard, rows)

    def sample(self, count: int) -> Iterator[Indices]:
        """Ascending numbers of about the first `count` examples of the run, block by block."""
        for block in range(self.order.blocks):
            numbers = self.numbers(BlockPlace(0, block))[:count]
            yield np.unique(numbers)
            count -= len(numbers)
            if count <= 0:
                return

    def bits(self, place: BlockPlace) -> np.random.PCG64:
        """The random bits of a block."""
        return np.random.PCG64(np.random.SeedSequence([self.seed, *place]))

    def nothing_left(self, left_out: dict[str, tuple[int, int]]) -> DataError:
        """The error that no example of a block can be used.

        Args:
            left_out: how many by reason, and the first of them.
        """
        reasons = [f"{n:,} {reason} ({self.line_of(i)})" for reason, (n, i) in left_out.items()]
        return DataError(
            f"No example of a block is left to use: {', '.join(reasons) or 'there is none'}",
            where=", ".join(str(folder.path) for folder in self.folders),
            remedy="Check the shards, their weights, and data.max_length, data.max_length_ratio "
            "and data.batch_tokens",
        )

    def _locate(self, number: int) -> tuple[ShardFolder, int]:
        bounds = self.order.bounds
        corpus = int(np.searchsorted(bounds, number, side="right")) - 1
        return self.folders[corpus], number - int(bounds[corpus])

    def _rows(self, numbers: Indices) -> Iterator[tuple[ShardFolder, int, list[int]]]:
        for folder, base in zip(self.folders, self.order.bounds.tolist(), strict=False):
            mine = numbers[(numbers >= base) & (numbers < base + len(folder))] - base
            shards = np.searchsorted(folder.starts, mine, side="right") - 1
            for shard in np.unique(shards).tolist():
                yield folder, shard, (mine[shards == shard] - folder.starts[shard]).tolist()


@dataclass(frozen=True)
class Ragged:
    """Token ids of rows of different lengths.

    Args:
        ids: of all rows, one after the other.
        offsets: where each row begins, and the end of the last.
    """

    ids: Array
    offsets: Indices

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: str) -> Ragged:
        """Return lists of ids as one array."""
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=dtype, count=int(offsets[-1])), offsets)

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of several, one after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.cumsum(np.append(0, lengths), dtype=np.int64)
        return cls(np.concatenate([part.ids for part in parts]), offsets)

    @property
    def lengths(self) -> Indices:
        """Tokens of every row."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class PairBlock:
    """The pairs of a block as token ids, and its batches.

    Args:
        numbers: of the pairs, ascending.
        sides: token ids of the sources and of the targets, in that order.
        texts: the pairs themselves, where they are encoded anew in each epoch.
        batches: numbers of the pairs of each batch, as `plan_pairs` has them.
        left_out: pairs that cannot be used by reason, and the first of them.
        unknown: share of unknown tokens on either side.
    """

    numbers: Indices
    sides: tuple[Ragged, Ragged]
    texts: list[tuple[str, str]] | None
    batches: list[Indices]
    left_out: dict[str, tuple[int, int]]
    unknown: tuple[float, float]

    @property
    def real_positions(self) -> int:
        """Positions of sources and targets in the batches, those of end tokens counted."""
        shown = np.concatenate([rows[rows != NO_PAIR] for rows in self.batches])
        places = np.searchsorted(self.numbers, shown)
        return sum(int((side.lengths[places] + 1).sum()) for side in self.sides)


@dataclass(frozen=True)
class PairsOfBlock:
    """The pairs of a block by their numbers.

    Args:
        block: that they are of.
        tokenizers: that encoded them.
    """

    block: PairBlock
    tokenizers: TokenizerPair

    def ids_of(self, side: Side, indices: Indices) -> list[Ids]:
        """Token ids of one side of some pairs, without special tokens."""
        ragged = self.block.sides[SIDES.index(side)]
        rows = np.searchsorted(self.block.numbers, indices)
        return ids_of_rows(ragged.ids, ragged.offsets, rows)

    def text_of(self, i: int) -> tuple[str, str]:
        """Source and target of pair i."""
        assert self.block.texts is not None
        return self.block.texts[int(np.searchsorted(self.block.numbers, i))]


@dataclass(frozen=True)
class PairPlanner:
    """Makes blocks of sentence pairs.

    Args:
        stream: the pairs.
        tokenizers: that encode them.
        data: the limits, the token budget and the size of pools.
        keeps_texts: whether blocks hold the texts, too.
    """

    stream: ShardStream
    tokenizers: TokenizerPair
    data: DataSpec
    keeps_texts: bool

    def plan(self, place: BlockPlace) -> PairBlock:
        """Make a block.

        Raises:
            DataError: when a shard is damaged, or no pair can be used.
        """
        chosen = self.stream.numbers(place)
        numbers = np.unique(chosen)
        texts: list[tuple[str, str]] = []
        empty: list[tuple[bool, bool]] = []
        parts: list[tuple[Ragged, Ragged]] = []
        types = [id_dtype(t.size) for t in (self.tokenizers.source, self.tokenizers.target)]
        for some in _chunks(self.stream.pairs(numbers)):
            rows = encode_pairs(some, self.tokenizers)
            source, target = (Ragged.of(*each) for each in zip(rows, types, strict=True))
            parts.append((source, target))
            empty.extend((not source.strip(), not target.strip()) for source, target in some)
            if self.keeps_texts:
                texts.extend(some)
        source, target = (Ragged.join(side) for side in zip(*parts, strict=True))
        lengths = source.lengths, target.lengths
        no_source, no_target = np.array(empty).T
        selection = select_rows(*lengths, no_source, no_target, self.data)
        left_out = {
            str(reason): (len(rows), int(numbers[rows[0]]))
            for reason, rows in selection.left_out.items()
            if len(rows)
        }
        if not len(selection.kept):
            raise self.stream.nothing_left(left_out)
        rows_of_chosen = np.searchsorted(numbers, chosen)
        usable = rows_of_chosen[np.isin(rows_of_chosen, selection.kept)]
        epoch, block = place
        batches = plan_pairs(
            lengths,
            [(usable, 1.0)],
            self.data,
            self.tokenizers,
            seed=self.stream.seed,
            epoch=epoch * self.stream.order.blocks + block,
        )
        return PairBlock(
            numbers,
            (source, target),
            texts if self.keeps_texts else None,
            [np.where(rows == NO_PAIR, NO_PAIR, numbers[rows]) for rows in batches],
            left_out,
            (
                _share(source.ids, self.tokenizers.source.unk),
                _share(target.ids, self.tokenizers.target.unk),
            ),
        )


@dataclass(frozen=True)
class TextBlock:
    """The texts of a block as one stream of token ids, and its batches.

    Args:
        ids: of all texts, each framed by bos and eos.
        begins: the first token of every text.
        numbers: of the texts.
        batches: the first tokens of the windows of each batch, in the order of training.
        unknown: share of unknown tokens.
    """

    ids: Array
    begins: Indices
    numbers: Indices
    batches: list[Indices]
    unknown: float


@dataclass(frozen=True)
class TextPlanner:
    """Makes blocks of texts for a language model.

    Args:
        stream: the texts.
        tokenizer: that encodes them.
        length: tokens of a window.
        rows: windows of a batch.
    """

    stream: ShardStream
    tokenizer: TextTokenizer
    length: int
    rows: int

    def plan(self, place: BlockPlace) -> TextBlock:
        """Make a block; texts follow each other in random order.

        Raises:
            DataError: when a shard is damaged, or there is no text.
        """
        chosen = self.stream.numbers(place)
        numbers = np.unique(chosen)
        tokenizer = self.tokenizer
        parts = []
        for some in _chunks(self.stream.texts(numbers)):
            rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode_batch(some)]
            parts.append(Ragged.of(rows, id_dtype(tokenizer.size)))
        texts = Ragged.join(parts)
        bits = self.stream.bits(place)
        order = shuffle(np.searchsorted(numbers, chosen), bits)
        ids = np.concatenate(ids_of_rows(texts.ids, texts.offsets, order))
        begins = np.cumsum(np.append(0, texts.lengths[order]), dtype=np.int64)[:-1]
        starts = shuffle(np.arange(0, max(len(ids) - 1, 1), self.length, dtype=np.int64), bits)
        return TextBlock(
            ids.astype(texts.ids.dtype),
            begins,
            numbers[order],
            np.split(starts, range(self.rows, len(starts), self.rows)),
            _share(texts.ids, tokenizer.unk),
        )


def _chunks(items: Iterator[T]) -> Iterator[list[T]]:
    while some := list(itertools.islice(items, _AT_ONCE)):
        yield some


def _share(ids: Array, id: int) -> float:
    return float(np.count_nonzero(ids == id)) / max(len(ids), 1)
