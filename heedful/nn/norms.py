"""Normalisation of a vector by its own statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.spec import NormSpec


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale (Zhang and Sennrich 2019). Computed in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in, the same shape and dtype out."""
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * inverse).to(x.dtype) * self.weight


def norm_parts(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None, float]:
    """Weight, bias and epsilon of a norm, as far as it has them."""
    if isinstance(norm, RMSNorm):
        return norm.weight, None, norm.epsilon
    if isinstance(norm, nn.LayerNorm):
        return norm.weight, norm.bias, norm.eps
    return None, None, 0.0


def build_norm(spec: NormSpec, width: int) -> nn.Module:
    """The norm a spec describes, over a last axis of `width`."""
    if spec.kind == "rms":
        return RMSNorm(width, spec.epsilon)
    return nn.LayerNorm(width, eps=spec.epsilon)
