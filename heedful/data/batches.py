"""Batches as tensors: padding, start and end tokens, positions, and BPE-dropout."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.encoded import EncodedPairs, Indices
from heedful.data.parts import rows_of
from heedful.text.pair import TokenizerPair
from heedful.text.protocol import TextTokenizer

PaddingSide = Literal["right", "left"]
Sequences = Sequence[Sequence[int] | npt.NDArray[np.integer]]


@dataclass(frozen=True)
class PairBatch:
    """Pairs side by side; B pairs, S source positions, T target positions.

    Args:
        source: source tokens, ending in eos [B, S] int64.
        source_positions: their positions, −1 for padding [B, S] int64.
        target_input: bos and the target's tokens [B, T] int64.
        target_output: the target's tokens and eos [B, T] int64.
        target_positions: positions of both, −1 for padding [B, T] int64.
        indices: numbers of the pairs [B] int64.
        target_tokens: target positions that are not padding.
    """

    source: torch.Tensor
    source_positions: torch.Tensor
    target_input: torch.Tensor
    target_output: torch.Tensor
    target_positions: torch.Tensor
    indices: torch.Tensor
    target_tokens: int

    def to(self, device: torch.device | str) -> PairBatch:
        """The same batch on another device."""
        tensors = {
            field.name: getattr(self, field.name).to(device, non_blocking=True)
            for field in fields(self)
            if field.name != "target_tokens"
        }
        return replace(self, **tensors)

    def part(self, start: int, stop: int) -> PairBatch:
        """The pairs from `start` until `stop`, padded as they were."""
        real = int((self.target_positions[start:stop] >= 0).sum())
        return rows_of(self, start, stop, target_tokens=real)


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


def make_batch(
    pairs: EncodedPairs,
    indices: Indices,
    *,
    padding_side: PaddingSide = "right",
    bpe_dropout: BpeDropout | None = None,
) -> PairBatch:
    """Put pairs side by side.

    Args:
        pairs: the encoded corpora.
        indices: numbers of the pairs [B].
        padding_side: where shorter pairs are filled up.
        bpe_dropout: encode the text anew with dropout. Sequences get longer (by about 30 % at a
            probability of 0.1), so such a batch may hold more positions than its budget.

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
    return pair_batch(sources, targets, indices, tokenizers, padding_side)


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
) -> tuple[torch.Tensor, torch.Tensor]:
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
) -> tuple[torch.Tensor, torch.Tensor]:
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
