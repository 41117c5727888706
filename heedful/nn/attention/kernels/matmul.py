"""Plain batched matmuls: the fastest kernel for short sequences, whose scores are few."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    clear_blind_rows,
    hidden_scores,
    soft_cap,
    total_bias,
)


class Matmul:
    """Two batched matmuls with a softmax in float32 between them."""

    name = "matmul"

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Return None: it serves everything whose scores fit in memory."""
        return None

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute attention, [B, H, Lq, Ev]."""
        batch, heads, num_queries, width = request.q.shape
        kv_heads, num_keys = request.k.shape[1:3]
        # Queries of all heads that share a key head become rows of one matmul: no key is repeated.
        rows = request.num_groups * num_queries
        with full_precision(request.q):
            # Scaled before the matmul: Lq · E multiplications instead of Lq · Lk.
            q = self.operand(request.q * request.scale).reshape(batch * kv_heads, rows, width)
            k = self.operand(request.k).reshape(batch * kv_heads, num_keys, width)
            v = self.operand(request.v).reshape(batch * kv_heads, num_keys, request.v.shape[-1])
            # Not `baddbmm` with the mask as its addend: that gained at most 10 % in float32, and
            # lost in bfloat16 at short lengths (docs/design/log.md).
            scores = torch.bmm(q, k.mT).view(batch, heads, num_queries, num_keys)
            scores = soft_cap(scores.to(request.precision), request.softcap)
            # The result may be changed in place: neither a matmul nor a conversion keeps it for
            # gradients.
            for added in (total_bias(request), hidden_scores(request, scores.dtype)):
                if added is not None:
                    scores.add_(added)
            weights = self.softmax(scores).to(request.v.dtype)
            if request.dropout:
                weights = self.dropout(weights, request.dropout)
            weights = self.operand(weights)
            output = torch.bmm(weights.view(batch * kv_heads, rows, num_keys), v)
            output = output.to(request.v.dtype).view(batch, heads, num_queries, -1)
            if request.relative_values is not None:
                weights = weights.view(batch, heads, num_queries, num_keys)
                output = output + request.relative_values(weights, request.positions)
            return clear_blind_rows(output, request)

    def operand(self, x: Tensor) -> Tensor:
        """Convert an operand to the dtype of the matmul; engines override it."""
        return x

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the softmax of scores [B, H, Lq, Lk] over the keys; engines override it."""
        return torch.softmax(scores, dim=-1)

    def dropout(self, weights: Tensor, probability: float) -> Tensor:
        """Apply dropout to weights [B, H, Lq, Lk]; engines override it."""
        return F.dropout(weights, probability)
