"""Attention of short sequences in C: products, softmax and gradients while they are at hand.

A thread works on one head of one sentence. The weights are not kept for the gradient but made anew
from what the softmax divided by, as FlashAttention does (Dao 2022).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from heedful.kernels.library import (
    address,
    array_args,
    contiguous_vectors,
    has_row_kernels,
    kernels,
)
from heedful.kernels.structs import Array, AttentionTraining, HeadTensor
from heedful.nn.attention.kernels.request import AttentionRequest, shows_all

name = "native"

LONGEST = 256
"""Queries or keys: a thread holds all scores of a head."""


def serves_width(width: int) -> bool:
    """Return whether the C code was compiled, and takes heads of this width."""
    return has_row_kernels(width)


def advantage(request: AttentionRequest) -> str | None:
    """It pays where scores are made again for the gradient."""
    return "short and learned from: scores never leave a core" if request.wants_gradient else None


def unsupported(request: AttentionRequest) -> str | None:
    """Serves plain attention of short sequences on a processor."""
    q, k, v = request.q, request.k, request.v
    if q.device.type != "cpu":
        return f"it is for processors, and the tensors are on {q.device.type}"
    if not serves_width(q.shape[3]):
        return "its C code was not compiled, or not for heads of this width"
    if v.shape[3] != q.shape[3]:
        return "values are not as wide as keys"
    if q.dtype not in (torch.float32, torch.bfloat16) or not q.dtype == k.dtype == v.dtype:
        return "it computes float32 and bfloat16"
    if request.relative_values is not None:
        return "it adds no relative values"
    if request.biases or request.softcap is not None or request.dropout:
        return "it knows no biases, soft caps or dropout"
    if max(q.shape[2], k.shape[2]) > LONGEST:
        return f"it holds at most {LONGEST} x {LONGEST} scores"
    return None


def run(request: AttentionRequest) -> Tensor:
    """Compute attention; the result lies in memory as [B, Lq, H, E]."""
    visible = None
    if not shows_all(request.positions, request.mask, request.readable):
        visible = request.positions.visible(request.mask).contiguous()
    result: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        request.q, request.k, request.v, visible, request.scale
    )
    return result


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float
    ) -> Tensor:
        q, k, v = (contiguous_vectors(each) for each in (q, k, v))
        out = _like(q)
        statistics = torch.empty(*q.shape[:2], 2, q.shape[2])
        ctx.save_for_backward(q, k, v, visible, statistics)
        ctx.scale = scale
        described = _described(q, k, v, visible, statistics, scale)
        described.out = _rows(out)
        _compute(described, back=False)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, visible, statistics = ctx.saved_tensors
        up = contiguous_vectors(gradients[0])
        result = _room_for_gradients(q, k, v)
        described = _described(q, k, v, visible, statistics, ctx.scale)
        described.out = _rows(up)
        described.grad_q, described.grad_k, described.grad_v = map(_rows, result)
        _compute(described, back=True)
        return *result, None, None


def _described(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, statistics: Tensor, scale: float
) -> AttentionTraining:
    described = AttentionTraining(_rows(q), _rows(k), _rows(v))
    described.visible = address(visible)
    if visible is not None:
        strides = visible.expand(q.shape[0], q.shape[1], -1, -1).stride()
        described.visible_batch, described.visible_head, described.visible_query, _ = strides
    described.softmax_stats, described.scale = address(statistics), scale
    described.batch, described.num_heads, described.num_queries, described.head_width = q.shape
    described.num_kv_heads, described.num_keys = k.shape[1:3]
    return described


def _compute(described: AttentionTraining, *, back: bool) -> None:
    library = kernels()
    room = torch.empty(library.heedful_attention_workspace(ctypes.byref(described)))
    described.workspace = room.data_ptr()
    library.heedful_attention(ctypes.byref(described), back)


def _rows(tensor: Tensor) -> HeadTensor:
    return HeadTensor(Array(*array_args(tensor)), *tensor.stride()[:3])


def _like(tensor: Tensor) -> Tensor:
    """Room for [B, heads, L, E] that lies in memory as products read it."""
    batch, heads, length, width = tensor.shape
    return tensor.new_empty(batch, length, heads, width).transpose(1, 2)


def _room_for_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Side by side for what a fused projection left side by side, and always for keys and values.

    Then nobody needs to copy them for the gradient of the projection.
    """
    if _neighbours(q, k) and _neighbours(k, v):
        return _together(q, k, v)
    return _like(q), *_together(k, v)


def _neighbours(left: Tensor, right: Tensor) -> bool:
    """Return whether each token's heads on the right follow those on the left in memory."""
    heads, width = left.shape[1], left.shape[3]
    return (
        left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
        and left.stride() == right.stride()
        and left.storage_offset() + heads * width == right.storage_offset()
    )


def _together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Room for tensors [B, heads, L, E] of equal lengths, the heads of a token side by side."""
    batch, _, length, width = tensors[0].shape
    heads = [each.shape[1] for each in tensors]
    room = tensors[0].new_empty(batch, length, sum(heads), width)
    return tuple(part.transpose(1, 2) for part in room.split(heads, dim=2))
