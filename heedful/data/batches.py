"""Batches: examples side by side as tensors, with padding, positions, start and end tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batch_plan import Indices
from heedful.data.encoded_pairs import Ids
from heedful.data.pair_corpus import Side
from heedful.data.pair_packing import NO_PAIR
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PaddingSide = Literal["right", "left"]
Sequences = Sequence[Sequence[int] | npt.NDArray[np.integer]]
OtherSource = Callable[[int], Sequence[int] | None]
"""Ids of a pair's source that stand in for those that were encoded; None for these."""


NO_TARGET = -1
"""Stands in targets where nothing is to be predicted."""


@dataclass(frozen=True)
class ExampleBatch:
    """Examples side by side: the first axis of every tensor is that of the examples."""

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device; the numbers of its examples stay where they are."""
        moved = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in tensors_of(self)
            if name != "indices"
        }
        return replace(self, **moved)

    def part(self, start: int, stop: int) -> Self:
        """The examples from `start` until `stop`, padded as they were."""
        return replace(self, **{name: tensor[start:stop] for name, tensor in tensors_of(self)})


def tensors_of(batch: DataclassInstance) -> list[tuple[str, Tensor]]:
    """The tensors of a dataclass, by name."""
    values = [(each.name, getattr(batch, each.name)) for each in fields(batch)]
    return [(name, value) for name, value in values if isinstance(value, Tensor)]


def positions_in(batch: DataclassInstance) -> int:
    """Positions of a batch on its longer side, padding counted; rows where there are no positions.

    Args:
        batch: a dataclass of tensors whose first axis is that of the rows.
    """
    shapes = [tensor.shape for _, tensor in tensors_of(batch)]
    wide = [shape[0] * shape[1] for shape in shapes if len(shape) == 2]
    return max(wide, default=shapes[0][0])


@dataclass(frozen=True)
class PairBatch(ExampleBatch):
    """Pairs side by side, or rows that hold several; B rows, S source and T target positions.

    Args:
        source: source tokens, ending in eos [B, S] int64.
        source_positions: their positions in their sentence, −1 for padding [B, S] int64.
        target_input: bos and the target's tokens [B, T] int64.
        target_output: the target's tokens and eos [B, T] int64.
        target_positions: positions of both, −1 for padding [B, T] int64.
        indices: numbers of the pairs [B] int64; of each row's pairs [B, P], −1 past the last.
        target_tokens: target positions that are not padding.
        source_segments: the pair of its row that a source token is of, counted from 0 [B, S]
            int64, −1 for padding; None where each row is one pair.
        target_segments: the same for target tokens [B, T] int64.
    """

    source: Tensor
    source_positions: Tensor
    target_input: Tensor
    target_output: Tensor
    target_positions: Tensor
    indices: Tensor
    target_tokens: int
    source_segments: Tensor | None = None
    target_segments: Tensor | None = None

    def part(self, start: int, stop: int) -> Self:
        real = int((self.target_positions[start:stop] >= 0).sum())
        return replace(super().part(start, stop), target_tokens=real)


@dataclass(frozen=True)
class RowBatch(ExampleBatch):
    """Rows of an encoder side by side.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64, counted from 0; −1 is padding.
        targets: int64, what is to be predicted: [B, L] of each token, −1 where nothing is, or [B]
            of each row.
        indices: [B] int64, numbers of the rows' first pieces in the stream.
        target_tokens: how many targets there are.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    indices: Tensor
    target_tokens: int

    def part(self, start: int, stop: int) -> Self:
        return replace(super().part(start, stop), target_tokens=_count(self.targets[start:stop]))


