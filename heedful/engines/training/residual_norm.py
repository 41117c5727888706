"""Dropout of a part's output, the residual sum and norms after it, in one kernel.

A fifth of an update on a processor is passes over memory between matmuls: each dropout, sum and
norm reads its rows and writes them back. Here one pass over a row does all three. So a block is cut
differently than in the definition: the norm of the next part's input is computed at the end of the
part before it (3 to 4 % of an update of four blocks 128 wide in bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.kernels.library import address, array_args, has_row_kernels, kernels
from heedful.nn.norms import norm_parts

_CHUNKS = 16
"""`GRAD_CHUNKS` of runtime.h: partial sums of the norm's gradients, added in a fixed order."""

_LEVELS = 1 << 32  # of the 32-bit hash that decides in C whether an element is dropped
_DTYPES = (torch.float32, torch.bfloat16)

DropoutSettings = tuple[int, int, float]
"""Seed, threshold and scale of a dropout: see `dropout_settings`."""


@dataclass(frozen=True)
class ResidualNorm:
    """Dropout, residual sum and norms between a part's output and the input of the next part.

    Args:
        norm: norm of the sum, whose result is the new stream (post-norm, Vaswani 2017); or None.
        input_norm: norm of the stream for the next part (pre-norm); or None.
        dropout: probability of dropping an element of the part's output in training.
        output_norm: norm of the part's output before the sum (Gemma 2, 2024); or None.
        residual: flag that the output is added to the stream; else it replaces the stream.
        scale: factor of the sum.
    """

    norm: nn.Module | None = None
    input_norm: nn.Module | None = None
    dropout: float = 0.0
    output_norm: nn.Module | None = None
    residual: bool = True
    scale: float = 1.0

    @property
    def is_fusable(self) -> bool:
        """True for a plain sum and at most one norm, which is what the kernels compute."""
        one = self.norm is None or self.input_norm is None
        plain = self.residual and self.scale == 1.0
        return one and plain and self.output_norm is None

    @property
    def any_norm(self) -> nn.Module | None:
        """The norm of the sum, whether post-norm or the next part's pre-norm."""
        return self.input_norm if self.norm is None else self.norm


def residual_norm(x: Tensor, output: Tensor, after: ResidualNorm) -> tuple[Tensor, Tensor]:
    """Add a part's output to the stream in training, and norm the sum.

    Args:
        x: residual stream [..., D].
        output: output of the part [..., D].
        after: dropout, sum and norms.

    Returns:
        The stream [..., D], and the input of the next part [..., D].
    """
    if fusion_refusal(x, output, after) is None:
        norm_last = after.norm is not None
        residual_sum, y = _ResidualNorm.apply(  # type: ignore[no-untyped-call]
            x, output, *norm_parts(after.any_norm), dropout_settings(after.dropout), norm_last
        )
        stream = y if norm_last else residual_sum
        return stream, stream if y is None else y
    if after.output_norm is not None:
        output = after.output_norm(output)
    output = cheap_dropout(output, after.dropout)
    x = x + output if after.residual else output
    if after.scale != 1.0:
        x = x * after.scale
    x = x if after.norm is None else after.norm(x)
    return x, x if after.input_norm is None else after.input_norm(x)


def fusion_refusal(x: Tensor, output: Tensor, after: ResidualNorm) -> str | None:
    """Return the reason why no single kernel computes `residual_norm`; None if one does."""
    if not after.is_fusable:
        return "it computes a sum and at most one norm of it"
    if after.any_norm is None and not after.dropout:
        return "a sum alone is a single pass by PyTorch too"
    return residual_refusal(after.any_norm, x, output)


def apply_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """Norm x [..., D] in training; the result has the dtype of the matmul that follows."""
    if residual_refusal(norm, x) is None:
        result: Tensor = _ResidualNorm.apply(
            x, None, *norm_parts(norm), dropout_settings(0.0), False
        )[1]  # type: ignore[no-untyped-call]
        return result
    plain: Tensor = norm(x)
    return plain


def residual_refusal(norm: nn.Module | None, *tensors: Tensor) -> str | None:
    """Say why kernels in C do not add and norm tensors [..., D]; None where they do."""
    if not torch.is_grad_enabled():
        return "no gradient is wanted: they pay by what they keep for it"
    if not has_row_kernels(tensors[0].shape[-1]):
        return "they were not compiled, or not for rows of this width"
    weight, bias, _ = norm_parts(norm)
    if norm is not None and (weight is None or weight.dtype != torch.float32):
        return "the norm has no weight in float32"
    if isinstance(norm, nn.LayerNorm) and bias is None:
        return "the layer norm has no bias"
    if any(t.device.type != "cpu" or t.dtype not in _DTYPES or not t.numel() for t in tensors):
        return "they add rows of float32 and bfloat16 on a processor"
    return None


