"""Sequences of token ids side by side as tensors, the shorter ones padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.text.tokenizer import TextTokenizer

Sequences = Sequence[Sequence[int] | npt.NDArray[np.integer]]


def source_tensors(sources: Sequences, tokenizer: TextTokenizer) -> tuple[Tensor, Tensor]:
    """Return the encoder input of sources, padded and with special tokens.

    Sources of a model trained by Heedful end in eos; an imported model may want more tokens.

    Args:
        sources: token ids of every source, without special tokens.
        tokenizer: the source's tokenizer, which gives the special tokens.

    Returns:
        Tokens [B, S] and positions [B, S], −1 for padding, both int64.
    """
    first, last = tokenizer.first, tokenizer.last
    # The usual case, without a copy of every row.
    if not first and last == (tokenizer.eos,):
        return pad(sources, tokenizer.pad, last=tokenizer.eos)
    framed = [np.concatenate([first, row, last]).astype(np.int64) for row in sources]
    return pad(framed, tokenizer.pad)


def pad(
    rows: Sequences,
    filler: int,
    *,
    first: int | None = None,
    last: int | None = None,
    padding_side: Literal["right", "left"] = "right",
) -> tuple[Tensor, Tensor]:
    """Pad rows of different lengths to one tensor.

    Args:
        rows: token ids of each row.
        filler: padding id.
        first: token to put before every row.
        last: token to put after every row.
        padding_side: side on which shorter rows are padded.

    Returns:
        Tokens [B, L] and positions [B, L], −1 for padding, both int64.
    """
    before = int(first is not None)
    after = int(last is not None)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)[:, None] + before + after
    width = int(lengths.max(initial=0))
    # Computed by whole arrays: a loop over rows would hold the GIL while other threads wait.
    positions = np.broadcast_to(np.arange(width), (len(rows), width))
    if padding_side == "left":
        positions = positions - (width - lengths)  # 0 at the first real token
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
