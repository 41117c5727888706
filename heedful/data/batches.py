"""Batches: examples side by side as tensors, with padding, positions, start and end tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batch_plan import NO_PAIR, Indices
from heedful.data.padding import Sequences, pad, source_tensors
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from heedful.data.encoded_pairs import EncodedPairs
    from heedful.data.shard_blocks import PairsOfBlock

OtherSource = Callable[[int], Sequence[int] | None]
"""Function from a pair's number to the token ids of another source; None keeps the encoded one."""

NumberedPairs: TypeAlias = "EncodedPairs | PairsOfBlock"
"""Encoded pairs with access by number."""

NO_TARGET = -1
"""Target of a position without a loss."""


@dataclass(frozen=True)
class ExampleBatch:
    """A batch of examples: the first axis of every tensor is that of the examples."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device; the numbers of its examples stay in the host's memory."""
        # `indices` are read on the host: on a GPU, reading them would wait for its queue.
        moved = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in tensors_of(self)
            if name != "indices"
        }
        return replace(self, **moved)

    def part(self, start: int, stop: int) -> Self:
        """Return the examples from `start` until `stop`, padded as they were."""
        return replace(self, **{name: tensor[start:stop] for name, tensor in tensors_of(self)})


def tensors_of(batch: DataclassInstance) -> list[tuple[str, Tensor]]:
    """Return the tensors of a dataclass, by name."""
    values = [(each.name, getattr(batch, each.name)) for each in fields(batch)]
    return [(name, value) for name, value in values if isinstance(value, Tensor)]


def positions_in(batch: DataclassInstance) -> int:
    """Return the number of positions of a batch on its longer side, padding counted.

    The number of rows is returned if no tensor has two axes.

    Args:
        batch: a dataclass of tensors whose first axis is that of the rows.
    """
    shapes = [tensor.shape for _, tensor in tensors_of(batch)]
    wide = [shape[0] * shape[1] for shape in shapes if len(shape) == 2]
    return max(wide, default=shapes[0][0])


@dataclass(frozen=True)
class PairBatch(ExampleBatch):
    """Pairs as padded rows, or rows that hold several; B rows, S source and T target positions.

    Args:
        source: source tokens, ending in eos [B, S] int64.
        source_positions: positions of source tokens in their sentence, −1 for padding [B, S] int64.
        target_input: decoder input, bos and the target's tokens [B, T] int64.
        target_output: labels, the target's tokens and eos [B, T] int64; −1 for one without a loss.
        target_positions: positions of input and output, −1 for padding [B, T] int64.
        indices: numbers of the pairs [B] int64; with packed rows [B, P], −1 past a row's last.
        target_tokens: number of labels with a loss.
        source_segments: number of a source token's pair within its row, from 0 [B, S] int64, −1
            for padding; None where each row is one pair.
        target_segments: number of a target token's pair within its row [B, T] int64.
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

    @property
    def targets(self) -> Tensor:
        """Labels [B, T] int64; −1 where there is no loss."""
        return self.target_output.where(self.target_positions >= 0, NO_TARGET)

    def part(self, start: int, stop: int) -> Self:
        part = super().part(start, stop)
        # Losses are means over tokens, so each part of a split batch needs its own count.
        return replace(part, target_tokens=_count(part.targets))


@dataclass(frozen=True)
class RowBatch(ExampleBatch):
    """Padded rows for an encoder, with a target for each token or for each row.

    Args:
        ids: token ids [B, L] int64.
        positions: positions from 0 [B, L] int64; −1 is padding.
        targets: labels int64: [B, L] for each token, −1 where there is none, or [B] for each row.
        indices: numbers of the rows' first tokens in the stream [B] int64.
        target_tokens: number of targets.
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
    """Windows of a stream of texts; the token at position t predicts target t.

    Args:
        ids: token ids [B, L] int64.
        positions: positions from 0 in each text [B, L] int64; −1 is padding.
        segments: number of a token's text within the window [B, L] int64.
        targets: next tokens [B, L] int64; −1 where there is no loss.
        indices: numbers of the windows' first tokens [B] int64.
        target_tokens: number of targets.
        packed: flag that a window holds parts of several texts; None to derive it from `segments`.
        counted: flag that every window is full of one text, at positions 0, 1, 2 …
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
        if self.packed is None:  # on the host: reading it from a GPU would wait for its queue
            object.__setattr__(self, "packed", bool(self.segments.any()))

    def part(self, start: int, stop: int) -> Self:
        tokens = _count(self.targets[start:stop])
        # A part of a packed batch may hold whole texts only, so the flag is derived anew.
        return replace(super().part(start, stop), target_tokens=tokens, packed=None)


@dataclass(frozen=True)
class SegmentBatch(WindowBatch):
    """A segment of each of several streams of texts; the next batch continues every stream.

    Positions are counted from 0 in the segment. `segments` holds the numbers of the texts in the
    whole corpus, −1 for padding, so that a model's memory knows the text it came from.

    Args:
        begins: flag that the streams begin here; otherwise each segment continues the one that
            ended before the token that its index names.
    """

    begins: bool


@dataclass(frozen=True)
class FramedBatch(ExampleBatch):
    """Padded rows for an encoder with any number of targets each; T targets in all.

    Args:
        ids: token ids [B, L] int64, padded on the right.
        positions: positions from 0 [B, L] int64; −1 is padding.
        second: index of the first token of each row's second text [B] int64.
        rows: row in the batch of each target [T] int64.
        places: index in its row of each target [T] int64.
        targets: labels [T] int64.
        indices: numbers of the rows [B] int64.
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
        # `rows`, `places` and `targets` are indexed by target, not by row, so the slices of the
        # base class would be wrong.
        mine = (self.rows >= start) & (self.rows < stop)
        return replace(
            super().part(start, stop),
            rows=self.rows[mine] - start,
            places=self.places[mine],
            targets=self.targets[mine],
        )


