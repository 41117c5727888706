"""PyTorch's `flex_attention`: a kernel made of a mask and of biases, which are functions of pairs.

A mask and a bias are asked for single pairs while the kernel runs: neither is ever in memory, and
blocks of pairs that the mask hides are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.device import full_precision
from heedful.nn.attention.kernels.request import AttentionRequest, is_causal, shows_all, soft_cap
from heedful.nn.attention.masks import Mask, TokenPositions
from heedful.nn.positions import Positions

_MIN_WIDTH = 16


class Flex:
    """`flex_attention` compiled by itself."""

    name = "flex"

    def unsupported(self, request: AttentionRequest) -> str | None:
        """It needs CUDA, and has no dropout."""
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
        """Compute [B, H, Lq, Ev]; a query that sees nothing gets 0."""
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
        """Return PyTorch's function."""
        return _compiled()


class InlineFlex(Flex):
    """`flex_attention` as a part of a larger graph, whose compiler makes the kernel."""

    def advantage(self, request: AttentionRequest) -> str | None:
        """It pays wherever a mask or a bias would be made in memory for another kernel."""
        plain = shows_all(request.positions, request.mask, request.readable) or is_causal(request)
        if plain and len(request.biases) == 0 and request.softcap is None:
            return None
        return "mask, biases and cap are made in the kernel, and hidden blocks are skipped"

    def attention(self) -> Callable[..., Any]:
        """See `Flex.attention`."""
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _score(request: AttentionRequest) -> Callable[..., Tensor] | None:
    """Return the change of a score: its cap, then the biases; None for none."""
    cap, positions = request.softcap, request.positions
    biases = [bias.of_pairs(request.q * request.scale) for bias in request.biases]
    if cap is None and len(biases) == 0:
        return None
    query_at, key_at = positions.query, positions.key

    def score(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = soft_cap(score, cap)
        distance = key_at[row, key] - query_at[row, query]
        for bias in biases:
            assert bias is not None
            score = score + bias(row, head, query, distance)
        return score

    return score


def _block_mask(request: AttentionRequest) -> Any:
    """Return the blocks to visit and the rule for pairs in them; None when all are visible."""
    if shows_all(request.positions, request.mask, request.readable):
        return None
    return block_mask(request.positions, request.mask)


def block_mask(positions: Positions, mask: Mask) -> Any:
    """Return FlexAttention's block mask, made once for all layers that share the positions.

    Args:
        positions: of queries and keys.
        mask: who may see whom.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    # Tensors, not `positions`: it will hold the result, and a cycle would keep both in memory.
    queries = TokenPositions(positions.query, positions.query_segment)
    keys = TokenPositions(positions.key, positions.key_segment)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_place, key_place = _pick(queries, row, query), _pick(keys, row, key)
        real = (query_place.position >= 0) & (key_place.position >= 0)
        return real & mask.sees(query_place, key_place)

    return positions.derive(
        ("flex", mask),
        lambda: create_block_mask(
            sees,
            B=len(positions.key),
            H=None,
            Q_LEN=positions.query.shape[1],
            KV_LEN=positions.key.shape[1],
            device=positions.key.device,
        ),
    )


def _pick(places: TokenPositions, row: Tensor, index: Tensor) -> TokenPositions:
    position, segment = places
    return TokenPositions(position[row, index], None if segment is None else segment[row, index])
