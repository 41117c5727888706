"""Log-sum-exp of long rows of scores, and the best continuations of hypotheses, in C."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.kernels.library import kernels


def supports(scores: Tensor) -> bool:
    """Return whether kernels serve such scores."""
    return (
        scores.dtype == torch.float32
        and scores.device.type == "cpu"
        and scores.is_contiguous()
        and kernels() is not None
    )


def logsumexp(scores: Tensor) -> tuple[Tensor, bool]:
    """Log-sum-exp of each row of scores [..., V], float64 [...]; and whether none is NaN."""
    totals = torch.empty(scores.shape[:-1], dtype=torch.float64)
    rows, size = totals.numel(), scores.shape[-1]
    no_nan = kernels().heedful_logsumexp(scores.data_ptr(), rows, size, totals.data_ptr())
    return totals, bool(no_nan)


def best_continuations(
    scores: Tensor, log_totals: Tensor, so_far: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best continuations of each sentence's hypotheses, best first; of equal ones the first.

    Args:
        scores: of the next token [B, W, V]; −∞ where it is forbidden.
        log_totals: [B, W] float64, log-sum-exp of each row.
        so_far: [B, W] float64, each hypothesis's summed log-probability.
        count: C.

    Returns:
        [B, C] each: totals float64, −∞ where there are fewer continuations; the hypothesis and
        the token int64; the token's log-probability float32.
    """
    batch, hypotheses, size = scores.shape
    so_far, log_totals = so_far.contiguous(), log_totals.contiguous()
    totals = torch.empty((batch, count), dtype=torch.float64)
    parents, tokens = torch.empty((2, batch, count), dtype=torch.int64)
    token_scores = torch.empty((batch, count))
    workspace = torch.empty(12 * batch * hypotheses * min(count, size), dtype=torch.uint8)
    kernels().heedful_topk(
        *(scores.data_ptr(), log_totals.data_ptr(), so_far.data_ptr()),
        *(batch, hypotheses, size, count),
        *(totals.data_ptr(), parents.data_ptr(), tokens.data_ptr(), token_scores.data_ptr()),
        workspace.data_ptr(),
    )
    return totals, parents, tokens, token_scores
