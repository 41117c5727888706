"""Linear maps, which in training are multiplied by kernels in C where those are the fastest.

A step's time is mostly these products. Ours read the weights as they are stored, in float32, and
round them on the way where bfloat16 is asked for; they give the weights' gradients in float32, add
biases, and rectify and undo it, while sums are still in registers. So nothing is copied only to be
converted, and no plan is made for each of the ever new numbers of rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import own_products
from heedful.kernels.gemm import PackedB, gemm_transposed
from heedful.kernels.library import emulates_bf16, has_gemm

_FEWEST_ROWS = 64
"""Laying out a weight takes as long as multiplying it with some rows."""


class Linear(nn.Linear):
    """`x @ weight.T + bias`, by whatever computes it fastest."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times weight [N, K] transposed, plus bias [N]: [..., N]."""
    dtype = product_dtype(x, weight, bias)
    if dtype is None:
        return F.linear(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias, dtype)  # type: ignore[no-untyped-call]
    return found


def fed(x: Tensor, up: nn.Linear, activation: str, down: nn.Linear) -> Tensor | None:
    """`down(activation(up(x)))` of x in one step; None where that is not to be had.

    Args:
        x: [..., D].
        up: to the inner width.
        activation: `relu`, `silu`, `gelu` or `gelu_tanh`.
        down: back to D.

    Returns:
        [..., D].
    """
    if not is_plain(up, down):
        return None
    dtype = product_dtype(x, up.weight, up.bias)
    if dtype is None or product_dtype(x, down.weight, down.bias) is None:
        return None
    found: Tensor = _Fed.apply(  # type: ignore[no-untyped-call]
        x, up.weight, up.bias, activation, down.weight, down.bias, dtype
    )
    return found


def unwatched(*modules: nn.Module) -> bool:
    """Return whether modules have no hooks, which nothing calls where they are passed over."""
    return not any(
        each._forward_hooks
        or each._forward_pre_hooks
        or each._backward_hooks
        or each._backward_pre_hooks
        for each in modules
    )


def is_plain(*maps: nn.Module) -> bool:
    """Return whether maps are no more than their weights and biases, which can stand for them.

    Not one whose weight is put together, nor one that somebody hooked on to.
    """
    return all(type(each) is Linear for each in maps) and unwatched(*maps)


def asked_dtype(x: Tensor) -> torch.dtype:
    """The type that products with x are to have: autocast's, or its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product_dtype(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, fused: bool = False
) -> torch.dtype | None:
    """Return the type in which kernels in C multiply x and weight; None if they do not.

    See `product_plan`.
    """
    found = product_plan(x, weight, bias, fused=fused)
    return None if isinstance(found, str) else found


def product_plan(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, fused: bool = False
) -> torch.dtype | str:
    """Plan the product of x and weight: by kernels in C where they are faster than PyTorch.

    They are where gradients are wanted, or PyTorch would be slow without them too, and the matrices
    are large enough, unless `own_products` says that they must not.

    Args:
        x: [..., K].
        weight: [N, K].
        bias: [N] or None.
        fused: whether one call does all of a sub-layer, where smaller matrices are enough.

    Returns:
        The type in which kernels multiply, or why they do not.
    """
    if not _may_multiply(x):
        return "x is not on a processor, a graph is made, or own products are switched off"
    dtype = asked_dtype(x)
    if not torch.is_grad_enabled() and not (dtype == torch.bfloat16 and emulates_bf16()):
        return "no gradient is wanted: PyTorch is as fast"
    if not has_gemm(_name(dtype), min(weight.shape), fused=fused):
        return "they were not compiled, or are no faster for this type and width"
    for each in (weight, bias):
        if each is not None and (each.dtype != torch.float32 or not each.is_contiguous()):
            return "weight or bias is not float32 and contiguous"
    if x.dtype not in (torch.float32, dtype):
        return "x is neither float32 nor of the type of the product"
    if x.numel() < _FEWEST_ROWS * x.shape[-1]:
        return "packing the weight would take longer than multiplying so few rows"
    if weight.shape[0] % 2 or weight.shape[1] % 2:
        return "numbers are multiplied in pairs, and a side of the weight is odd"
    return dtype


def multiplied_in_one(x: Tensor) -> bool:
    """Return whether kernels in C may do all of a sub-layer of x [..., D] that is trained."""
    return _may_multiply(x) and has_gemm(_name(asked_dtype(x)), x.shape[-1], fused=True)


def _may_multiply(x: Tensor) -> bool:
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and own_products.get()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        rows = _rows(x, dtype)
        ctx.save_for_backward(rows, weight)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        return _forward(rows, weight, bias, x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        up = _rows(gradient, rows.dtype)
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = _for_input(up, weight, ctx.x_dtype).view(ctx.shape)
        for_weight, for_bias = _for_parameters(up, rows, *ctx.needs_input_grad[1:3])
        return for_x, for_weight, for_bias, None


class _Fed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        activation: str,
        down: Tensor,
        down_bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        rows = _rows(x, dtype)
        inner = rows.new_empty(len(rows), len(up))
        # A rectifier's slopes are seen in what it gives.
        slopes = None if activation == "relu" else torch.empty_like(inner)
        PackedB(up.t(), dtype).multiply(
            rows, inner, bias=up_bias, activation=activation, slopes=slopes
        )
        ctx.save_for_backward(rows, inner, slopes, up, down)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        return _forward(inner, down, down_bias, x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, inner, slopes, up, down = ctx.saved_tensors
        needs = ctx.needs_input_grad
        top = _rows(gradient, rows.dtype)
        for_down = _for_parameters(top, inner, *needs[4:6])
        for_x: Tensor | None = None
        for_up: tuple[Tensor | None, Tensor | None] = (None, None)
        if any(needs[:3]):
            gate = inner if slopes is None else None
            below = _for_input(top, down, rows.dtype, slopes=slopes, gate=gate)
            for_up = _for_parameters(below, rows, *needs[1:3])
            if needs[0]:
                for_x = _for_input(below, up, ctx.x_dtype).view(ctx.shape)
        return for_x, *for_up, None, *for_down, None


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As [R, K], side by side."""
    return x.reshape(-1, x.shape[-1]).to(dtype).contiguous()


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, shape: torch.Size) -> Tensor:
    """[R, K] to [..., N] for `shape` [..., K]; no view, which could not be changed in place."""
    out = x.new_empty(*shape[:-1], weight.shape[0])
    PackedB(weight.t(), x.dtype).multiply(x, out.view(-1, len(weight)), bias=bias)
    return out


def _for_input(
    gradient: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    *,
    slopes: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """[R, N] to [R, K]."""
    out = torch.empty(gradient.shape[0], weight.shape[1], dtype=dtype)
    return PackedB(weight, gradient.dtype).multiply(gradient, out, slopes=slopes, gate=gate)


def _for_parameters(
    gradient: Tensor, x: Tensor, weight: bool, bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a weight and a bias, where they are wanted, of those [R, N] of the result."""
    width = gradient.shape[1]
    if not weight:
        return None, gradient.sum(0, dtype=torch.float32) if bias else None
    sums = torch.empty(width) if bias else None
    return gemm_transposed(gradient, x, torch.empty(width, x.shape[1]), column_sums=sums), sums
