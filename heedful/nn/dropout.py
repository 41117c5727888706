"""Dropout whose random numbers cost little (Srivastava 2014).

PyTorch's processor kernel draws one random number per element. One 64-bit draw holds four 16-bit
numbers, so here it decides for four elements; the probability is met to 1/65,536.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zero each element with `probability` in training and scale the rest to keep the mean."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same shape out."""
        return dropout(x, self.probability, self.training)

    def extra_repr(self) -> str:
        return f"{self.probability}"


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of `x` (any shape) at random; the identity when not training.

    Random numbers come from PyTorch's default generator of the tensor's device, so that
    `torch.manual_seed` fixes them.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # a graph fuses PyTorch's
        return nn.functional.dropout(x, probability, training=True)
    result: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return result


def _keep_mask(x: Tensor, probability: float) -> tuple[Tensor, float]:
    """1 where an element of `x` is kept, else 0 (int8), and the share that is kept on average."""
    dropped = round(probability * _LEVELS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    draws.random_(-(2**63), None)
    levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
    keep = torch.empty(x.shape, dtype=torch.int8)
    # int16 runs from -32,768, so the lowest `dropped` values are the dropped ones. Comparing into
    # int8 is vectorised, and so are products with int8; with bool neither is (torch 2.13).
    torch.ge(levels, dropped - _LEVELS // 2, out=keep)
    return keep, 1.0 - dropped / _LEVELS


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep, share = _keep_mask(x, probability)
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / share
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient * keep).mul_(ctx.scale), None
