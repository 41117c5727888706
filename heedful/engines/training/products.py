"""Linear layers in training on a processor: matmuls, activations and gradients by kernels in C.

A training step is mostly matmuls, so kernels in C compute them where these are the fastest. They
read weights as they are stored, in float32, and round them to bfloat16 while packing; they write
weight gradients in float32, and add biases and apply activations and their gradients while sums are
in registers. Nothing is copied only to be converted, and no new number of rows needs a plan.
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
from heedful.kernels.library import KernelActivation, emulates_bf16, has_gemm
from heedful.nn.linear_layers import FusedLinear

_FEWEST_ROWS = 64
"""Packing a weight takes as long as multiplying it with some rows."""


class ProcessorLinear(nn.Linear):
    """A linear layer that multiplies by kernels in C or by PyTorch, whichever is faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        return linear(x, self.weight, self.bias)


class PackingLinear(ProcessorLinear):
    """The last linear map of a mixer, which packs its input in a pass without padding.

    It packs before any hook runs: under tensor parallelism hooks turn the input into a DTensor.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [B, L, K] to [B, L, N], or to [1, R, N] in a pass without padding."""
        rows = rows_in_use.get()
        result: Tensor = super().__call__(x if rows is None else rows.pack(x))
        return result


class UnpackingLinear(FusedLinear):
    """The first linear maps of a mixer, which unpack their output in a pass without padding.

    The matmul itself may be any, such as one of which this process holds a part.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map x [B, L, in_width], or [1, R, in_width] without padding, to [B, L, …] per map."""
        rows, fused = rows_in_use.get(), self.product(x)
        return self.split(fused if rows is None else rows.unpack(fused))

    def split(self, fused: Tensor) -> tuple[Tensor, ...]:
        """See `FusedLinear.split`; adjacent gradients are joined without a copy."""
        widths = list(self.out_widths.values())
        if not fused.requires_grad:
            return torch.split(fused, widths, dim=-1)
        parts: tuple[Tensor, ...] = _Split.apply(fused, widths)  # type: ignore[no-untyped-call]
        return parts


