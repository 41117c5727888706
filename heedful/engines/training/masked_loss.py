"""Cross-entropy for GPUs: all positions of a batch get logits, a chunk at a time; padding counts 0.

On a processor the real positions are taken out of a padded batch. On a GPU their number is unknown
to the host without waiting, and a loss of one shape can be part of a CUDA graph, so padding is
computed and its rows are multiplied by 0. Between the matmuls one function of few operations
processes a chunk; compiled, it is two kernels that read the logits twice and write them once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.device import full_precision, requested_dtype
from heedful.engines.training.chunked_loss import ChunkedLosses, LossSettings, scaled_gradients
from heedful.nn.losses import LossSums

IGNORED = -1
"""The target of a position that does not count."""


class MaskedLosses(ChunkedLosses):
    """Losses whose targets may be −1, at positions that have nothing to predict.

    Args:
        compiled: flag that the function between the matmuls is compiled.
    """

    takes_padding = True

    elements = 1 << 29
    """Logits held at a time, 1 GB in bfloat16. Every chunk reads and writes the whole gradient of
    the weight: at a quarter of this, 10 chunks of 50,304 tokens took 3 ms more (H100)."""

    def __init__(self, *, compiled: bool) -> None:
        self._compiled = compiled

    def _sums(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: LossSettings,
    ) -> LossSums:
        if len(hidden) > 1:  # two passes (R-Drop), whose divergence needs the logits of both
            return super()._sums(hidden, weight, bias, targets, settings)
        work = _compiled_work() if self._compiled else chunk_work
        work = functools.partial(work, smoothing=settings.smoothing, softcap=settings.softcap)
        dtype = requested_dtype(hidden)
        with full_precision(hidden):
            # The gradient of `squeeze` is a view; the gradient of an index would be a copy.
            loss, nll = _MaskedLoss.apply(  # type: ignore[no-untyped-call]
                hidden.squeeze(0), weight, bias, targets, work, dtype, self.elements
            )
        return LossSums(loss, nll, nll.new_zeros(()))


def chunk_work(
    logits: Tensor, targets: Tensor, smoothing: float, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of a chunk's losses, and the gradient of the logits.

    Args:
        logits: logits [r, V] before the soft cap.
        targets: target tokens [r] int64; −1 at positions that have nothing to predict.
        smoothing: label smoothing ε.
        softcap: soft cap of the logits, or None.

    Returns:
        Smoothed loss [] and negative log-likelihood [], float32; gradient [r, V] in the logits'
        dtype.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    slope = None
    if softcap is not None:
        squashed = torch.tanh(scores / softcap)
        scores, slope = softcap * squashed, 1.0 - squashed.square()
    counts = (targets != IGNORED).to(scores.dtype)[:, None]
    # −1 is no valid index: padding gathers token 0, and `counts` removes it from every sum.
    target = targets.clamp(min=0)[:, None]
    logsumexp = scores.logsumexp(-1, keepdim=True)
    nll = (logsumexp - scores.gather(1, target)) * counts
    uniform = (logsumexp - scores.mean(-1, keepdim=True)) * counts
    loss = (1.0 - smoothing) * nll + smoothing * uniform
    # A comparison instead of a scatter: the compiler fuses it with the rest, and the smoothed
    # distribution [r, V] is never in memory.
    tokens = torch.arange(scores.shape[1], device=scores.device)
    expected = (1.0 - smoothing) * (tokens == target).to(scores.dtype)
    expected = expected + smoothing / scores.shape[1]
    gradient = (torch.exp(scores - logsumexp) - expected) * counts
    if slope is not None:
        gradient = gradient * slope
    return loss.sum(), nll.sum(), gradient.to(logits.dtype)


@functools.cache
def _compiled_work() -> Callable[..., Any]:
    compiled = torch.compile(chunk_work, fullgraph=True)

    def work(logits: Tensor, targets: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        # One graph for any number of rows, which padded batches vary; the vocabulary stays fixed.
        for rows in (logits, targets):
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        result: tuple[Tensor, Tensor, Tensor] = compiled(logits, targets, **options)
        return result

    return work


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
        cast, hidden_rows = weight.to(dtype), hidden.to(dtype)
        added = None if bias is None else bias.to(dtype)
        needs = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_rows) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] and not len(hidden) else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        wide = torch.promote_types(dtype, torch.float32)
        loss, nll = (torch.zeros((), dtype=wide, device=hidden.device) for _ in range(2))
        size = max(1, elements // (2 * weight.shape[0]))  # logits and their gradient
        # Chunks have nearly equal sizes: a small last chunk would need another graph.
        count = -(-len(hidden_rows) // size)
        size = -(-len(hidden_rows) // count) if count else 1
        for start in range(0, len(hidden_rows), size):
            states, target = hidden_rows[start : start + size], targets[start : start + size]
            logits = F.linear(states, cast, added)
            chunk_loss, chunk_nll, gradient = work(logits, target)
            loss += chunk_loss
            nll += chunk_nll
            if grad_hidden is not None:
                torch.mm(gradient, cast, out=grad_hidden[start : start + len(states)])
            if needs[1]:
                share = torch.mm(gradient.T, states)
                # The first share is not added to zeros: these are the largest tensors here.
                if grad_weight is None:
                    grad_weight = share.to(weight.dtype)
                else:
                    grad_weight += share
            if grad_bias is not None:
                grad_bias += gradient.sum(0, dtype=wide)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.hidden_dtype = hidden.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled_gradients(ctx, gradients[0]), *(None,) * 4
