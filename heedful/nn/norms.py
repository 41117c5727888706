"""Norms of the residual stream: layer norm (Ba 2016) and RMS norm (Zhang and Sennrich 2019)."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from heedful.nn.spec import NormSpec


class RMSNorm(nn.Module):
    """Division by the root mean square, then a scale (Zhang and Sennrich 2019), in float32.

    Args:
        width: last dimension D.
        epsilon: constant added to the mean square.
        unit_offset: flag that scales by 1 + weight, as Gemma does. The offset is not added to the
            stored weight: 1 + w has fewer bits for a small w, and an export must give w back.
    """

    def __init__(self, width: int, epsilon: float = 1e-6, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))
        self.epsilon = epsilon
        self.unit_offset = unit_offset

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., D] over its last dimension; shape and dtype stay."""
        wide = x.float()  # bfloat16 would keep only 8 bits of each square
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        if self.unit_offset:  # rounded once, after the multiplication, as in Gemma
            return (wide * inverse * (1.0 + self.weight.float())).to(x.dtype)
        # Rounded before the multiplication, as in LLaMA: the order decides the last bit.
        return (wide * inverse).to(x.dtype) * self.weight

    @property
    def factor(self) -> Tensor:
        """[D], the factor on each normalised channel."""
        return 1.0 + self.weight if self.unit_offset else self.weight


def build_norm(spec: NormSpec, width: int) -> nn.Module:
    """Build the norm that a spec describes, over a last dimension of `width`."""
    if spec.kind == "rms":
        return RMSNorm(width, spec.epsilon, unit_offset=spec.unit_offset)
    return nn.LayerNorm(width, eps=spec.epsilon, bias=spec.bias)


def is_rms(norm: nn.Module | None) -> TypeGuard[RMSNorm]:
    """Return whether a norm is an RMS norm, which subtracts no mean and has no bias."""
    return isinstance(norm, RMSNorm)


def norm_parts(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None, float]:
    """Return factor, bias and epsilon of a norm; None for a factor or bias that it lacks."""
    if is_rms(norm):
        return norm.factor, None, norm.epsilon
    if isinstance(norm, nn.LayerNorm):
        return norm.weight, norm.bias, norm.eps
    return None, None, 0.0
