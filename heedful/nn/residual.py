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
from heedful.nn.norms import norm_parts

_CHUNKS = 16
"""`CHUNKS` of kernels.c."""

_LEVELS = 1 << 32
_KINDS = (torch.float32, torch.bfloat16)

Draw = tuple[int, int, float]
"""What decides what is dropped: see `draw`."""


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
    if training and (norm is not None or probability) and passes_through(norm, x, change):
        drop, norm_last = draw(probability), norm is not None
        whole, y = _Passing.apply(x, change, *norm_parts(norm), drop, norm_last)  # type: ignore[no-untyped-call]
        found: Tensor = y if norm_last else whole
        return found
    x = x + dropout(change, probability, training)
    normed: Tensor = x if norm is None else norm(x)
    return normed


def add_and_norm(
    x: Tensor, change: Tensor, probability: float, norm: nn.Module, training: bool
) -> tuple[Tensor, Tensor]:
    """x plus what a sub-layer makes of it, and the norm of that sum, for the next one to read.

    Args:
        x: [..., D].
        change: [..., D], of which elements are dropped.
        probability: of dropping one in training.
        norm: of the sum.
        training: whether gradients are wanted and elements dropped.

    Returns:
        The sum [..., D], and its norm [..., D] in the precision that products read it in.
    """
    if training and passes_through(norm, x, change):
        drop = draw(probability)
        found: tuple[Tensor, Tensor] = _Passing.apply(x, change, *norm_parts(norm), drop, False)  # type: ignore[no-untyped-call]
        return found
    x = x + dropout(change, probability, training)
    return x, norm(x)


def normed(x: Tensor, norm: nn.Module, training: bool) -> Tensor:
    """The norm of x [..., D], in the precision that products read it in."""
    if training and passes_through(norm, x):
        found: Tensor = _Passing.apply(x, None, *norm_parts(norm), draw(0.0), False)[1]  # type: ignore[no-untyped-call]
        return found
    plain: Tensor = norm(x)
    return plain


def passes_through(norm: nn.Module | None, *tensors: Tensor) -> bool:
    """Whether kernels in C add and norm such rows."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not passes_rows(tensors[0].shape[-1]):
        return False
    weight, bias, _ = norm_parts(norm)
    if norm is not None and (
        weight is None
        or weight.dtype != torch.float32
        or (isinstance(norm, nn.LayerNorm) and bias is None)
    ):
        return False
    return all(t.device.type == "cpu" and t.dtype in _KINDS and t.numel() for t in tensors)


def draw(probability: float) -> Draw:
    """A seed, what a random number of 32 bits below is dropped, and what is kept multiplied by."""
    if not probability:
        return 0, 0, 1.0
    least = min(round(probability * _LEVELS), _LEVELS - 1)
    return int(torch.empty((), dtype=torch.int64).random_()), least, 1.0 / (1.0 - least / _LEVELS)


class _Passing(torch.autograd.Function):
    """The sum of x and `change`, or None without `change`; and its norm, or x's, or None without.

    Where the norm comes last, what it gives goes on alone, in float32. Elsewhere the sum goes on
    beside it, and it is for products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        change: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        drop: Draw,
        norm_last: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        x = whole = x.contiguous()
        if change is not None:
            change = change.contiguous()
            whole = torch.empty_like(x, dtype=torch.promote_types(x.dtype, change.dtype))
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        y = statistics = None
        if weight is not None:
            read_by_products = not norm_last and torch.is_autocast_enabled("cpu")
            kind = torch.get_autocast_dtype("cpu") if read_by_products else torch.float32
            y = torch.empty_like(x, dtype=kind)
            statistics = torch.empty((rows, 2))
            ctx.save_for_backward(whole, weight, bias, statistics)
        ctx.drop, ctx.kinds = drop, (x.dtype, None if change is None else change.dtype)
        ctx.set_materialize_grads(False)
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
        return None if norm_last or change is None else whole, y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        for_sum, for_y = (None if g is None else g.contiguous() for g in gradients)
        up = for_y if for_sum is None else for_sum
        if up is None:
            return (None,) * 7
        whole = weight = bias = statistics = for_weight = for_bias = partial = None
        if for_y is not None:  # else there is no norm, or nothing came of it
            whole, weight, bias, statistics = ctx.saved_tensors
            for_weight = torch.empty_like(weight)
            for_bias = None if bias is None else torch.empty_like(bias)
            partial = weight.new_empty(2 * _CHUNKS, len(weight))
        (asked, asked_of_change), (kind, kind_of_change) = ctx.needs_input_grad[:2], ctx.kinds
        x = change = None
        if asked and (for_y is not None or up.dtype != kind):  # else it is what comes down
            x = torch.empty_like(up, dtype=kind)
        _, least, _ = ctx.drop
        is_one = asked and asked_of_change and kind == kind_of_change and not least
        if asked_of_change and not is_one:
            change = torch.empty_like(up, dtype=kind_of_change)
        kernels().heedful_residual_back(
            up.numel() // up.shape[-1],
            up.shape[-1],
            *numbers(for_sum),
            *numbers(for_y),
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
        x = up if asked and x is None else x
        return x, x if is_one else change, for_weight, for_bias, None, None, None
