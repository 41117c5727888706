"""The definition of attention, written to be read; every other kernel is tested against it."""

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
    """Return None: the definition serves every request."""
    return None


def scores(request: AttentionRequest) -> Tensor:
    """Return the scores, capped and with biases but not masked, [B, H, Lq, Lk] float32."""
    with full_precision(request.q):
        query = request.q.to(request.precision)
        # Grouped heads: consecutive query heads share a key head (Ainslie 2023).
        key = request.k.to(request.precision).repeat_interleave(request.num_groups, dim=1)
        # The cap bounds only q · k; biases keep their size.
        capped = soft_cap(request.scale * (query @ key.mT), request.softcap)
        bias = total_bias(request)
        return capped if bias is None else capped + bias


def weights(request: AttentionRequest) -> Tensor:
    """Return the weights before dropout, [B, H, Lq, Lk] float32; 0 for queries that see no key."""
    with full_precision(request.q):
        result = scores(request)
        visible = request.positions.visible(request.mask)
        # Hidden scores are finite, so that a row without any visible key has a gradient of 0.
        lowest = torch.finfo(result.dtype).min
        return torch.softmax(result.masked_fill(~visible, lowest), dim=-1) * visible


def run(request: AttentionRequest) -> Tensor:
    """Compute attention by its definition, wholly in float32."""
    with full_precision(request.q):
        dropped = F.dropout(weights(request), request.dropout)
        value = request.v.to(request.precision).repeat_interleave(request.num_groups, dim=1)
        mixed = dropped @ value
        if request.relative_values is not None:
            # Relative values use the weights after dropout, as the values do.
            mixed = mixed + request.relative_values(dropped, request.positions)
        return mixed.to(request.v.dtype)
