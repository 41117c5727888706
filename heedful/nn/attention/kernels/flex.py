"""PyTorch's `flex_attention`: a kernel compiled from a mask and biases as functions of pairs.

The kernel evaluates mask and biases for each pair while it runs: neither is ever in memory, and
blocks of pairs that the mask hides are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import AttentionRequest, shows_all, soft_cap
from heedful.nn.attention.masks import Mask, TokenPositions
from heedful.nn.positions import Positions, tokens_at

# PyTorch refuses narrower heads: a tile of the kernel's matmuls is 16 wide.
_MIN_WIDTH = 16


class Flex:
    """`flex_attention` as a compiled function of its own."""

    name = "flex"

    def unsupported(self, request: AttentionRequest) -> str | None:
        """Refuse what `flex_attention` cannot compute; it needs CUDA and has no dropout."""
        if request.device != "cuda":
            return f"it is compiled for CUDA, and the tensors are on {request.device}"
        if any(bias.of_pairs(request.q) is None for bias in request.biases):
            return "its biases are not functions of single pairs"
        if request.relative_values is not None:
            return "it adds no relative values"
        if request.dropout:
            return "it has no dropout"
        if request.positions.lineage is not None:
            return "it cannot tell continuations apart that share a row"
        if request.q.dtype == torch.float64:
            return "it has no float64"
        if min(request.q.shape[-1], request.v.shape[-1]) < _MIN_WIDTH:
            return f"it needs heads at least {_MIN_WIDTH} wide"
        return None

    def run(self, request: AttentionRequest) -> Tensor:
        """Compute attention, [B, H, Lq, Ev]; a query that sees no key gets 0."""
        with full_precision(request.q):
            output: Tensor = self.attention()(
                request.q,
                request.k,
                request.v,
                score_mod=_score(request),
                block_mask=_block_mask(request),
                scale=request.scale,
                enable_gqa=request.num_groups > 1,
            )
            return output

    def attention(self) -> Callable[..., Any]:
        """Return the function to call."""
        return _compiled()


# Imported and compiled on first use: most runs have no CUDA, and `torch.compile` loads slowly.
@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _score(request: AttentionRequest) -> Callable[..., Tensor] | None:
    """Return the function that caps a score and adds the biases; None without cap and biases."""
    cap, positions = request.softcap, request.positions
    # The cap comes first, as in the definition; `flex_attention` applies the scale before both.
    biases = [bias.of_pairs(request.q * request.scale) for bias in request.biases]
    if cap is None and len(biases) == 0:
        return None
    query_at, key_at = positions.query, positions.key

    def score(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = soft_cap(score, cap)
        # Array indices are mapped to positions, so padding and packing need no special case.
        distance = key_at[row, key] - query_at[row, query]
        for bias in biases:
            assert bias is not None
            score = score + bias(row, head, query, distance)
        return score

    return score


def _block_mask(request: AttentionRequest) -> Any:
    """Return the block mask of a request; None when all keys are visible."""
    # Packed rows are a mask like any other: a kernel for sequences side by side (`varlen`)
    # is not needed.
    if shows_all(request.positions, request.mask, request.readable):
        return None
    return block_mask(request.positions, request.mask)


def block_mask(positions: Positions, mask: Mask) -> Any:
    """Return FlexAttention's block mask, made once for all layers that share the positions.

    Args:
        positions: positions of queries and keys.
        mask: rule for the keys that a query may see.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    # The closure holds tensors and not `positions`, which will hold the result: a cycle of
    # references would keep both in memory.
    queries = TokenPositions(positions.query, positions.query_segment)
    keys = TokenPositions(positions.key, positions.key_segment)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at, seen = tokens_at(queries, (row, query)), tokens_at(keys, (row, key))
        real = (at.position >= 0) & (seen.position >= 0)
        return real & mask.sees(at, seen)

    return positions.derive(
        ("flex", mask),
        lambda: create_block_mask(
            sees,
            B=len(positions.key),
            H=None,  # masks are alike for all heads
            Q_LEN=positions.query.shape[1],
            KV_LEN=positions.key.shape[1],
            device=positions.key.device,
        ),
    )
