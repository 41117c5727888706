"""Blocks of streamed examples: each is read, tokenised and cut into batches independently.

Nothing here needs PyTorch, since processes that only tokenise load this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from heedful.data.array_store import Array
from heedful.data.batch_plan import NO_PAIR, Indices, nothing_shown, shuffle, tempered
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.encoded_pairs import (
    Ids,
    Ragged,
    encode_pairs,
    id_dtype,
    plan_pairs,
    select_rows,
    unknown_share,
)
from heedful.data.pair_corpus import SIDES, Side
from heedful.data.shard_folder import Kind, ShardFolder, open_shards
from heedful.data.shard_order import ShardOrder
from heedful.data.text_file import chunks
from heedful.errors import DataError
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

_AT_ONCE = 4096
"""Texts that are tokenised in one call: more would only take more memory."""

T_co = TypeVar("T_co", covariant=True)


class BlockPlace(NamedTuple):
    """The number of an epoch and of a block in it, both from 0."""

    epoch: int
    block: int


class Planner(Protocol[T_co]):
    """A maker of blocks, which is pickled and sent to worker processes."""

    def plan(self, place: BlockPlace) -> T_co:
        """Make the block of a place, a function of the place alone."""
        ...


class ShardStream:
    """The examples of shard folders, block by block.

    Args:
        specs: shard folders and their weights.
        kind: kind of the examples.
        data: size of a block, and number of shards that are shuffled together.
        seed: seed of the run.

    Raises:
        DataError: when a folder cannot be used, or the weights leave no example.
    """

    def __init__(self, specs: Sequence[CorpusSpec], kind: Kind, data: DataSpec, seed: int) -> None:
        self.folders = open_shards(specs, kind)
        given = [spec.weight for spec in specs]
        self.weights = tempered([len(each) for each in self.folders], given, data.temperature)
        # Blocks have equal shares of each corpus, so their bytes are only equal on average.
        shown = zip(self.weights, self.folders, strict=True)
        text_bytes = sum(weight * folder.text_bytes for weight, folder in shown)
        self.order = ShardOrder(
            [folder.starts for folder in self.folders],
            self.weights,
            # The number of blocks follows from the index, so no shard is read to plan an epoch.
            blocks=max(1, round(text_bytes / (data.block_mb * 1e6))),
            shuffle_shards=data.shuffle_shards,
            seed=seed,
        )
        if not len(self.order):
            raise nothing_shown()
        self.seed = seed

    @property
    def fingerprint(self) -> str:
        """A text that identifies shards and weights."""
        parts = zip(self.folders, self.weights, strict=True)
        return " ".join(f"{folder.fingerprint} {weight!r}" for folder, weight in parts)

    def line_of(self, number: int) -> str:
        """Return the location of an example as "file:line"."""
        folder, local = self._locate(number)
        return folder.line_of(local)

    def numbers(self, place: BlockPlace) -> Indices:
        """Return the numbers of a block's examples, with repetitions if the weight is above 1.

        Raises:
            DataError: when the block is empty.
        """
        numbers = self.order.block(*place)
        if not len(numbers):
            raise self.nothing_left({})
        return numbers

    def pairs(self, numbers: Indices) -> Iterator[tuple[str, str]]:
        """Yield pairs by ascending numbers; each shard is read once."""
        for folder, shard, rows in self._rows(numbers):
            yield from folder.pairs(shard, rows)

    def texts(self, numbers: Indices) -> Iterator[str]:
        """Yield texts by ascending numbers; each shard is read once."""
        for folder, shard, rows in self._rows(numbers):
            yield from folder.texts(shard, rows)

    def sample(self, count: int) -> Iterator[Indices]:
        """Yield ascending numbers of about the run's first `count` examples, block by block."""
        for block in range(self.order.blocks):
            numbers = self.numbers(BlockPlace(0, block))[:count]
            yield np.unique(numbers)
            count -= len(numbers)
            if count <= 0:
                return

    def bits(self, place: BlockPlace) -> np.random.PCG64:
        """Make the generator of a block's random bits."""
        # A generator for each block: no state is carried from one block to the next.
        return np.random.PCG64(np.random.SeedSequence([self.seed, *place]))

    def nothing_left(self, left_out: dict[str, tuple[int, int]]) -> DataError:
        """Make the error for a block of which no example can be used.

        Args:
            left_out: count of the examples by reason, and the number of the first one.
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
            # Example numbers count through all corpora; `mine` are numbers within one folder, from
            # 0.
            mine = numbers[(numbers >= base) & (numbers < base + len(folder))] - base
            shards = np.searchsorted(folder.starts, mine, side="right") - 1
            for shard in np.unique(shards).tolist():
                yield folder, shard, (mine[shards == shard] - folder.starts[shard]).tolist()


@dataclass(frozen=True)
class PairBlock:
    """The pairs of a block as token ids, and its batches.

    Args:
        numbers: numbers of the pairs, ascending.
        sides: token ids of the sources and of the targets, in that order.
        texts: texts of the pairs for BPE-dropout, otherwise None.
        batches: pair numbers of each batch, [B] or packed rows [R, P].
        left_out: count of the unusable pairs by reason, and the number of the first one.
        unknown: share of unknown tokens of sources and of targets.
    """

    numbers: Indices
    sides: tuple[Ragged, Ragged]
    texts: list[tuple[str, str]] | None
    batches: list[Indices]
    left_out: dict[str, tuple[int, int]]
    unknown: tuple[float, float]

    @property
    def real_positions(self) -> int:
        """Positions of sources and targets in the batches, with one end token each."""
        shown = np.concatenate([rows[rows != NO_PAIR] for rows in self.batches])
        places = np.searchsorted(self.numbers, shown)
        return sum(int((side.lengths[places] + 1).sum()) for side in self.sides)


@dataclass(frozen=True)
class PairsOfBlock:
    """Access to the pairs of a block by their numbers.

    Args:
        block: block of pairs.
        tokenizers: tokenizers that encoded the block.
    """

    block: PairBlock
    tokenizers: TokenizerPair

    def ids_of(self, side: Side, indices: Indices) -> list[Ids]:
        """Return the token ids of one side of some pairs, without special tokens."""
        ragged = self.block.sides[SIDES.index(side)]
        # `numbers` is ascending and holds every index, so the search finds the exact place.
        rows = np.searchsorted(self.block.numbers, indices)
        return ragged.rows(rows)

    def text_of(self, i: int) -> tuple[str, str]:
        """Return the source and target of pair i."""
        assert self.block.texts is not None
        return self.block.texts[int(np.searchsorted(self.block.numbers, i))]


@dataclass(frozen=True)
class PairPlanner:
    """A planner of blocks of sentence pairs.

    Args:
        stream: stream of pairs.
        tokenizers: tokenizers of both sides.
        data: limits on pairs, token budget and size of pools.
        keeps_texts: flag that blocks hold the texts, too.
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
        # A pair that a weight shows twice is tokenised once.
        numbers = np.unique(chosen)
        texts: list[tuple[str, str]] = []
        empty: list[tuple[bool, bool]] = []
        parts: list[tuple[Ragged, Ragged]] = []
        types = [id_dtype(t.size) for t in (self.tokenizers.source, self.tokenizers.target)]
        # Each chunk becomes arrays at once: Python's lists of ids take several times the memory.
        for some in chunks(self.stream.pairs(numbers), _AT_ONCE):
            rows = encode_pairs(some, self.tokenizers)
            source, target = (Ragged.of(*each) for each in zip(rows, types, strict=True))
            parts.append((source, target))
            # Blank sides are found by text, not by ids: white space may have a token.
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
        # Back to the multiplicity of `chosen`, without the pairs that were left out.
        rows_of_chosen = np.searchsorted(numbers, chosen)
        usable = rows_of_chosen[np.isin(rows_of_chosen, selection.kept)]
        epoch, block = place
        batches = plan_pairs(
            lengths,
            [(usable, 1.0)],
            self.data,
            self.tokenizers,
            seed=self.stream.seed,
            # Blocks of all epochs are numbered consecutively, so each has a shuffle of its own.
            epoch=epoch * self.stream.order.blocks + block,
        )
        return PairBlock(
            numbers,
            (source, target),
            texts if self.keeps_texts else None,
            # Rows of this block become token numbers in the stream; the padding of packed rows
            # stays.
            [np.where(rows == NO_PAIR, NO_PAIR, numbers[rows]) for rows in batches],
            left_out,
            (
                unknown_share(source.ids, self.tokenizers.source.unk),
                unknown_share(target.ids, self.tokenizers.target.unk),
            ),
        )