@dataclass(frozen=True)
class WindowBatch(ExampleBatch):
    """Windows of a stream of texts side by side; position t predicts target t.

    Args:
        ids: [B, L] int64.
        positions: [B, L] int64, counted from 0 in each text; −1 is padding.
        segments: [B, L] int64, the number of the text within the window.
        targets: [B, L] int64; −1 where nothing is to be predicted.
        indices: [B] int64, numbers of the windows' first tokens.
        target_tokens: how many targets there are.
        packed: whether a window holds parts of several texts; looked up where it is not said, as
            long as the batch is here and no device has to be asked.
        counted: whether every window is full of one text, at positions 0, 1, 2 …
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor
    indices: Tensor
    target_tokens: int
    packed: bool | None = field(default=None, kw_only=True)
    counted: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.packed is None:
            object.__setattr__(self, "packed", bool(self.segments.any()))

    def part(self, start: int, stop: int) -> Self:
        tokens = _count(self.targets[start:stop])
        return replace(super().part(start, stop), target_tokens=tokens, packed=None)


@dataclass(frozen=True)
class SegmentBatch(WindowBatch):
    """Segments of several streams of texts side by side, each what follows the one before.

    Positions are counted from 0 in the segment, and segments are the numbers of the texts among
    all, −1 for padding.

    Args:
        begins: whether the streams begin here; else each segment continues what ended before the
            token that its index names.
    """

    begins: bool


@dataclass(frozen=True)
class FramedBatch(ExampleBatch):
    """Rows of an encoder with any number of targets each; T targets in all.

    Args:
        ids: [B, L] int64, padded on the right.
        positions: [B, L] int64, counted from 0; −1 is padding.
        second: [B] int64, where each row's second text begins.
        rows: [T] int64, the row in the batch of each target.
        places: [T] int64, its place in the row.
        targets: [T] int64.
        indices: [B] int64, numbers of the rows.
    """

    ids: Tensor
    positions: Tensor
    second: Tensor
    rows: Tensor
    places: Tensor
    targets: Tensor
    indices: Tensor

    @property
    def target_tokens(self) -> int:
        return len(self.targets)

    def part(self, start: int, stop: int) -> Self:
        mine = (self.rows >= start) & (self.rows < stop)
        return replace(
            super().part(start, stop),
            rows=self.rows[mine] - start,
            places=self.places[mine],
            targets=self.targets[mine],
        )


@dataclass(frozen=True)
class BpeDropout:
    """Cutting words differently every epoch (Provilkov 2020).

    Args:
        probability: of leaving out a merge.
        seed: of the run.
        epoch: counted from 0; a pair is cut the same way whenever seed and epoch are the same.
        max_length: an encoding longer than this many tokens gives way to the plain one.
    """

    probability: float
    seed: int
    epoch: int
    max_length: int


class NumberedPairs(Protocol):
    """Pairs of which any can be had by its number."""

    @property
    def tokenizers(self) -> TokenizerPair:
        """The tokenizers that encoded them."""
        ...

    def ids_of(self, side: Side, indices: Indices) -> list[Ids]:
        """Token ids of one side of some pairs, without special tokens."""
        ...

    def text_of(self, i: int) -> tuple[str, str]:
        """Source and target of a pair."""
        ...


def make_batch(
    pairs: NumberedPairs,
    indices: Indices,
    *,
    padding_side: PaddingSide = "right",
    bpe_dropout: BpeDropout | None = None,
    other_source: OtherSource | None = None,
) -> PairBatch:
    """Put pairs side by side.

    Args:
        pairs: the encoded corpora, or a block of a stream.
        indices: numbers of the pairs [B].
        padding_side: where shorter pairs are filled up.
        bpe_dropout: encode the text anew with dropout. Sequences get longer (by about 30 % at a
            probability of 0.1), so such a batch may hold more positions than its budget.
        other_source: sources that are read instead, by the number of the pair.

    Raises:
        ConfigError: for BPE-dropout with a tokenizer that has no merges.
    """
    tokenizers = pairs.tokenizers
    numbers = np.asarray(indices, np.int64)
    sources: Sequences = pairs.ids_of("source", numbers)
    targets: Sequences = pairs.ids_of("target", numbers)
    if bpe_dropout is not None and bpe_dropout.probability > 0:
        texts = [pairs.text_of(int(i)) for i in indices]
        sources = [
            _with_dropout(tokenizers.source, text[0], plain, bpe_dropout, f"source {i}")
            for text, plain, i in zip(texts, sources, indices, strict=True)
        ]
        targets = [
            _with_dropout(tokenizers.target, text[1], plain, bpe_dropout, f"target {i}")
            for text, plain, i in zip(texts, targets, indices, strict=True)
        ]
    if other_source is not None:
        others = [other_source(int(i)) for i in indices]
        sources = [
            ids if other is None else other for ids, other in zip(sources, others, strict=True)
        ]
    return pair_batch(sources, targets, indices, tokenizers, padding_side)


def make_rows(pairs: NumberedPairs, rows: Indices, row_length: int) -> PairBatch:
    """Put several pairs into each row, sources and targets in the same order.

    Args:
        pairs: the encoded corpora, or a block of a stream.
        rows: numbers of each row's pairs [R, P], −1 past the last; a row may have none.
        row_length: positions of a row on either side.
    """
    tokenizers = pairs.tokenizers
    row = np.nonzero(rows != NO_PAIR)[0]
    numbers = rows[rows != NO_PAIR]
    shape = len(rows), row_length
    first, last = tokenizers.source.first, tokenizers.source.last
    sources = [np.concatenate([first, ids, last]) for ids in pairs.ids_of("source", numbers)]
    targets = pairs.ids_of("target", numbers)
    bos, eos = [tokenizers.target.bos], [tokenizers.target.eos]
    inputs = [np.concatenate([bos, ids]) for ids in targets]
    outputs = [np.concatenate([ids, eos]) for ids in targets]
    source_places, target_places = (_places(side, row, shape) for side in (sources, inputs))
    return PairBatch(
        source=source_places.put(sources, tokenizers.source.pad),
        source_positions=source_places.positions,
        target_input=target_places.put(inputs, tokenizers.target.pad),
        target_output=target_places.put(outputs, tokenizers.target.pad),
        target_positions=target_places.positions,
        indices=torch.from_numpy(rows),
        target_tokens=sum(map(len, inputs)),
        source_segments=source_places.segments,
        target_segments=target_places.segments,
    )


@dataclass(frozen=True)
class _Places:
    """The places of sequences that stand one after the other in rows [R, L].

    Args:
        slots: of all tokens, r · L + l.
        positions: [R, L] of the tokens in their sequences.
        segments: [R, L], the number of the sequence in its row.
    """

    slots: npt.NDArray[np.int64]
    positions: Tensor
    segments: Tensor

    def put(self, sequences: Sequences, filler: int) -> Tensor:
        """Tokens [R, L] int64, with a filler where there are none."""
        table = torch.full(self.positions.shape, filler)
        if len(self.slots):
            tokens = np.concatenate(sequences).astype(np.int64)
            table.view(-1)[self.slots] = torch.from_numpy(tokens)
        return table


def _places(sequences: Sequences, row: Indices, shape: tuple[int, int]) -> _Places:
    """Places of sequences by the row of each, ascending, in rows [R, L]."""
    lengths = np.array([len(each) for each in sequences], np.int64)
    ends, first = np.cumsum(lengths), np.searchsorted(row, row)
    begins = ends - lengths
    offsets = begins - begins[first]  # in the row
    assert not len(row) or (offsets + lengths).max() <= shape[1], "a row that is too full"
    position = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    slots = np.repeat(row * shape[1] + offsets, lengths) + position
    positions, segments = np.full((2, shape[0] * shape[1]), -1, np.int64)
    positions[slots] = position
    segments[slots] = np.repeat(np.arange(len(row)) - first, lengths)
    tables = (torch.from_numpy(each).view(shape) for each in (positions, segments))
    return _Places(slots, *tables)


def numbers_in(indices: Tensor) -> Tensor:
    """Numbers of examples [n], out of those of rows [B] or of several in each row [B, P]."""
    return indices[indices != NO_PAIR]


def pair_batch(
    sources: Sequences,
    targets: Sequences,
    indices: Indices,
    tokenizers: TokenizerPair,
    padding_side: PaddingSide = "right",
) -> PairBatch:
    """Put sources and targets side by side.

    Args:
        sources: token ids of every source, without special tokens around them.
        targets: token ids of every target, without special tokens around them.
        indices: numbers of the examples [B].
        tokenizers: for their special tokens.
        padding_side: where shorter ones are filled up.
    """
    source, source_positions = source_tensors(sources, tokenizers.source, padding_side)
    target = tokenizers.target
    target_input, target_positions = pad(
        targets, target.pad, first=target.bos, padding_side=padding_side
    )
    target_output, _ = pad(targets, target.pad, last=target.eos, padding_side=padding_side)
    return PairBatch(
        source,
        source_positions,
        target_input,
        target_output,
        target_positions,
        torch.from_numpy(np.asarray(indices, dtype=np.int64)),
        sum(len(row) + 1 for row in targets),
    )


def source_tensors(
    sources: Sequences, tokenizer: TextTokenizer, padding_side: PaddingSide = "right"
) -> tuple[Tensor, Tensor]:
    """Sources as the encoder reads them, in training and in translation: framed and padded.

    Those of a model trained here end in eos; an imported one may want more around them.

    Args:
        sources: token ids of every source, without special tokens.
        tokenizer: the source's, for its special tokens.
        padding_side: where shorter sources are filled up.

    Returns:
        Tokens [B, S] and positions [B, S], −1 for padding, both int64.
    """
    first, last = tokenizer.first, tokenizer.last
    if not first and last == (tokenizer.eos,):
        return pad(sources, tokenizer.pad, last=tokenizer.eos, padding_side=padding_side)
    framed = [np.concatenate([first, row, last]).astype(np.int64) for row in sources]
    return pad(framed, tokenizer.pad, padding_side=padding_side)


def pad(
    rows: Sequences,
    filler: int,
    *,
    first: int | None = None,
    last: int | None = None,
    padding_side: PaddingSide = "right",
) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one tensor.

    Args:
        rows: token ids.
        filler: what to fill up with.
        first: a token to put before every row.
        last: a token to put after every row.
        padding_side: where to fill up.

    Returns:
        Tokens [B, L] and positions [B, L], −1 for padding, both int64.
    """
    before = int(first is not None)
    after = int(last is not None)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)[:, None] + before + after
    width = int(lengths.max(initial=0))
    positions = np.broadcast_to(np.arange(width), (len(rows), width))
    if padding_side == "left":
        positions = positions - (width - lengths)
    real = (positions >= 0) & (positions < lengths)
    positions = np.where(real, positions, -1)
    tokens = np.full(positions.shape, filler, dtype=np.int64)
    inner = real & (positions >= before) & (positions < lengths - after)
    if inner.any():
        tokens[inner] = np.concatenate(rows)
    if first is not None:
        tokens[positions == 0] = first
    if last is not None:
        tokens[real & (positions == lengths - 1)] = last
    return torch.from_numpy(tokens), torch.from_numpy(positions)


def _with_dropout(
    tokenizer: TextTokenizer,
    text: str,
    plain: Sequence[int] | npt.NDArray[np.integer],
    dropout: BpeDropout,
    name: str,
) -> Sequence[int] | npt.NDArray[np.integer]:
    mixed = hashlib.blake2b(f"{dropout.seed} {dropout.epoch} {name}".encode(), digest_size=8)
    seed = int.from_bytes(mixed.digest(), "little")
    row = tokenizer.encode_dropout(text, dropout.probability, seed)
    return row if len(row) <= dropout.max_length else plain


def _count(targets: Tensor) -> int:
    return int((targets != NO_TARGET).sum())
