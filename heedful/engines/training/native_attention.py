"""Attention of short sequences in C: matmuls, softmax and gradients in one core's own cache.

A thread computes one head of one sentence, in bands of eight queries. Attention weights are not
kept for the gradient but recomputed from each query's maximum and sum, as in FlashAttention
(Dao 2022), so memory does not grow with the square of the length.
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
"""Most queries or keys of a sequence: a thread holds all scores of a head."""


def advantage(request: AttentionRequest) -> str | None:
    """Return the reason for preferring this kernel in training; None without gradients."""
    return "short and learned from: scores never leave a core" if request.wants_gradient else None


def unsupported(request: AttentionRequest) -> str | None:
    """Say why the kernel does not serve; None for plain, short attention on a processor."""
    q, k, v = request.q, request.k, request.v
    if q.device.type != "cpu":
        return f"it is for processors, and the tensors are on {q.device.type}"
    if not has_row_kernels(q.shape[3]):
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
        # Strides between heads and tokens may be any: a fused projection needs no copy of its
        # parts. Only the elements of one head must be adjacent.
        q, k, v = (contiguous_vectors(each) for each in (q, k, v))
        out = _empty_like(q)
        statistics = torch.empty(*q.shape[:2], 2, q.shape[2])  # largest score, 1 / Σ exp
        ctx.save_for_backward(q, k, v, visible, statistics)
        ctx.scale = scale
        args = _make_args(q, k, v, visible, statistics, scale)
        args.out = _head_tensor(out)
        _run_kernel(args, back=False)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, visible, statistics = ctx.saved_tensors
        grad_output = contiguous_vectors(gradients[0])
        result = _empty_gradients(q, k, v)
        args = _make_args(q, k, v, visible, statistics, ctx.scale)
        # The backward pass reads the gradient of the output where the forward pass wrote it.
        args.out = _head_tensor(grad_output)
        args.grad_q, args.grad_k, args.grad_v = map(_head_tensor, result)
        _run_kernel(args, back=True)
        return *result, None, None


def _make_args(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, statistics: Tensor, scale: float
) -> AttentionTraining:
    args = AttentionTraining(_head_tensor(q), _head_tensor(k), _head_tensor(v))
    args.visible = address(visible)
    if visible is not None:
        # Expanded axes have a stride of 0, so one mask serves all heads or all sentences.
        strides = visible.expand(q.shape[0], q.shape[1], -1, -1).stride()
        args.visible_batch, args.visible_head, args.visible_query, _ = strides
    args.softmax_stats, args.scale = address(statistics), scale
    args.batch, args.num_heads, args.num_queries, args.head_width = q.shape
    args.num_kv_heads, args.num_keys = k.shape[1:3]
    return args


def _run_kernel(args: AttentionTraining, *, back: bool) -> None:
    library = kernels()
    # Sizes are in float32 elements here, unlike in the kernels that count bytes.
    workspace = torch.empty(library.heedful_attention_workspace(ctypes.byref(args)))
    args.workspace = workspace.data_ptr()
    library.heedful_attention(ctypes.byref(args), back)


def _head_tensor(tensor: Tensor) -> HeadTensor:
    return HeadTensor(Array(*array_args(tensor)), *tensor.stride()[:3])


def _empty_like(tensor: Tensor) -> Tensor:
    """Make a tensor [B, heads, L, E] that lies as [B, L, heads, E], as matmuls read it."""
    batch, heads, length, width = tensor.shape
    return tensor.new_empty(batch, length, heads, width).transpose(1, 2)


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Make gradients of q, k and v, adjacent in memory if a fused projection made these adjacent.

    The backward pass of the projection then takes them without a copy. Keys and values always come
    from one projection.
    """
    if _are_adjacent(q, k) and _are_adjacent(k, v):
        return _empty_adjacent(q, k, v)
    # In cross-attention q comes from another projection than k and v.
    return _empty_like(q), *_empty_adjacent(k, v)


def _are_adjacent(left: Tensor, right: Tensor) -> bool:
    """Return whether each token's heads of `right` follow those of `left` in memory."""
    heads, width = left.shape[1], left.shape[3]
    return (
        left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
        and left.stride() == right.stride()
        and left.storage_offset() + heads * width == right.storage_offset()
    )


def _empty_adjacent(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Make tensors [B, heads, L, E] of equal lengths in which a token's heads are adjacent."""
    batch, _, length, width = tensors[0].shape
    heads = [each.shape[1] for each in tensors]
    fused = tensors[0].new_empty(batch, length, sum(heads), width)
    return tuple(part.transpose(1, 2) for part in fused.split(heads, dim=2))
