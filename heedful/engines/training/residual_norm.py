"""Dropout of a part's output, the residual sum and norms after it, in one kernel.

In training a processor spends as long going from kernel to kernel as in them where matrices are
small. So a block's forward is cut differently here than in the definition: the norm that the next
part reads is computed at the end of the part before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from heedful.kernels.library import address, array_args, has_row_kernels, kernels
from heedful.nn.norms import RMSNorm

_CHUNKS = 16
"""`GRAD_CHUNKS` of runtime.h."""

_LEVELS = 1 << 32
_KINDS = (torch.float32, torch.bfloat16)

Draw = tuple[int, int, float]
"""What decides what is dropped: see `draw`."""


def is_rms(norm: nn.Module | None) -> TypeGuard[RMSNorm]:
    """Return whether a norm takes no mean away, and so has no bias."""
    return isinstance(norm, RMSNorm)


def norm_parts(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None, float]:
    """Factor, bias and epsilon of a norm, as far as it has them."""
    if is_rms(norm):
        return norm.factor, None, norm.epsilon
    if isinstance(norm, nn.LayerNorm):
        return norm.weight, norm.bias, norm.eps
    return None, None, 0.0


@dataclass(frozen=True)
class ResidualNorm:
    """Dropout, residual sum and norms between a part's output and the input of the next part.

    Args:
        norm: of the sum, whose result goes on as the stream (2017); None where the sum does.
        input_norm: of the stream, for the next part to read; None where it reads the stream.
        dropout: probability of dropping an element of the part's output in training.
        output_norm: of the part's output, before the sum (Gemma 2, 2024); None for none.
        residual: add the output to the stream; else the output takes the stream's place.
        scale: factor on the sum.
    """

    norm: nn.Module | None = None
    input_norm: nn.Module | None = None
    dropout: float = 0.0
    output_norm: nn.Module | None = None
    residual: bool = True
    scale: float = 1.0

    @property
    def is_fusable(self) -> bool:
        """True for a sum and at most one norm, as kernels compute it."""
        one = self.norm is None or self.input_norm is None
        plain = self.residual and self.scale == 1.0
        return one and plain and self.output_norm is None

    @property
    def any_norm(self) -> nn.Module | None:
        """The norm of the sum, wherever its result goes."""
        return self.input_norm if self.norm is None else self.norm


def residual_norm(x: Tensor, output: Tensor, after: ResidualNorm) -> tuple[Tensor, Tensor]:
    """Add a part's output to the stream in training, and norm the sum.

    Args:
        x: [..., D], the stream.
        output: [..., D] of the part.
        after: dropout, sum and norms.

    Returns:
        The stream [..., D], and the input of the next part [..., D].
    """
    if fusion_refusal(x, output, after) is None:
        return _sum_and_norm(x, output, after)
    if after.output_norm is not None:
        output = after.output_norm(output)
    output = cheap_dropout(output, after.dropout)
    x = x + output if after.residual else output
    if after.scale != 1.0:
        x = x * after.scale
    x = x if after.norm is None else after.norm(x)
    return x, x if after.input_norm is None else after.input_norm(x)


def fusion_refusal(x: Tensor, output: Tensor, after: ResidualNorm) -> str | None:
    """Say why one kernel does not do all of `residual_norm`; None where it does.

    Args:
        x: [..., D], the stream.
        output: [..., D] of the part.
        after: dropout, sum and norms.
    """
    if not after.is_fusable:
        return "it computes a sum and at most one norm of it"
    if after.any_norm is None and not after.dropout:
        return "a sum alone is a single pass by PyTorch too"
    return residual_refusal(after.any_norm, x, output)


def _sum_and_norm(x: Tensor, output: Tensor, after: ResidualNorm) -> tuple[Tensor, Tensor]:
    """Return the stream and the next input by one kernel."""
    norm_last = after.norm is not None
    total, y = _ResidualNorm.apply(  # type: ignore[no-untyped-call]
        x, output, *norm_parts(after.any_norm), draw(after.dropout), norm_last
    )
    stream = y if norm_last else total
    return stream, stream if y is None else y


def apply_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """The norm of x [..., D] in training, in the precision that products read it in."""
    if residual_refusal(norm, x) is None:
        result: Tensor = _ResidualNorm.apply(x, None, *norm_parts(norm), draw(0.0), False)[1]  # type: ignore[no-untyped-call]
        return result
    plain: Tensor = norm(x)
    return plain


def residual_refusal(norm: nn.Module | None, *tensors: Tensor) -> str | None:
    """Say why kernels in C do not add and norm such rows; None where they do.

    Args:
        norm: of the sum, or None.
        tensors: [..., D] each.
    """
    if not torch.is_grad_enabled():
        return "no gradient is wanted: they pay by what they keep for it"
    if not has_row_kernels(tensors[0].shape[-1]):
        return "they were not compiled, or not for rows of this width"
    weight, bias, _ = norm_parts(norm)
    if norm is not None and (weight is None or weight.dtype != torch.float32):
        return "the norm has no weight in float32"
    if isinstance(norm, nn.LayerNorm) and bias is None:
        return "the layer norm has no bias"
    if any(t.device.type != "cpu" or t.dtype not in _KINDS or not t.numel() for t in tensors):
        return "they add rows of float32 and bfloat16 on a processor"
    return None


def draw(probability: float) -> Draw:
    """A seed, what a random number of 32 bits below is dropped, and what is kept multiplied by."""
    if not probability:
        return 0, 0, 1.0
    least = min(round(probability * _LEVELS), _LEVELS - 1)
    return int(torch.empty((), dtype=torch.int64).random_()), least, 1.0 / (1.0 - least / _LEVELS)


class _ResidualNorm(torch.autograd.Function):
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
        kernels().heedful_residual_norm(
            rows,
            width,
            *array_args(x),
            *array_args(change),
            whole.data_ptr(),
            *array_args(y),
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
        kernels().heedful_residual_norm_backward(
            up.numel() // up.shape[-1],
            up.shape[-1],
            *array_args(for_sum),
            *array_args(for_y),
            *array_args(whole),
            address(weight),
            address(bias),
            address(statistics),
            *ctx.drop,
            *array_args(x),
            *array_args(change),
            address(for_weight),
            address(for_bias),
            address(partial),
        )
        x = up if asked and x is None else x
        return x, x if is_one else change, for_weight, for_bias, None, None, None


_SHORT_LEVELS = 1 << 16


class CheapDropout(nn.Dropout):
    """Dropout whose random numbers cost little (Srivastava 2014).

    PyTorch's processor kernel draws one random number per element. One 64-bit draw holds four
    16-bit numbers, so here it decides for four elements; the probability is met to 1/65,536.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same shape out."""
        return cheap_dropout(x, self.p) if self.training else x


def cheap_dropout(x: Tensor, probability: float) -> Tensor:
    """Zero elements of `x` (any shape) at random, and scale the rest to keep the mean.

    Random numbers come from PyTorch's default generator, so that `torch.manual_seed` fixes them.
    """
    if not probability:
        return x
    result: Tensor = _CheapDropout.apply(x, probability)  # type: ignore[no-untyped-call]
    return result


def _keep_mask(x: Tensor, probability: float) -> tuple[Tensor, float]:
    """1 where an element of `x` is kept, else 0 (int8), and the share that is kept on average."""
    dropped = round(probability * _SHORT_LEVELS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    draws.random_(-(2**63), None)
    levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
    keep = torch.empty(x.shape, dtype=torch.int8)
    # int16 runs from -32,768, so the lowest `dropped` values are the dropped ones. Comparing into
    # int8 is vectorised, and so are products with int8; with bool neither is (torch 2.13).
    torch.ge(levels, dropped - _SHORT_LEVELS // 2, out=keep)
    return keep, 1.0 - dropped / _SHORT_LEVELS


class _CheapDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep, share = _keep_mask(x, probability)
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / share
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient * keep).mul_(ctx.scale), None
