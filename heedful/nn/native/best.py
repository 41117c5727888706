"""Sums of long rows of scores, and the best continuations that they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.native.library import kernels
from heedful.nn.native.linear import workspace


def serves(scores: Tensor) -> bool:
    """Whether there are kernels for such scores."""
    return (
        scores.dtype == torch.float32
        and scores.device.type == "cpu"
        and scores.is_contiguous()
        and kernels() is not None
    )


def log_totals(scores: Tensor) -> tuple[Tensor, bool]:
    """log Σ exp of each row of scores [..., V], float64: [...]; and whether all are numbers."""
    totals = torch.empty(scores.shape[:-1], dtype=torch.float64)
    size = scores.shape[-1]
    numbers = kernels().heedful_totals(scores.data_ptr(), totals.numel(), size, totals.data_ptr())
    return totals, bool(numbers)


def continuations(
    scores: Tensor, excess: Tensor, totals: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best continuations of a sentence's hypotheses, best first, of equal ones the first.

    Args:
        scores: of the next token [B, W, V]; −∞ where it is forbidden.
        excess: [B, W] float64, what they exceed the tokens' log-probabilities by.
        totals: [B, W] float64, summed log-probabilities so far.
        count: C.

    Returns:
        [B, C] each: the totals float64, −∞ where there is no further one; which hypothesis and
        which token int64; that token's log-probability float32.
    """
    batch, hypotheses, size = scores.shape
    totals, excess = totals.contiguous(), excess.contiguous()
    found = torch.empty((batch, count), dtype=torch.float64)
    parents, tokens = torch.empty((2, batch, count), dtype=torch.int64)
    token_scores = torch.empty((batch, count))
    room = workspace(12 * batch * hypotheses * min(count, size))
    kernels().heedful_candidates(
        *(scores.data_ptr(), excess.data_ptr(), totals.data_ptr()),
        *(batch, hypotheses, size, count),
        *(found.data_ptr(), parents.data_ptr(), tokens.data_ptr(), token_scores.data_ptr()),
        room.data_ptr(),
    )
    return found, parents, tokens, token_scores
