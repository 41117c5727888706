"""Norms of the residual stream: layer norm (Ba 2016) and RMS norm (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.spec import NormSpec


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale (Zhang and Sennrich 2019). Computed in float32.

    Args:
        width: D.
        epsilon: added to the mean square.
        unit_offset: scale by 1 + weight, as Gemma does. The offset is not added to the stored
            weight: 1 + w has fewer bits for a small w, and an export must give w back.
    """

    def __init__(self, width: int, epsilon: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))
        self.epsilon = epsilon
        self.unit_offset = unit_offset

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in, the same shape and dtype out."""
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        if self.unit_offset:  # rounded once, after the product, as in Gemma
            return (wide * inverse * (1.0 + self.weight.float())).to(x.dtype)
        return (wide * inverse).to(x.dtype) * self.weight

    @property
    def factor(self) -> Tensor:
        """[D], by which each normed channel is multiplied."""
        return 1.0 + self.weight if self.unit_offset else self.weight


def build_norm(spec: NormSpec, width: int) -> nn.Module:
    """The norm a spec describes, over a last axis of `width`."""
    if spec.kind == "rms":
        return RMSNorm(width, spec.epsilon, unit_offset=spec.unit_offset)
    return nn.LayerNorm(width, eps=spec.epsilon)