@dataclass(frozen=True)
class TextBlock:
    """The texts of a block as one sequence of token ids, and its batches.

    Args:
        ids: token ids of all texts, each between bos and eos.
        begins: index in `ids` of every text's first token.
        numbers: numbers of the texts in the stream.
        batches: first tokens of the windows of each batch, in the order of training.
        unknown: share of unknown tokens.
    """

    ids: Array
    begins: Indices
    numbers: Indices
    batches: list[Indices]
    unknown: float


@dataclass(frozen=True)
class TextPlanner:
    """A planner of blocks of texts for a language model.

    Args:
        stream: stream of texts.
        tokenizer: tokenizer of the texts.
        length: length of a window in tokens.
        rows: number of windows of a batch.
    """

    stream: ShardStream
    tokenizer: TextTokenizer
    length: int
    rows: int

    def plan(self, place: BlockPlace) -> TextBlock:
        """Make a block of texts in random order.

        Raises:
            DataError: when a shard is damaged, or the block is empty.
        """
        chosen = self.stream.numbers(place)
        numbers = np.unique(chosen)
        tokenizer = self.tokenizer
        parts = []
        for some in chunks(self.stream.texts(numbers), _AT_ONCE):
            rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode_batch(some)]
            parts.append(Ragged.of(rows, id_dtype(tokenizer.size)))
        # Texts are read in the order of `numbers`; `order` below repeats and shuffles them.
        texts = Ragged.join(parts)
        bits = self.stream.bits(place)
        # Shards were read in ascending order; a window holds texts that are not neighbours there.
        order = shuffle(np.searchsorted(numbers, chosen), bits)
        ids = np.concatenate(texts.rows(order))
        begins = np.cumsum(np.append(0, texts.lengths[order]), dtype=np.int64)[:-1]
        # The last token is only a target, so no window begins with it.
        starts = shuffle(np.arange(0, max(len(ids) - 1, 1), self.length, dtype=np.int64), bits)
        return TextBlock(
            ids.astype(texts.ids.dtype),
            begins,
            numbers[order],
            np.split(starts, range(self.rows, len(starts), self.rows)),
            unknown_share(texts.ids, tokenizer.unk),
        )
