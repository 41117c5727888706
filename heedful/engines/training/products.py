"""Linear layers while they are trained on a processor: products, activations, gradients in C.

A step of training is mostly these products, so kernels in C multiply where they are the fastest.
They read weights as they are stored, in float32, and round them to bfloat16 on the way; they give
weight gradients in float32, and add biases, apply activations and their gradients while sums are in
registers. Nothing is copied only to be converted, and no plan is made for every new number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.device import own_products, requested_dtype
from heedful.engines.class_exchange import has_no_hooks
from heedful.engines.unpadding import rows_in_use
from heedful.kernels.gemm import PackedB, gemm_transposed
from heedful.kernels.library import emulates_bf16, has_gemm
from heedful.nn.linear_layers import FusedLinear

_FEWEST_ROWS = 64
"""Laying out a weight takes as long as multiplying it with some rows."""


class ProcessorLinear(nn.Linear):
    """`x @ weight.T + bias`, by whatever computes it fastest."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N]."""
        return linear(x, self.weight, self.bias)


class PackingLinear(ProcessorLinear):
    """The last map of a mixer, where a pass goes without its padding: its input is packed.

    Before any hook sees it: those of matrices in parts make a tensor of several processes of it.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """[B, L, K] to [B, L, N], or to [1, R, N] where rows are in use."""
        rows = rows_in_use.get()
        result: Tensor = super().__call__(x if rows is None else rows.pack(x))
        return result


class UnpackingLinear(FusedLinear):
    """The first maps of a mixer, where a pass goes without its padding: their output is unpacked.

    Their product may be any, such as one of which this process has a part.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[B, L, in_width], or [1, R, in_width] where rows are in use, to [B, L, …] per map."""
        rows, product = rows_in_use.get(), self.product(x)
        return self.split(product if rows is None else rows.unpack(product))

    def split(self, fused: Tensor) -> tuple[Tensor, ...]:
        """See `FusedLinear.split`; gradients that lie side by side are not copied to lie so."""
        widths = list(self.out_widths.values())
        if not fused.requires_grad:
            return torch.split(fused, widths, dim=-1)
        parts: tuple[Tensor, ...] = _Parts.apply(fused, widths)  # type: ignore[no-untyped-call]
        return parts


class ProcessorFusedLinear(UnpackingLinear):
    """Several maps of one input by kernels in C."""

    multiplies_by_kernels = True

    def product(self, x: Tensor) -> Tensor:
        """See `FusedLinear.product`."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times weight [N, K] transposed, plus bias [N]: [..., N]."""
    dtype = product_dtype(x, weight, bias)
    if dtype is None:
        return F.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias, dtype)  # type: ignore[no-untyped-call]
    return result


def activated_pair(x: Tensor, up: nn.Linear, activation: str, down: nn.Linear) -> Tensor | None:
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
    result: Tensor = _Fed.apply(  # type: ignore[no-untyped-call]
        x, up.weight, up.bias, activation, down.weight, down.bias, dtype
    )
    return result


def is_plain(*maps: nn.Module) -> bool:
    """Return whether maps are no more than their weights and biases.

    A map with a parametrised weight is not plain, nor one with hooks.
    """
    plain = (ProcessorLinear, PackingLinear)
    return all(type(each) in plain for each in maps) and has_no_hooks(*maps)


def product_dtype(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, fused: bool = False
) -> torch.dtype | None:
    """Return the type in which kernels in C multiply x and weight; None if they do not.

    See `product_plan`.
    """
    result = product_plan(x, weight, bias, fused=fused)
    return None if isinstance(result, str) else result


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
        return "x is not on a processor, or own products are switched off"
    dtype = requested_dtype(x)
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


def may_fuse_sublayer(x: Tensor) -> bool:
    """Return whether kernels in C may do all of a sub-layer of x [..., D] that is trained."""
    return _may_multiply(x) and has_gemm(_name(requested_dtype(x)), x.shape[-1], fused=True)


def _may_multiply(x: Tensor) -> bool:
    return x.device.type == "cpu" and own_products.get()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Results = TypeVar("Results", bound=tuple[Tensor | None, ...])


class KeptProducts:
    """Products of one pass over a block, which the same pass takes when it is computed again.

    Activation checkpointing computes a block a second time in the backward pass. Where it is
    selective, products with weights are kept: they take the most time for each number that they
    leave. PyTorch's own are operations that it can recognise; kernels in C run inside functions
    that it does not look into, so these pass what they computed through `kept`.
    """

    def __init__(self) -> None:
        self._results: list[tuple[Tensor | None, ...]] = []
        self._unread: Iterator[Any] | None = None

    @contextmanager
    def used(self, *, again: bool) -> Iterator[None]:
        """A context in which kernels' results are kept, or taken where the pass is made again.

        Args:
            again: whether this is the pass that recomputes.
        """
        self._unread = iter(self._results) if again else None
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    def result(self, compute: Callable[[], Results]) -> Results:
        """Return what the first pass computed here; in the first pass, compute it."""
        if self._unread is not None:
            results = cast("Results", next(self._unread))
            # An operation in place would be done a second time on top of the first.
            assert all(each is None or not each._version for each in results), "changed in place"
            return _apart(results)
        results = compute()
        self._results.append(_apart(results))
        return results


_in_use: ContextVar[KeptProducts | None] = ContextVar("products in use", default=None)


def kept(compute: Callable[[], Results]) -> Results:
    """Compute tensors, unless a pass before has kept them.

    Args:
        compute: of a kernel, without gradient; calls come in the same order in both passes.
    """
    results = _in_use.get()
    return compute() if results is None else results.result(compute)


def _apart(results: Results) -> Results:
    """Return the same numbers without their history: kept in it, it would keep itself alive."""
    return cast("Results", tuple(None if each is None else each.detach() for each in results))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        rows = _rows(x, dtype)
        ctx.save_for_backward(rows, weight)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        (out,) = kept(lambda: (_forward(rows, weight, bias, x.shape),))
        return out

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

        def compute() -> tuple[Tensor, Tensor | None, Tensor]:
            inner = rows.new_empty(len(rows), len(up))
            # A rectifier's slopes are seen in what it gives.
            slopes = None if activation == "relu" else torch.empty_like(inner)
            PackedB(up.t(), dtype).multiply(
                rows, inner, bias=up_bias, activation=activation, slopes=slopes
            )
            return inner, slopes, _forward(inner, down, down_bias, x.shape)

        inner, slopes, out = kept(compute)
        ctx.save_for_backward(rows, inner, slopes, up, down)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        return out

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


class _Parts(torch.autograd.Function):
    """Parts of each row. Gradients that lie side by side already are not copied to lie so."""

    @staticmethod
    def forward(ctx: Any, fused: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        return torch.split(fused, widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _side_by_side(gradients), None


def _side_by_side(parts: tuple[Tensor, ...]) -> Tensor:
    """The parts [..., width] joined: the memory that they share, if they lie in it as the whole."""
    first = parts[0]
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    at = first.storage_offset()
    for part in parts:
        elsewhere = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if elsewhere or part.storage_offset() != at or part.stride() != strides:
            return torch.cat(parts, dim=-1)
        at += part.shape[-1]
    if torch.is_grad_enabled():  # second derivatives need to know of every part
        return torch.cat(parts, dim=-1)
    return first.as_strided(shape, strides)
