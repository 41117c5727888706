"""Label-smoothed cross-entropy fused with the output projection.

The logits of a batch are its largest tensor by far (8,192 positions × 10,000 pieces are 328 MB in
float32). Here they exist only a chunk of rows at a time: the forward pass computes each chunk's
loss and, at once, its gradient. Padding never gets logits because only real positions are given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 22
"""Logits held at a time: 16 MB in float32, about what a processor's last-level cache holds."""


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss of predicting `targets` from `hidden @ weight.T + bias` (Szegedy 2016).

    The smoothed target gives 1 − ε to the right piece and ε/V to every piece, the right one too.

    Args:
        hidden: [n, D] at real positions only.
        weight: [V, D] output projection.
        targets: [n] int64 in [0, V).
        label_smoothing: ε, the share of the target spread over the vocabulary.
        bias: [V] or None.

    Returns:
        The smoothed loss, differentiable, and the plain negative log-likelihood, for reporting;
        both summed over positions, in nats, float32.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = hidden.dtype
    with torch.autocast(device, enabled=False):
        loss, nll = _FusedLoss.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, targets, label_smoothing, dtype
        )
    return loss, nll


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        low_hidden, low_weight = hidden.to(dtype), weight.to(dtype)
        low_bias = None if bias is None else bias.to(dtype)
        needs = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(low_hidden) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        nll = torch.zeros_like(loss)
        rows = max(1, _CHUNK_ELEMENTS // weight.shape[0])
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            logits = torch.nn.functional.linear(low_hidden[part], low_weight, low_bias)
            log_probs = torch.log_softmax(logits, dim=-1, dtype=wide)
            right = targets[part, None]
            right_sum = log_probs.gather(1, right).sum()
            nll -= right_sum
            loss -= (1.0 - label_smoothing) * right_sum
            if label_smoothing:
                loss -= label_smoothing * log_probs.mean(-1).sum()
            if not any(needs):
                continue
            grad = log_probs.exp_()
            if label_smoothing:
                grad -= label_smoothing / weight.shape[0]
            grad.scatter_add_(1, right, grad.new_full(right.shape, label_smoothing - 1.0))
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            low_grad = grad.to(dtype)
            if grad_hidden is not None:
                torch.mm(low_grad, low_weight, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight += low_grad.T @ low_hidden[part]
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
        return grad_hidden, grad_weight, grad_bias, None, None, None
