"""A sub-layer: a part, dropout of its output, the residual sum, norms.

The definition runs them one by one. In training a processor spends as long going from kernel to
kernel as in them where matrices are small, so a fused kernel does all of it where one serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from heedful.kernels.library import address, array_args, has_row_kernels, kernels
from heedful.nn.dropout import dropout
from heedful.nn.mixer import Context
from heedful.nn.spec import NormPlacement, NormSpec


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale (Zhang and Sennrich 2019). Computed in float32.

    Args:
        width: D.
        epsilon: added to the mean square.
        unit_offset: scale by 1 + weight, as Gemma does. The offset is not added to the stored
            weight: 1 + w has fewer bits for a small w, and an export must give w back.
    """

    def __init__(self, width: int, epsilon: float, *, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))
        self.epsilon = epsilon
        self.unit_offset = unit_offset

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in, the same shape and dtype out."""
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        if self.unit_offset:  # rounded once, after the product, as in Gemma
            return (wide * inverse * (1.0 + self.weight.float())).to(x.dtype)
        return (wide * inverse).to(x.dtype) * self.weight

    @property
    def factor(self) -> Tensor:
        """[D], by which each normed channel is multiplied."""
        return 1.0 + self.weight if self.unit_offset else self.weight


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


def build_norm(spec: NormSpec, width: int) -> nn.Module:
    """The norm a spec describes, over a last axis of `width`."""
    if spec.kind == "rms":
        return RMSNorm(width, spec.epsilon, unit_offset=spec.unit_offset)
    return nn.LayerNorm(width, eps=spec.epsilon)


_CHUNKS = 16
"""`GRAD_CHUNKS` of runtime.h."""

_LEVELS = 1 << 32
_KINDS = (torch.float32, torch.bfloat16)

Draw = tuple[int, int, float]
"""What decides what is dropped: see `draw`."""


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


def residual_norm(
    x: Tensor, output: Tensor, after: ResidualNorm, context: Context, *, training: bool
) -> tuple[Tensor, Tensor]:
    """Add a part's output to the stream, and norm the sum.

    A capture may ask for the part's `output`, the `residual` sum and the `stream` that goes on.

    Args:
        x: [..., D], the stream.
        output: [..., D] of the part.
        after: dropout, sum and norms.
        context: of the part.
        training: whether elements are dropped and gradients wanted.

    Returns:
        The stream [..., D], and the input of the next part [..., D].
    """
    looked_into = context.capture is not None
    if training and fusion_refusal(x, output, after, looked_into=looked_into) is None:
        return _sum_and_norm(x, output, after)
    if after.output_norm is not None:
        output = after.output_norm(output)
    context.offer("output", output)
    output = dropout(output, after.dropout, training)
    x = x + output if after.residual else output
    if after.scale != 1.0:
        x = x * after.scale
    context.offer("residual", x)
    x = x if after.norm is None else after.norm(x)
    context.offer("stream", x)
    return x, x if after.input_norm is None else after.input_norm(x)


def fusion_refusal(
    x: Tensor, output: Tensor, after: ResidualNorm, *, looked_into: bool = False
) -> str | None:
    """Say why one kernel does not do all of `residual_norm` in training; None where it does.

    Args:
        x: [..., D], the stream.
        output: [..., D] of the part.
        after: dropout, sum and norms.
        looked_into: whether a capture wants what lies between.
    """
    if looked_into:
        return "a capture wants what lies between"
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


def apply_norm(x: Tensor, norm: nn.Module, training: bool) -> Tensor:
    """The norm of x [..., D], in the precision that products read it in."""
    if training and residual_refusal(norm, x) is None:
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
    if torch.compiler.is_compiling():
        return "a graph is made, which has no place for them"
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


@dataclass(frozen=True)
class SubLayer:
    """The settings of one sub-layer; the block holds its part and norms under its name.

    Args:
        name: of the part (`self_attention`), and with `_norm` of its norm.
        placement: of the norm.
        dropout: probability of dropping an element of the part's output.
        residual_scale: factor on the residual sum.
    """

    name: str
    placement: NormPlacement
    dropout: float
    residual_scale: float = 1.0

    @property
    def address(self) -> str:
        """The place of its captures within the block: `self`, `cross`, `feedforward`."""
        return self.name.removesuffix("_attention")

    @property
    def norms_input(self) -> bool:
        """True where the part reads a norm of the stream."""
        return self.placement in ("before", "both")


def run_sublayer(
    part: nn.Module,
    x: Tensor,
    y: Tensor,
    after: ResidualNorm,
    context: Context,
    state: Any = None,
    *,
    training: bool,
) -> tuple[Tensor, Tensor, Any]:
    """Run a part, and add its output to the stream.

    Args:
        part: of the block.
        x: [..., D], the residual stream.
        y: [..., D], the part's input: x, or its norm.
        after: dropout, sum and norms that follow.
        context: positions of x; its address is the part's.
        state: the part's; None where it has none, or a whole sequence is mixed.
        training: whether elements are dropped and gradients wanted.

    Returns:
        The stream, the input of the next part, and the part's state.
    """
    result = _fused(part, x, y, after, context, state) if training else None
    if result is not None:
        return *result, state
    context.offer("input", y)
    if state is None:
        output = part(y, context)
    else:
        output, state = part.step(y, state, context)  # type: ignore[operator]
    return *residual_norm(x, output, after, context, training=training), state


def _fused(
    part: Any, x: Tensor, y: Tensor, after: ResidualNorm, context: Context, state: Any
) -> tuple[Tensor, Tensor] | None:
    """Return the stream and the next input by one kernel; None where none serves."""
    if context.capture is not None or not after.is_fusable or torch.compiler.is_compiling():
        return None
    fuse = getattr(part, "fused", None)
    result: tuple[Tensor, Tensor] | None = fuse and fuse(x, y, after, context, state)
    return result
