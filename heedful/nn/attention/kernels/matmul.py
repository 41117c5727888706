"""Plain batched matrix products: the fastest for short sequences, whose scores are few."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.kernels.library import emulates_bf16
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    clear_blind_rows,
    full_precision,
    hidden_scores,
    soft_cap,
    total_bias,
)
from heedful.nn.dropout import dropout

name = "matmul"

_LANES = 16
"""Float32 numbers in the widest register. Shorter rows leave PyTorch's softmax unvectorised: 4.2 ms
instead of 0.3 for 16,384 rows of 15 (torch 2.13)."""


def unsupported(request: AttentionRequest) -> str | None:
    """Serves everything whose scores fit in memory."""
    return None


def run(request: AttentionRequest) -> Tensor:
    """Compute attention with two batched matrix products and a softmax in float32."""
    batch, heads, num_queries, width = request.q.shape
    kv_heads, num_keys = request.k.shape[1:3]
    # The queries of all heads that share a key head stand one below the other.
    rows = request.num_groups * num_queries
    with full_precision(request.q):
        q = _widened(request.q * request.scale).reshape(batch * kv_heads, rows, width)
        k = _widened(request.k).reshape(batch * kv_heads, num_keys, width)
        v = _widened(request.v).reshape(batch * kv_heads, num_keys, request.v.shape[-1])
        scores = torch.bmm(q, k.mT).view(batch, heads, num_queries, num_keys)
        scores = soft_cap(scores.to(request.precision), request.softcap)
        # In place is safe: neither a product nor a conversion keeps its result for the backward.
        for added in (total_bias(request), hidden_scores(request, scores.dtype)):
            if added is not None:
                scores.add_(added)
        weights = _softmax(scores).to(request.v.dtype)
        weights = _widened(dropout(weights, request.dropout, training=request.dropout > 0))
        output = torch.bmm(weights.view(batch * kv_heads, rows, num_keys), v)
        output = output.to(request.v.dtype).view(batch, heads, num_queries, -1)
        if request.relative_values is not None:
            weights = weights.view(batch, heads, num_queries, num_keys)
            output = output + request.relative_values(weights, request.positions)
        return clear_blind_rows(output, request)


def _widened(x: Tensor) -> Tensor:
    """The same numbers in float32 where PyTorch is slow with products of bfloat16."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dtype != torch.bfloat16:
        return x
    return x.float() if emulates_bf16() else x


def _softmax(scores: Tensor) -> Tensor:
    """Over the last axis; rows shorter than a register are filled up for the time being."""
    length = scores.shape[-1]
    if torch.compiler.is_compiling() or length >= _LANES or scores.device.type != "cpu":
        return torch.softmax(scores, dim=-1)
    filled = torch.nn.functional.pad(scores, (0, _LANES - length), value=-torch.inf)
    return torch.softmax(filled, dim=-1)[..., :length]