@dataclass(frozen=True)
class BpeDropout:
    """Settings of BPE-dropout, which segments words differently every epoch (Provilkov 2020).

    Args:
        probability: probability of leaving out a merge.
        seed: seed of the run.
        epoch: number of the epoch, from 0; equal seed and epoch give equal segmentations.
        max_length: maximum number of tokens of a segmentation; the plain one replaces a longer one.
    """

    probability: float
    seed: int
    epoch: int
    max_length: int


def make_batch(
    pairs: NumberedPairs,
    indices: Indices,
    *,
    bpe_dropout: BpeDropout | None = None,
    other_source: OtherSource | None = None,
) -> PairBatch:
    """Make a padded batch of pairs.

    Args:
        pairs: the encoded corpora, or a block of a stream.
        indices: numbers of the pairs [B].
        bpe_dropout: settings for encoding the texts anew with dropout. Sequences get longer (by
            about 30 % at a probability of 0.1), so a batch may exceed its token budget.
        other_source: sources that replace the encoded ones, by the number of the pair.

    Raises:
        ConfigError: for BPE-dropout with a tokenizer that has no merges.
    """
    tokenizers = pairs.tokenizers
    # One gather for the whole batch takes 5 of an update's 140 ms on an H100 for 25,000 positions;
    # reading the memory map sentence by sentence took 28 (`transformer-big`, bfloat16).
    numbers = np.asarray(indices, np.int64)
    sources: Sequences = pairs.ids_of("source", numbers)
    targets: Sequences = pairs.ids_of("target", numbers)
    if bpe_dropout is not None and bpe_dropout.probability > 0:
        texts = [pairs.text_of(int(i)) for i in indices]
        sources, targets = (
            [
                _with_dropout(tokenizer, text[side], plain, bpe_dropout, f"{name} {i}")
                for text, plain, i in zip(texts, rows, indices, strict=True)
            ]
            for side, (name, tokenizer, rows) in enumerate(
                (("source", tokenizers.source, sources), ("target", tokenizers.target, targets))
            )
        )
    if other_source is not None:
        others = [other_source(int(i)) for i in indices]
        sources = [
            ids if other is None else other for ids, other in zip(sources, others, strict=True)
        ]
    return pair_batch(sources, targets, indices, tokenizers)