class ProcessorFusedLinear(UnpackingLinear):
    """Several maps of one input by kernels in C."""

    multiplies_by_kernels = True

    def product(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias` [..., N] of x [..., K], weight [N, K] and bias [N]."""
    dtype = product_dtype(x, weight, bias)
    if dtype is None:
        return F.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias, dtype)  # type: ignore[no-untyped-call]
    return result


def activated_pair(
    x: Tensor, up: nn.Linear, activation: KernelActivation, down: nn.Linear
) -> Tensor | None:
    """Compute `down(activation(up(x)))` as one autograd function; None where no kernel serves.

    Args:
        x: input [..., D].
        up: linear map to the inner width.
        activation: activation between the maps.
        down: linear map back to D.

    Returns:
        [..., D].
    """
    if not is_plain(up, down):
        return None
    dtype = product_dtype(x, up.weight, up.bias)
    if dtype is None or product_dtype(x, down.weight, down.bias) is None:
        return None
    result: Tensor = _ActivatedPair.apply(  # type: ignore[no-untyped-call]
        x, up.weight, up.bias, activation, down.weight, down.bias, dtype
    )
    return result


def is_plain(*maps: nn.Module) -> bool:
    """Return whether linear maps consist of their weights and biases alone.

    A map with a parametrised weight (LoRA) is not plain, nor is one with hooks.
    """
    plain = (ProcessorLinear, PackingLinear)
    return all(type(each) in plain for each in maps) and has_no_hooks(*maps)


def product_dtype(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> torch.dtype | None:
    """Return the dtype that `product_plan` chooses for kernels in C; None if PyTorch multiplies."""
    result = product_plan(x, weight, bias)
    return None if isinstance(result, str) else result


def product_plan(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, fused: bool = False
) -> torch.dtype | str:
    """Choose kernels in C for the matmul of x and weight, or say why PyTorch computes it.

    They are faster for large enough matrices if gradients are wanted, or if PyTorch emulates
    bfloat16. `own_products` switches them off.

    Args:
        x: input [..., K].
        weight: weight [N, K].
        bias: bias [N] or None.
        fused: flag that one call does a whole sub-layer, for which smaller matrices are enough.

    Returns:
        The dtype in which kernels multiply, or the reason why they do not.
    """
    if not _may_multiply(x):
        return "x is not on a processor, or own products are switched off"
    dtype = requested_dtype(x)
    # Without gradients PyTorch's matmul is as fast, except on processors without bfloat16
    # instructions, where it runs at a tenth of its float32 rate.
    if not torch.is_grad_enabled() and not (dtype == torch.bfloat16 and emulates_bf16()):
        return "no gradient is wanted: PyTorch is as fast"
    if not has_gemm(_name(dtype), min(weight.shape), fused=fused):
        return "they were not compiled, or are no faster for this type and width"
    for each in (weight, bias):
        if each is not None and (each.dtype != torch.float32 or not each.is_contiguous()):
            return "weight or bias is not float32 and contiguous"
    # The kernel converts float32 while it reads; any other dtype would need a copy.
    if x.dtype not in (torch.float32, dtype):
        return "x is neither float32 nor of the type of the product"
    if x.numel() < _FEWEST_ROWS * x.shape[-1]:
        return "packing the weight would take longer than multiplying so few rows"
    # bfloat16 instructions add two products at a time, so operands are packed in pairs.
    if weight.shape[0] % 2 or weight.shape[1] % 2:
        return "numbers are multiplied in pairs, and a side of the weight is odd"
    return dtype


def may_fuse_sublayer(x: Tensor) -> bool:
    """Return whether kernels in C may train a whole sub-layer of input x [..., D] in one call."""
    return _may_multiply(x) and has_gemm(_name(requested_dtype(x)), x.shape[-1], fused=True)


def _may_multiply(x: Tensor) -> bool:
    return x.device.type == "cpu" and own_products.get()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Results = TypeVar("Results", bound=tuple[Tensor | None, ...])


class KeptProducts:
    """Matmul results of one pass over a block, reused when the block is recomputed.

    Activation checkpointing computes a block a second time in the backward pass. Selective
    checkpointing keeps the results of matmuls with weights, which take the most time for each
    element that they leave (Korthikanti 2022). PyTorch recognises its own operations; kernels in C
    run inside autograd functions that it does not look into, so they hand their results to `kept`.
    """

    def __init__(self) -> None:
        self._results: list[tuple[Tensor | None, ...]] = []
        self._remaining: Iterator[Any] | None = None

    @contextmanager
    def used(self, *, again: bool) -> Iterator[None]:
        """A context in which kernels' results are kept, or reused by a pass that recomputes."""
        # Both passes call the kernels in the same order, so results need no names.
        self._remaining = iter(self._results) if again else None
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    def result(self, compute: Callable[[], Results]) -> Results:
        """Compute and keep a result in the first pass; return the kept one in the second."""
        if self._remaining is not None:
            results = cast("Results", next(self._remaining))
            # An operation in place would be done a second time on top of the first.
            assert all(each is None or not each._version for each in results), "changed in place"
            return _detached(results)
        results = compute()
        self._results.append(_detached(results))
        return results


_in_use: ContextVar[KeptProducts | None] = ContextVar("products in use", default=None)


def kept(compute: Callable[[], Results]) -> Results:
    """Compute tensors by kernels, without gradient, unless an earlier pass has kept them."""
    results = _in_use.get()
    return compute() if results is None else results.result(compute)


def _detached(results: Results) -> Results:
    """Return results without their graph: a result kept in its own graph would never be freed."""
    return cast("Results", tuple(None if each is None else each.detach() for each in results))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        inputs = _as_matrix(x, dtype)
        # The weight is saved as it is, in float32: the backward pass packs and rounds it again,
        # which costs less memory than a second copy of all weights.
        ctx.save_for_backward(inputs, weight)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        (out,) = kept(lambda: (_forward(inputs, weight, bias, x.shape),))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        grad_output = _as_matrix(gradient, inputs.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _input_gradient(grad_output, weight, ctx.x_dtype).view(ctx.shape)
        needs = ctx.needs_input_grad[1:3]
        grad_weight, grad_bias = _parameter_gradients(grad_output, inputs, *needs)
        return grad_x, grad_weight, grad_bias, None


class _ActivatedPair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        activation: KernelActivation,
        down: Tensor,
        down_bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        inputs = _as_matrix(x, dtype)

        def compute() -> tuple[Tensor, Tensor | None, Tensor]:
            inner = inputs.new_empty(len(inputs), len(up))
            # The slope of a ReLU follows from its output. Others are written beside the output,
            # in the same pass, since the input of the activation is never in memory.
            slopes = None if activation == "relu" else torch.empty_like(inner)
            PackedB(up.t(), dtype).multiply(
                inputs, inner, bias=up_bias, activation=activation, slopes=slopes
            )
            return inner, slopes, _forward(inner, down, down_bias, x.shape)

        inner, slopes, out = kept(compute)
        ctx.save_for_backward(inputs, inner, slopes, up, down)
        ctx.shape, ctx.x_dtype = x.shape, x.dtype
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, inner, slopes, up, down = ctx.saved_tensors
        needs = ctx.needs_input_grad
        grad_output = _as_matrix(gradient, inputs.dtype)
        grad_down = _parameter_gradients(grad_output, inner, *needs[4:6])
        grad_x: Tensor | None = None
        grad_up: tuple[Tensor | None, Tensor | None] = (None, None)
        if any(needs[:3]):
            # The kernel multiplies by the slopes, or zeros where the gate is zero (ReLU).
            gate = inner if slopes is None else None
            grad_inner = _input_gradient(grad_output, down, inputs.dtype, slopes=slopes, gate=gate)
            grad_up = _parameter_gradients(grad_inner, inputs, *needs[1:3])
            if needs[0]:
                grad_x = _input_gradient(grad_inner, up, ctx.x_dtype).view(ctx.shape)
        return grad_x, *grad_up, None, *grad_down, None


def _as_matrix(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x [..., K] as a contiguous matrix [R, K]."""
    return x.reshape(-1, x.shape[-1]).to(dtype).contiguous()


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, shape: torch.Size) -> Tensor:
    """Multiply x [R, K] by the weight; the result has the shape [..., N] for `shape` [..., K]."""
    # The shaped tensor owns its memory: autograd refuses in-place changes of a function's views.
    out = x.new_empty(*shape[:-1], weight.shape[0])
    PackedB(weight.t(), x.dtype).multiply(x, out.view(-1, len(weight)), bias=bias)
    return out


def _input_gradient(
    gradient: Tensor,
    weight: Tensor,
    dtype: torch.dtype,
    *,
    slopes: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """Map the gradient [R, N] of a linear map's result to that of its input [R, K]."""
    out = torch.empty(gradient.shape[0], weight.shape[1], dtype=dtype)
    return PackedB(weight, gradient.dtype).multiply(gradient, out, slopes=slopes, gate=gate)


def _parameter_gradients(
    gradient: Tensor, x: Tensor, weight: bool, bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a weight and a bias, where wanted, from that of the result [R, N]."""
    width = gradient.shape[1]
    if not weight:
        return None, gradient.sum(0, dtype=torch.float32) if bias else None
    # The kernel reads every element of the gradient anyway, so it sums the bias's on the way.
    sums = torch.empty(width) if bias else None
    return gemm_transposed(gradient, x, torch.empty(width, x.shape[1]), column_sums=sums), sums


class _Split(torch.autograd.Function):
    """A split along the last axis whose backward pass joins adjacent gradients without a copy."""

    @staticmethod
    def forward(ctx: Any, fused: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        return torch.split(fused, widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _joined(gradients), None


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Join parts [..., width]: without a copy if they are adjacent slices of one tensor.

    Attention in C writes the gradients of queries, keys and values side by side
    (`native_attention`).
    """
    first = parts[0]
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    at = first.storage_offset()
    for part in parts:
        # Each part must begin where the one before it ended, with the strides of the joined tensor.
        elsewhere = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if elsewhere or part.storage_offset() != at or part.stride() != strides:
            return torch.cat(parts, dim=-1)
        at += part.shape[-1]
    if torch.is_grad_enabled():  # second derivatives: `as_strided` would see the first part alone
        return torch.cat(parts, dim=-1)
    return first.as_strided(shape, strides)
