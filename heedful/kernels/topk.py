"""The logsumexp of long rows of logits, and the best continuations of hypotheses, in C."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.kernels.library import kernels


def supports(scores: Tensor) -> bool:
    """Return whether kernels support these logits."""
    return (
        scores.dtype == torch.float32
        and scores.device.type == "cpu"
        and scores.is_contiguous()
        and kernels() is not None
    )


def logsumexp(scores: Tensor) -> tuple[Tensor, bool]:
    """Return the logsumexp of rows of logits [..., V], float64 [...], and whether none is NaN."""
    # float64: hypotheses' log-probabilities are sums over many steps of differences from it.
    totals = torch.empty(scores.shape[:-1], dtype=torch.float64)
    rows, size = totals.numel(), scores.shape[-1]
    # A NaN anywhere in a row makes its sum NaN, so no second pass over the logits looks for one.
    no_nan = kernels().heedful_logsumexp(scores.data_ptr(), rows, size, totals.data_ptr())
    return totals, bool(no_nan)


def best_continuations(
    scores: Tensor, row_logsumexp: Tensor, so_far: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the best continuations of each sentence's hypotheses, best first; ties in order.

    Args:
        scores: [B, W, V], logits of the next token; −∞ where it is forbidden.
        row_logsumexp: [B, W] float64, logsumexp of each row.
        so_far: [B, W] float64, log-probability of each hypothesis.
        count: number of continuations C.

    Returns:
        [B, C] each: the log-probabilities of the continuations float64, −∞ where there are fewer;
        their hypotheses and tokens int64; the log-probabilities of these tokens float32.
    """
    batch, hypotheses, size = scores.shape
    # The logits are contiguous already; see `supports`.
    so_far, row_logsumexp = so_far.contiguous(), row_logsumexp.contiguous()
    totals = torch.empty((batch, count), dtype=torch.float64)
    # One allocation; each half is contiguous by itself.
    parents, tokens = torch.empty((2, batch, count), dtype=torch.int64)
    token_scores = torch.empty((batch, count))
    # 12 bytes for each of a row's best C: an int64 index and a float32 logit.
    workspace = torch.empty(12 * batch * hypotheses * min(count, size), dtype=torch.uint8)
    kernels().heedful_topk(
        *(scores.data_ptr(), row_logsumexp.data_ptr(), so_far.data_ptr()),
        *(batch, hypotheses, size, count),
        *(totals.data_ptr(), parents.data_ptr(), tokens.data_ptr(), token_scores.data_ptr()),
        workspace.data_ptr(),
    )
    return totals, parents, tokens, token_scores
