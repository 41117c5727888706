"""Dropout, residual sum and norm in one pass over the rows, and their gradients in another.

Each of them alone is quick arithmetic on numbers that must be fetched and put back. Where there are
kernels in C a training step fetches them once; elsewhere PyTorch's operations do the same, one by
one. Random numbers come from a seed that PyTorch's default generator draws, and are made anew for
the gradient instead of being kept.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.dropout import dropout
from heedful.nn.native.library import (
    Drop,
    Norm,
    Numbers,
    Residual,
    ResidualGradients,
    kernels,
    passes_rows,
)
from heedful.nn.native.linear import address
from heedful.nn.norms import RMSNorm

_CHUNKS = 16
"""`CHUNKS` of kernels.c."""

_KINDS = (torch.float32, torch.bfloat16)


def add_residual(
    x: Tensor, change: Tensor, probability: float, norm: nn.Module | None, training: bool
) -> Tensor:
    """x plus what a sub-layer makes of it, normed where a norm is given.

    Args:
        x: [..., D].
        change: [..., D], of which elements are dropped.
        probability: of dropping one in training.
        norm: of the sum.
        training: whether gradients are wanted and elements dropped.

    Returns:
        [..., D].
    """
    if training and _serves(norm, x, change):
        drop = _draw(probability)
        found: Tensor = _Passing.apply(x, change, *_parts(norm), drop)  # type: ignore[no-untyped-call]
        return found
    x = x + dropout(change, probability, training)
    normed: Tensor = x if norm is None else norm(x)
    return normed


def normed(x: Tensor, norm: nn.Module, training: bool) -> Tensor:
    """The norm of x [..., D], in the precision that products read it in."""
    if training and _serves(norm, x):
        found: Tensor = _Passing.apply(x, None, *_parts(norm), _draw(0.0))  # type: ignore[no-untyped-call]
        return found
    plain: Tensor = norm(x)
    return plain


def _parts(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None, float]:
    if isinstance(norm, RMSNorm):
        return norm.weight, None, norm.epsilon
    if isinstance(norm, nn.LayerNorm):
        return norm.weight, norm.bias, norm.eps
    return None, None, 0.0


def _serves(norm: nn.Module | None, *tensors: Tensor) -> bool:
    """Whether kernels in C do it."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not passes_rows(tensors[0].shape[-1]):
        return False
    weight, bias, _ = _parts(norm)
    if norm is not None and (
        weight is None
        or weight.dtype != torch.float32
        or (isinstance(norm, nn.LayerNorm) and bias is None)
    ):
        return False
    return all(t.device.type == "cpu" and t.dtype in _KINDS and t.numel() for t in tensors)


def _draw(probability: float) -> Drop:
    if not probability:
        return Drop(0, 0, 1.0)
    least = min(round(probability * 2**32), 2**32 - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return Drop(seed, least, 1.0 / (1.0 - least / 2**32))


def _numbers(tensor: Tensor | None) -> Numbers:
    if tensor is None:
        return Numbers(None, 0)
    return Numbers(tensor.data_ptr(), tensor.dtype == torch.bfloat16)


class _Passing(torch.autograd.Function):
    """With `change` its sum with x, or the norm of that; without, the norm of x alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        change: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        drop: Drop,
    ) -> Tensor:
        x, whole, statistics = x.contiguous(), x, None
        if change is not None:
            change = change.contiguous()
            whole = torch.empty_like(x, dtype=torch.promote_types(x.dtype, change.dtype))
        y = whole
        if weight is not None:
            read_by_products = change is None and torch.is_autocast_enabled("cpu")
            kind = torch.get_autocast_dtype("cpu") if read_by_products else torch.float32
            y = torch.empty_like(x, dtype=kind)
            statistics = torch.empty((x.numel() // x.shape[-1], 2))
        ctx.norm = _described_norm(weight, bias, epsilon)
        ctx.drop, ctx.kinds = drop, (x.dtype, None if change is None else change.dtype)
        kept = None if weight is None else x if change is None else whole
        ctx.save_for_backward(kept, weight, bias, statistics)
        passing = _described(whole, ctx.norm, drop, statistics)
        passing.x, passing.change = _numbers(x), _numbers(change)
        passing.y = _numbers(y)
        kernels().heedful_residual(ctypes.byref(passing))
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        whole, weight, bias, statistics = ctx.saved_tensors
        dy = gradients[0].contiguous()
        wanted = [
            torch.empty_like(dy, dtype=kind) if asked else None
            for kind, asked in zip(ctx.kinds, ctx.needs_input_grad, strict=False)
        ]
        back = ResidualGradients()
        for_weight = for_bias = partial = None
        if weight is None:
            back.sum = _numbers(dy)
            if dy.dtype == ctx.kinds[0]:
                wanted[0] = None  # it is dy itself
        else:
            back.y = _numbers(dy)
            for_weight, partial = (
                torch.empty_like(weight),
                weight.new_empty(2, _CHUNKS, len(weight)),
            )
            for_bias = None if bias is None else torch.empty_like(bias)
            back.weight, back.bias = for_weight.data_ptr(), address(for_bias)
        back.x, back.change = (_numbers(each) for each in wanted)
        passing = _described(dy if whole is None else whole, ctx.norm, ctx.drop, statistics)
        kernels().heedful_residual_back(ctypes.byref(passing), ctypes.byref(back), address(partial))
        dx, change = wanted
        if dx is None and ctx.needs_input_grad[0]:
            dx = dy
        return dx, change, for_weight, for_bias, None, None


def _described(whole: Tensor, norm: Norm | None, drop: Drop, statistics: Tensor | None) -> Residual:
    """What kernels are told of a pass whose sum, or x where nothing is added, is `whole`."""
    described = Residual(x=_numbers(whole), sum=_numbers(whole), drop=drop)
    described.rows, described.width = whole.numel() // whole.shape[-1], whole.shape[-1]
    if norm is not None:
        described.norm, described.statistics = ctypes.pointer(norm), address(statistics)
    return described


def _described_norm(weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Norm | None:
    return None if weight is None else Norm(weight.data_ptr(), address(bias), epsilon)