def make_rows(pairs: NumberedPairs, rows: Indices, row_length: int) -> PairBatch:
    """Put several pairs into each row, sources and targets in the same order.

    Args:
        pairs: the encoded corpora, or a block of a stream.
        rows: numbers of each row's pairs [R, P], −1 past the last; a row may be empty.
        row_length: positions of a row on either side.
    """
    tokenizers = pairs.tokenizers
    # Row of each pair, in the order of `numbers`: both index `rows` in row-major order.
    row = np.nonzero(rows != NO_PAIR)[0]
    numbers = rows[rows != NO_PAIR]
    shape = len(rows), row_length
    first, last = tokenizers.source.first, tokenizers.source.last
    sources = [np.concatenate([first, ids, last]) for ids in pairs.ids_of("source", numbers)]
    targets = pairs.ids_of("target", numbers)
    bos, eos = [tokenizers.target.bos], [tokenizers.target.eos]
    inputs = [np.concatenate([bos, ids]) for ids in targets]
    outputs = [np.concatenate([ids, eos]) for ids in targets]
    # Input and output of the decoder have equal lengths, so one set of places serves both.
    source_slots, source_positions, source_segments = _places(sources, row, shape)
    target_slots, target_positions, target_segments = _places(inputs, row, shape)

    def put(tokens: Sequences, slots: Indices, filler: int) -> Tensor:
        table = np.full(shape, filler)
        if len(slots):
            table.flat[slots] = np.concatenate(tokens)
        return torch.from_numpy(table)

    return PairBatch(
        source=put(sources, source_slots, tokenizers.source.pad),
        source_positions=source_positions,
        target_input=put(inputs, target_slots, tokenizers.target.pad),
        target_output=put(outputs, target_slots, tokenizers.target.pad),
        target_positions=target_positions,
        indices=torch.from_numpy(rows),
        target_tokens=sum(map(len, inputs)),
        source_segments=source_segments,
        target_segments=target_segments,
    )


def _places(
    sequences: Sequences, row: Indices, shape: tuple[int, int]
) -> tuple[Indices, Tensor, Tensor]:
    """Pack sequences into rows [R, L].

    Args:
        sequences: token ids of each sequence.
        row: row of each sequence, ascending.
        shape: rows R and their length L.

    Returns:
        Flat index r · L + l of every token, positions in the sequences [R, L], and numbers of the
        sequences within their rows [R, L]; −1 is padding in both.
    """
    lengths = np.array([len(each) for each in sequences], np.int64)
    # `first` is the number of the first sequence in the same row, as `row` is sorted.
    ends, first = np.cumsum(lengths), np.searchsorted(row, row)
    begins = ends - lengths
    offsets = begins - begins[first]  # offset of each sequence within its row
    assert not len(row) or (offsets + lengths).max() <= shape[1], "a row that is too full"
    position = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    slots = np.repeat(row * shape[1] + offsets, lengths) + position
    positions, segments = np.full((2, shape[0] * shape[1]), -1, np.int64)
    positions[slots] = position
    segments[slots] = np.repeat(np.arange(len(row)) - first, lengths)
    return slots, torch.from_numpy(positions).view(shape), torch.from_numpy(segments).view(shape)


def numbers_in(indices: Tensor) -> Tensor:
    """Return the numbers of the examples of a batch [n], without the padding of packed rows.

    Args:
        indices: `PairBatch.indices`, [B] or [B, P].
    """
    return indices[indices != NO_PAIR]


def pair_batch(
    sources: Sequences, targets: Sequences, indices: Indices, tokenizers: TokenizerPair
) -> PairBatch:
    """Make a padded batch of sources and targets.

    Args:
        sources: token ids of every source, without special tokens around them.
        targets: token ids of every target, without special tokens around them.
        indices: numbers of the examples [B].
        tokenizers: tokenizers that give the special tokens.
    """
    source, source_positions = source_tensors(sources, tokenizers.source)
    target = tokenizers.target
    target_input, target_positions = pad(targets, target.pad, first=target.bos)
    target_output, _ = pad(targets, target.pad, last=target.eos)
    return PairBatch(
        source,
        source_positions,
        target_input,
        target_output,
        target_positions,
        torch.from_numpy(np.asarray(indices, dtype=np.int64)),
        sum(len(row) + 1 for row in targets),  # one more for the end token
    )


def _with_dropout(
    tokenizer: TextTokenizer,
    text: str,
    plain: Sequence[int] | npt.NDArray[np.integer],
    dropout: BpeDropout,
    name: str,
) -> Sequence[int] | npt.NDArray[np.integer]:
    # A seed for each sentence and epoch, so the draw depends neither on the batch nor on its order.
    mixed = hashlib.blake2b(f"{dropout.seed} {dropout.epoch} {name}".encode(), digest_size=8)
    seed = int.from_bytes(mixed.digest(), "little")

    row = tokenizer.encode_dropout(text, dropout.probability, seed)
    return row if len(row) <= dropout.max_length else plain


def _count(targets: Tensor) -> int:
    return int((targets != NO_TARGET).sum())
