"""The definition of attention, to be read. Every other kernel is proven equal to this one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    soft_cap,
    total_bias,
)

name = "reference"


def unsupported(request: AttentionRequest) -> str | None:
    """The definition serves everything."""
    return None


def scores(request: AttentionRequest) -> Tensor:
    """Scores, capped and with biases but not masked, [B, H, Lq, Lk] float32."""
    with full_precision(request.q):
        query = request.q.to(request.precision)
        key = request.k.to(request.precision).repeat_interleave(request.num_groups, dim=1)
        capped = soft_cap(request.scale * (query @ key.mT), request.softcap)
        bias = total_bias(request)
        return capped if bias is None else capped + bias


def weights(request: AttentionRequest) -> Tensor:
    """Attention weights before dropout, [B, H, Lq, Lk] float32; a blind query's row is all 0."""
    with full_precision(request.q):
        result = scores(request)
        visible = request.positions.visible(request.mask)
        # Hidden scores are finite, so that a row without any visible key has a gradient of 0.
        lowest = torch.finfo(result.dtype).min
        return torch.softmax(result.masked_fill(~visible, lowest), dim=-1) * visible


def run(request: AttentionRequest) -> Tensor:
    """Compute attention by its definition, in float32 throughout."""
    with full_precision(request.q):
        dropped = F.dropout(weights(request), request.dropout)
        value = request.v.to(request.precision).repeat_interleave(request.num_groups, dim=1)
        mixed = dropped @ value
        if request.relative_values is not None:
            mixed = mixed + request.relative_values(dropped, request.positions)
        return mixed.to(request.v.dtype)
