"""Dropout, residual sum and norm in one pass over the rows, and their gradients in another.

Each of them alone is quick arithmetic on numbers that must be fetched and put back. Where there are
kernels in C a training step fetches them once; elsewhere PyTorch's operations do the same, one by
one. Random numbers come from a seed that PyTorch's default generator draws, and are made anew for
the gradient instead of being kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.dropout import dropout
from heedful.nn.native.library import address, kernels, numbers, passes_rows
from heedful.nn.norms import RMSNorm

_CHUNKS = 16
"""`CHUNKS` of kernels.c."""

_LEVELS = 1 << 32
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
    if training and (norm is not None or probability) and _serves(norm, x, change):
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


def _draw(probability: float) -> tuple[int, int, float]:
    """A seed, what a random number of 32 bits below is dropped, and what is kept multiplied by."""
    if not probability:
        return 0, 0, 1.0
    least = min(round(probability * _LEVELS), _LEVELS - 1)
    return int(torch.empty((), dtype=torch.int64).random_()), least, 1.0 / (1.0 - least / _LEVELS)


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
        drop: tuple[int, int, float],
    ) -> Tensor:
        x, whole, kind = x.contiguous(), x, x.dtype
        if change is not None:
            change = change.contiguous()
            kind = torch.promote_types(kind, change.dtype)
            whole = torch.empty_like(x, dtype=kind)
        y, rows, width = whole, x.numel() // x.shape[-1], x.shape[-1]
        statistics = None
        if weight is not None:
            read_by_products = change is None and torch.is_autocast_enabled("cpu")
            kind = torch.get_autocast_dtype("cpu") if read_by_products else torch.float32
            y = torch.empty_like(x, dtype=kind)
            statistics = torch.empty((rows, 2))
            whole = x if change is None else whole
            ctx.save_for_backward(whole, weight, bias, statistics)
        ctx.drop, ctx.kinds = drop, (x.dtype, None if change is None else change.dtype)
        kernels().heedful_residual(
            rows,
            width,
            *numbers(x),
            *numbers(change),
            whole.data_ptr(),
            *numbers(y),
            address(weight),
            address(bias),
            epsilon,
            address(statistics),
            *drop,
        )
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        whole, weight, bias, statistics = ctx.saved_tensors or (None,) * 4
        up = gradients[0].contiguous()
        (asked, asked_of_change), (kind, kind_of_change) = ctx.needs_input_grad[:2], ctx.kinds
        change = torch.empty_like(up, dtype=kind_of_change) if asked_of_change else None
        x = for_weight = for_bias = partial = None
        if weight is not None:
            for_weight, partial = (
                torch.empty_like(weight),
                weight.new_empty(2 * _CHUNKS, len(weight)),
            )
            for_bias = None if bias is None else torch.empty_like(bias)
        if asked and (weight is not None or up.dtype != kind):  # else it is what comes down
            x = torch.empty_like(up, dtype=kind)
        kernels().heedful_residual_back(
            up.numel() // up.shape[-1],
            up.shape[-1],
            *numbers(up),
            *numbers(whole),
            address(weight),
            address(bias),
            address(statistics),
            *ctx.drop,
            *numbers(x),
            *numbers(change),
            address(for_weight),
            address(for_bias),
            address(partial),
        )
        return up if asked and x is None else x, change, for_weight, for_bias, None, None