def dropout_settings(probability: float) -> DropoutSettings:
    """Draw the seed of a dropout.

    Returns:
        Seed; drop threshold, below which a hash of 32 bits drops its element; keep scale.
    """
    if not probability:
        return 0, 0, 1.0
    drop_threshold = min(round(probability * _LEVELS), _LEVELS - 1)
    # The seed comes from PyTorch's generator, so `torch.manual_seed` and the random states that
    # checkpointing saves govern it.
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return seed, drop_threshold, 1.0 / (1.0 - drop_threshold / _LEVELS)


class _ResidualNorm(torch.autograd.Function):
    """The residual sum of x and `branch`, and its norm.

    Without `branch` there is no sum, and the norm is that of x; without a weight there is no norm.
    A post-norm (`norm_last`) is returned alone, in float32. A pre-norm is returned beside the sum,
    in the dtype of the matmul that reads it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        dropout: DropoutSettings,
        norm_last: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        x = residual_sum = x.contiguous()
        if branch is not None:
            branch = branch.contiguous()
            residual_sum = torch.empty_like(x, dtype=torch.promote_types(x.dtype, branch.dtype))
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        y = statistics = None
        if weight is not None:
            for_matmul = not norm_last and torch.is_autocast_enabled("cpu")
            norm_dtype = torch.get_autocast_dtype("cpu") if for_matmul else torch.float32
            y = torch.empty_like(x, dtype=norm_dtype)
            statistics = torch.empty((rows, 2))  # mean and reciprocal deviation of each row
            ctx.save_for_backward(residual_sum, weight, bias, statistics)
        ctx.dropout, ctx.dtypes = dropout, (x.dtype, None if branch is None else branch.dtype)
        # An unused output has the gradient None instead of zeros, and C skips its share.
        ctx.set_materialize_grads(False)
        kernels().heedful_residual_norm(
            rows,
            width,
            *array_args(x),
            *array_args(branch),
            residual_sum.data_ptr(),
            *array_args(y),
            address(weight),
            address(bias),
            epsilon,
            address(statistics),
            *dropout,
        )
        return None if norm_last or branch is None else residual_sum, y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_sum, grad_y = (None if g is None else g.contiguous() for g in gradients)
        grad_output = grad_y if grad_sum is None else grad_sum
        if grad_output is None:
            return (None,) * 7
        residual_sum = weight = bias = statistics = grad_weight = grad_bias = partial = None
        if grad_y is not None:  # else there is no norm, or nothing used its result
            residual_sum, weight, bias, statistics = ctx.saved_tensors
            grad_weight = torch.empty_like(weight)
            grad_bias = None if bias is None else torch.empty_like(bias)
            # Summed chunk by chunk, so that the number of threads does not change the result.
            partial = weight.new_empty(2 * _CHUNKS, len(weight))
        (needs_x, needs_branch), (dtype, branch_dtype) = ctx.needs_input_grad[:2], ctx.dtypes
        grad_x = grad_branch = None
        # Without a norm the gradient of the sum is that of x, and nothing needs to be computed.
        if needs_x and (grad_y is not None or grad_output.dtype != dtype):
            grad_x = torch.empty_like(grad_output, dtype=dtype)
        _, drop_threshold, _ = ctx.dropout
        # Without dropout both summands have the same gradient, which is written once.
        is_one = needs_x and needs_branch and dtype == branch_dtype and not drop_threshold
        if needs_branch and not is_one:
            grad_branch = torch.empty_like(grad_output, dtype=branch_dtype)
        kernels().heedful_residual_norm_backward(
            grad_output.numel() // grad_output.shape[-1],
            grad_output.shape[-1],
            *array_args(grad_sum),
            *array_args(grad_y),
            *array_args(residual_sum),
            address(weight),
            address(bias),
            address(statistics),
            *ctx.dropout,
            *array_args(grad_x),
            *array_args(grad_branch),
            address(grad_weight),
            address(grad_bias),
            address(partial),
        )
        grad_x = grad_output if needs_x and grad_x is None else grad_x
        return grad_x, grad_x if is_one else grad_branch, grad_weight, grad_bias, None, None, None


_SHORT_LEVELS = 1 << 16  # of the 16-bit numbers that `CheapDropout` compares


class CheapDropout(nn.Dropout):
    """Dropout (Srivastava 2014) with cheap random numbers.

    PyTorch's processor kernel draws one random number per element. One 64-bit draw holds four
    16-bit numbers, so here it decides for four elements; the probability is met to 1/65,536.
    For a million elements PyTorch took 10 ms, where the mask and the multiplication take 0.2.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (any shape) in training; return x itself otherwise."""
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
    """Return a mask (int8), 1 where an element of x is kept, and the share kept on average."""
    dropped = round(probability * _SHORT_LEVELS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    # The whole range of int64: by default `random_` leaves out the sign bit, and one of four
    # 16-bit numbers would never be negative.
    draws.random_(-(2**63), None)
    levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
    keep = torch.empty(x.shape, dtype=torch.int8)
    # int16 runs from -32,768, so the lowest `dropped` values are the dropped ones. Comparing a
    # million numbers into int8 took 0.06 ms, into bool 0.24; multiplying by int8 0.12, by bool
    # 0.36: PyTorch vectorises the int8 forms only (torch 2.13, two threads).
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
