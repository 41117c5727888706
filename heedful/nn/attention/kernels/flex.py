"""PyTorch's `flex_attention`, compiled for CUDA: fused, and skips the blocks that a mask hides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    clear_blind_rows,
    full_precision,
    soft_cap,
)
from heedful.nn.attention.masks import Place

name = "flex"

_MIN_WIDTH = 16


def unsupported(request: AttentionRequest) -> str | None:
    """It needs CUDA, and has neither biases nor dropout."""
    if request.q.device.type != "cuda":
        return f"it is compiled for CUDA, and the tensors are on {request.q.device.type}"
    if request.biases:
        return "its biases cannot be made block by block"
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


def run(request: AttentionRequest) -> Tensor:
    """Compile the mask and the soft cap into PyTorch's kernel."""
    return compute(request, _compiled())


def compute(request: AttentionRequest, flex_attention: Callable[..., Any]) -> Tensor:
    """The same with a given form of `flex_attention`, compiled or not."""
    cap = request.softcap

    def capped(score: Tensor, *place: Tensor) -> Tensor:
        return soft_cap(score, cap)

    with full_precision(request.q):
        output = flex_attention(
            request.q,
            request.k,
            request.v,
            score_mod=None if cap is None else capped,
            block_mask=_block_mask(request),
            scale=request.scale,
            enable_gqa=request.num_groups > 1,
        )
        return clear_blind_rows(output, request)


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _block_mask(request: AttentionRequest) -> Any:
    """Return FlexAttention's block mask: blocks to visit, keys seen in them; None when all are."""
    from torch.nn.attention.flex_attention import create_block_mask

    positions, mask = request.positions, request.mask
    if positions.shows_all(mask):
        return None

    # Tensors, not `positions`: it will hold the result, and a cycle would keep both in memory.
    queries = Place(positions.query, positions.query_segment)
    keys = Place(positions.key, positions.key_segment)

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


def _pick(places: Place, row: Tensor, index: Tensor) -> Place:
    position, segment = places
    return Place(position[row, index], None if segment is None else segment[row, index])
