"""Cross-entropy for GPUs: every place of a batch has logits, a chunk at a time; some do not count.

A processor takes the real positions out of a padded batch. On a GPU their number is not at hand
without waiting, and a loss of one shape can be part of a recorded update; so padding is computed
and its rows are multiplied by 0. Between the products a chunk is gone over by one function of few
operations, which a compiler makes into two kernels: the logits are read twice and written once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.device import full_precision, requested_dtype
from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.nn.losses import LossSums

IGNORED = -1
"""The target of a position that does not count."""


class MaskedLosses(ChunkedLosses):
    """Losses whose targets may be −1, where nothing is to be predicted.

    Args:
        compiled: whether the function between the products is compiled.
    """

    takes_padding = True

    def __init__(self, *, compiled: bool) -> None:
        self._compiled = compiled

    def smoothed_cross_entropy(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float = 0.0,
        bias: Tensor | None = None,
        softcap: float | None = None,
    ) -> LossSums:
        """See `heedful.nn.losses.smoothed_cross_entropy`; targets of −1 add nothing."""
        work = _compiled_work() if self._compiled else chunk_work
        work = functools.partial(work, smoothing=label_smoothing, softcap=softcap)
        dtype = requested_dtype(hidden)
        with full_precision(hidden):
            loss, nll = _MaskedLoss.apply(  # type: ignore[no-untyped-call]
                hidden, weight, bias, targets, work, dtype, self.elements
            )
        return LossSums(loss, nll, nll.new_zeros(()))


def chunk_work(
    logits: Tensor, targets: Tensor, smoothing: float, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of a chunk's losses, and their gradient by the logits.

    Args:
        logits: [r, V] of the products, before the cap.
        targets: [r] int64; −1 where nothing is to be predicted.
        smoothing: ε.
        softcap: of the logits, or None.

    Returns:
        Smoothed loss [] and negative log-likelihood [], float32; [r, V] as the logits.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    slope = None
    if softcap is not None:
        squashed = torch.tanh(scores / softcap)
        scores, slope = softcap * squashed, 1.0 - squashed.square()
    counts = (targets != IGNORED).to(scores.dtype)[:, None]
    right = targets.clamp(min=0)[:, None]
    log_total = scores.logsumexp(-1, keepdim=True)
    nll = (log_total - scores.gather(1, right)) * counts
    uniform = (log_total - scores.mean(-1, keepdim=True)) * counts
    loss = (1.0 - smoothing) * nll + smoothing * uniform
    pieces = torch.arange(scores.shape[1], device=scores.device)
    wanted = (1.0 - smoothing) * (pieces == right).to(scores.dtype)
    wanted = wanted + smoothing / scores.shape[1]
    gradient = (torch.exp(scores - log_total) - wanted) * counts
    if slope is not None:
        gradient = gradient * slope
    return loss.sum(), nll.sum(), gradient.to(logits.dtype)


@functools.cache
def _compiled_work() -> Callable[..., Any]:
    return torch.compile(chunk_work, fullgraph=True, dynamic=False)


class _MaskedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        work: Callable[..., tuple[Tensor, Tensor, Tensor]],
        dtype: torch.dtype,
        elements: int,
    ) -> tuple[Tensor, Tensor]:
        cast, rows = weight.to(dtype), hidden.to(dtype)
        added = None if bias is None else bias.to(dtype)
        needs = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(rows) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        wide = torch.promote_types(dtype, torch.float32)
        loss, nll = (torch.zeros((), dtype=wide, device=hidden.device) for _ in range(2))
        size = max(1, elements // (2 * weight.shape[0]))
        # Chunks of nearly one size: a last one of a few rows would be a graph of its own.
        count = -(-len(rows) // size)
        size = -(-len(rows) // count) if count else 1
        for start in range(0, len(rows), size):
            part, wanted = rows[start : start + size], targets[start : start + size]
            logits = F.linear(part, cast, added)
            part_loss, part_nll, gradient = work(logits, wanted)
            loss += part_loss
            nll += part_nll
            if grad_hidden is not None:
                torch.mm(gradient, cast, out=grad_hidden[start : start + len(part)])
            if grad_weight is not None:
                grad_weight += torch.mm(gradient.T, part)
            if grad_bias is not None:
                grad_bias += gradient.sum(0, dtype=wide)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.hidden_dtype = hidden.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden.to(ctx.hidden_dtype) * scale
        grad_weight = None if grad_weight is None else grad_weight * scale
        grad_bias = None if grad_bias is None else grad_bias * scale
        return grad_hidden, grad_weight, grad_bias, *(None,) * 4
