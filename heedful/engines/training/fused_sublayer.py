"""A sub-layer in training as one call of kernels in C forward, and one backward.

Two linear maps with attention or an activation between them, dropout, the residual sum and its norm
are kernels of their own. Where matrices are small, Python, autograd and allocations between these
kernels take longer than the kernels: two thirds of the first thread's time for four blocks 128 wide
(nanoGPT's recipe). A whole block in one call would save only two or three calls more.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.engines.training.native_attention import LONGEST
from heedful.engines.training.products import kept, product_plan
from heedful.engines.training.residual_norm import (
    DropoutSettings,
    ResidualNorm,
    dropout_settings,
    residual_refusal,
)
from heedful.engines.unpadding import RealRows
from heedful.kernels.library import (
    ACTIVATIONS,
    KernelActivation,
    address,
    array_args,
    has_row_kernels,
    kernels,
)
from heedful.kernels.structs import Array, LinearTraining, Sublayer
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.masks import Mask
from heedful.nn.mixer import Reordering
from heedful.nn.norms import norm_parts
from heedful.nn.positions import Positions


@dataclass(frozen=True, eq=False)
class ProjectedMemory:
    """Keys and values of a memory in one tensor, as the fused projection leaves them.

    Args:
        projected: keys and values of all heads [B, Lk, 2 · K · E]; [1, M, …] without padding.
        rows: places of the rows in the batch; None for a padded memory.
    """

    projected: Tensor
    rows: RealRows | None


@dataclass(frozen=True, eq=False)
class LearnedKeyValues:
    """Keys and values in training: left in one tensor, as a fused sub-layer reads them.

    Args:
        memory: output of the projection.
        split: function that makes keys and values of the output, for other kernels.
    """

    memory: ProjectedMemory
    split: Callable[[ProjectedMemory], KeyValues]

    @functools.cached_property
    def plain(self) -> KeyValues:
        """Keys and values as two tensors."""
        with torch.enable_grad():  # cached, so a later call that wants gradients gets these too
            return self.split(self.memory)

    @property
    def keys(self) -> Tensor:
        """Keys [B, K, S, E], for a kernel that takes keys and values separately."""
        return self.plain.keys

    @property
    def values(self) -> Tensor:
        """Values [B, K, S, Ev]."""
        return self.plain.values

    def reorder(self, choice: Reordering) -> KeyValues:
        """Return the keys and values of the chosen sentences, which all their beams share."""
        return self.plain.reorder(choice)


@dataclass(frozen=True, eq=False)
class Heads:
    """The attention of a fused sub-layer: heads, positions, mask and memory.

    Args:
        num_heads: H, the number of query heads.
        num_kv_heads: K, the number of key and value heads.
        scale: factor of the scores.
        positions: positions of queries and keys.
        mask: rule for the keys that a query sees.
        rows: places of the input's rows in the batch; None for a padded input.
        memory: projected memory of cross-attention; None for self-attention.
    """

    num_heads: int
    num_kv_heads: int
    scale: float
    positions: Positions
    mask: Mask
    rows: RealRows | None = None
    memory: ProjectedMemory | None = None

    @property
    def key_rows(self) -> RealRows | None:
        """Return the rows of keys without padding; None where padding stays."""
        return self.rows if self.memory is None else self.memory.rows

    def serve(self, width: int) -> bool:
        """Return whether kernels in C serve query heads of this total width, H · E."""
        lengths = self.positions.query.shape[1], self.positions.key.shape[1]
        if (
            max(lengths) > LONGEST
            or not self.num_heads
            or not has_row_kernels(width // self.num_heads)
        ):
            return False
        # C finds a sentence by its first row and its length, so padding must come last.
        return all(rows is None or rows.in_front for rows in (self.rows, self.key_rows))

    def visible(self) -> Tensor | None:
        """Return the keys that each query sees, [B|1, H|1, Lq, Lk]; None if it sees all rows."""
        positions, mask = self.positions, self.mask
        unpadded = self.rows is not None, self.key_rows is not None

        def shows_all() -> bool:
            # Slots of padding that has no row are never read, so they may be hidden or not.
            real = _real(positions.query, unpadded[0])[:, :, None]
            real = real & _real(positions.key, unpadded[1])[:, None]
            return bool((positions.visible(mask) | ~real[:, None]).all())

        # Cached with the positions, as all layers of a stack need the same answer.
        if positions.derive(("shows all rows", mask, unpadded), shows_all):
            return None
        return positions.visible(mask).contiguous()


def _real(positions: Tensor, without_padding: bool) -> Tensor:
    return positions >= 0 if without_padding else torch.ones_like(positions, dtype=torch.bool)


class Parameters(NamedTuple):
    """A linear map's weight [N, K] and bias [N], if it has one."""

    weight: Tensor
    bias: Tensor | None


def fused_sublayer(
    x: Tensor,
    y: Tensor,
    first: Parameters,
    between: KernelActivation | Heads,
    second: Parameters,
    after: ResidualNorm,
) -> tuple[Tensor, Tensor] | None:
    """Compute `x + dropout(second(between(first(y))))` and its norm in one call.

    Args:
        x: residual stream [..., D]; [B, L, D] for attention.
        y: input of the part, shaped as x: the normed stream, or the stream itself.
        first: linear map to queries, keys and values, or to the inner width.
        between: activation or attention between the two maps.
        second: linear map back to D.
        after: dropout, residual sum and norm that follow.

    Returns:
        The new stream and the input of the next sub-layer, see `residual_norm`; None where kernels
        in C do not serve.
    """
    dtype = fused_plan(x, y, first, between, second, after)
    if isinstance(dtype, str):
        return None
    norm, norm_last = after.any_norm, after.norm is not None
    heads = between if isinstance(between, Heads) else None
    projected = None if heads is None or heads.memory is None else heads.memory.projected
    weight, bias, epsilon = norm_parts(norm)
    settings = _Settings(
        dtype,
        norm_last,
        epsilon,
        dropout_settings(after.dropout),
        between if not isinstance(between, Heads) else None,
        heads,
        None if heads is None else heads.visible(),
    )
    # If the part reads the stream itself, C adds both gradients at once instead of autograd.
    is_same = y is x and x.dtype == torch.float32
    residual_sum, normed = _FusedSublayer.apply(  # type: ignore[no-untyped-call]
        x, None if is_same else y, projected, *first, *second, weight, bias, settings
    )
    stream = normed if norm_last else residual_sum
    return stream, stream if normed is None else normed


def fused_plan(
    x: Tensor,
    y: Tensor,
    first: Parameters,
    between: KernelActivation | Heads,
    second: Parameters,
    after: ResidualNorm,
) -> torch.dtype | str:
    """Return the dtype in which `fused_sublayer` computes its arguments, or why it does not."""
    dtype = product_plan(y, *first, fused=True)
    other = product_plan(y, *second, fused=True)
    if isinstance(dtype, str) or isinstance(other, str):
        return dtype if isinstance(dtype, str) else other
    refusal = residual_refusal(after.any_norm, x)
    if refusal is not None:
        return refusal
    # The kernel sums the gradient of a bias while it packs an operand of the weight's gradient.
    for weight, bias in (first, second):
        if bias is not None and bias.requires_grad and not weight.requires_grad:
            return "a map's bias is learned and its weight is not"
    if not isinstance(between, Heads):
        return dtype
    if between.positions.group is not None:
        return "attention in C sees only the keys of this process"
    if not between.serve(second.weight.shape[1]):
        return f"attention in C holds at most {LONGEST} positions, and heads of whole registers"
    if between.memory is not None and between.memory.projected.dtype not in (torch.float32, dtype):
        return "the memory is neither float32 nor of the type of the products"
    return dtype


class _Settings(NamedTuple):
    """The arguments of a fused sub-layer that have no gradients."""

    dtype: torch.dtype
    norm_last: bool
    epsilon: float
    dropout: DropoutSettings
    activation: KernelActivation | None
    heads: Heads | None
    visible: Tensor | None


class _FusedSublayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        part_input: Tensor | None,
        memory: Tensor | None,
        first: Tensor,
        first_bias: Tensor | None,
        second: Tensor,
        second_bias: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor | None, Tensor | None]:
        x = x.contiguous()
        inputs = (x if part_input is None else part_input).to(settings.dtype).contiguous()
        keys_values = None if memory is None else memory.to(settings.dtype).contiguous()
        parameters = (first, first_bias, second, second_bias)

        def compute() -> tuple[Tensor, Tensor | None, Tensor]:
            # The residual sum stays float32 under autocast, as PyTorch's type promotion has it.
            sum_dtype = torch.promote_types(x.dtype, settings.dtype)
            residual_sum, y = torch.empty_like(x, dtype=sum_dtype), None
            if weight is not None:
                # A pre-norm feeds matmuls, so it is written in their dtype; a post-norm is the
                # stream itself and stays float32.
                for_matmul = not settings.norm_last and torch.is_autocast_enabled("cpu")
                norm_dtype = torch.get_autocast_dtype("cpu") if for_matmul else torch.float32
                y = torch.empty_like(x, dtype=norm_dtype)
            args = _make_args(
                settings, inputs, keys_values, *parameters, residual_sum, weight, bias
            )
            args.x, args.y = Array(*array_args(x)), Array(*array_args(y))
            library, pointer = kernels(), ctypes.byref(args)
            # Intermediate results and statistics are one block of bytes, whose layout only C knows.
            saved = torch.empty(library.heedful_sublayer_saved(pointer), dtype=torch.uint8)
            size = library.heedful_sublayer_workspace(pointer, False)
            workspace = torch.empty(size, dtype=torch.uint8)
            args.saved, args.workspace = saved.data_ptr(), workspace.data_ptr()
            library.heedful_sublayer(pointer)
            return residual_sum, y, saved

        residual_sum, y, saved = kept(compute)
        ctx.save_for_backward(inputs, keys_values, *parameters, residual_sum, weight, bias, saved)
        ctx.settings = settings
        ctx.dtypes = tuple(None if each is None else each.dtype for each in (x, part_input, memory))
        # An unused output has the gradient None instead of zeros, and C skips its share.
        ctx.set_materialize_grads(False)
        return None if settings.norm_last and y is not None else residual_sum, y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_sum, grad_y = (None if g is None else g.contiguous() for g in gradients)
        grad_output = grad_y if grad_sum is None else grad_sum
        if grad_output is None:
            return (None,) * 10
        *tensors, saved = ctx.saved_tensors
        inputs, keys_values, first, first_bias, second, second_bias, _, weight, bias = tensors
        needs, (dtype, input_dtype, memory_dtype) = ctx.needs_input_grad, ctx.dtypes
        args = _make_args(ctx.settings, *tensors)
        args.grad_sum, args.grad_y = Array(*array_args(grad_sum)), Array(*array_args(grad_y))
        args.saved = saved.data_ptr()
        grad_x = grad_input = grad_memory = grad_norm_weight = grad_norm_bias = None
        # Without a norm the residual connection passes the gradient of the sum on unchanged.
        if needs[0] and (grad_y is not None or input_dtype is None or grad_output.dtype != dtype):
            grad_x = torch.empty_like(grad_output, dtype=dtype)
        if input_dtype is not None and needs[1]:
            grad_input = torch.empty_like(inputs, dtype=input_dtype)
        args.grad_x = Array(*array_args(grad_x))
        args.grad_input = args.grad_x if input_dtype is None else Array(*array_args(grad_input))
        if keys_values is not None:
            grad_memory = torch.empty_like(keys_values)
            args.grad_memory = grad_memory.data_ptr()
        if grad_y is not None:
            grad_norm_weight = torch.empty_like(weight)
            grad_norm_bias = None if bias is None else torch.empty_like(bias)
            args.grad_norm_weight = address(grad_norm_weight)
            args.grad_norm_bias = address(grad_norm_bias)
        parameters = (first, first_bias, second, second_bias)
        # C skips the gradient of a frozen parameter, whose address is null.
        result = tuple(
            torch.empty_like(each) if wanted else None
            for each, wanted in zip(parameters, needs[3:7], strict=True)
        )
        args.first.grad_weight, args.first.grad_bias = address(result[0]), address(result[1])
        args.second.grad_weight, args.second.grad_bias = address(result[2]), address(result[3])
        library, pointer = kernels(), ctypes.byref(args)
        size = library.heedful_sublayer_workspace(pointer, True)
        workspace = torch.empty(size, dtype=torch.uint8)
        args.workspace = workspace.data_ptr()
        library.heedful_sublayer_backward(pointer)
        if needs[0] and grad_x is None:
            grad_x = grad_output
        if grad_memory is not None:
            grad_memory = grad_memory.to(memory_dtype) if needs[2] else None
        return grad_x, grad_input, grad_memory, *result, grad_norm_weight, grad_norm_bias, None


def _make_args(
    settings: _Settings,
    inputs: Tensor,
    memory: Tensor | None,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    residual_sum: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Sublayer:
    """Return the arguments that the forward and the backward pass have in common."""
    seed, drop_threshold, keep_scale = settings.dropout
    args = Sublayer(
        # A weight is [out, in]; the struct takes its sizes as in, out.
        LinearTraining(first.data_ptr(), address(first_bias), None, None, *reversed(first.shape)),
        LinearTraining(
            second.data_ptr(), address(second_bias), None, None, *reversed(second.shape)
        ),
        input=inputs.data_ptr(),
        sum=Array(*array_args(residual_sum)),
        norm_weight=address(weight),
        norm_bias=address(bias),
        rows=inputs.numel() // inputs.shape[-1],
        # Dropout is a hash of the seed and an element's index: the mask is recomputed, not saved.
        dropout_seed=seed,
        drop_threshold=drop_threshold,
        keep_scale=keep_scale,
        epsilon=settings.epsilon,
        is_bf16=settings.dtype == torch.bfloat16,
        activation=(  # not read for attention, which C knows by `num_heads`
            ACTIVATIONS.index(settings.activation) if settings.activation else len(ACTIVATIONS)
        ),
    )
    if settings.heads is not None:
        _set_heads(args, settings.heads, settings.visible, memory)
    return args


def _set_heads(args: Sublayer, heads: Heads, visible: Tensor | None, memory: Tensor | None) -> None:
    batch, args.num_queries = heads.positions.query.shape
    args.batch, args.num_keys = heads.positions.key.shape
    args.num_heads, args.num_kv_heads, args.score_scale = (
        heads.num_heads,
        heads.num_kv_heads,
        heads.scale,
    )
    if heads.rows is not None:
        args.query_starts = heads.rows.starts.data_ptr()
    if heads.key_rows is not None:
        args.key_starts = heads.key_rows.starts.data_ptr()
    if memory is not None:
        args.memory, args.memory_rows = memory.data_ptr(), memory.numel() // memory.shape[-1]
    if visible is not None:
        # Expanded axes have a stride of 0, so one mask serves all heads or all sentences.
        strides = visible.expand(batch, heads.num_heads, -1, -1).stride()
        args.visible, (args.visible_batch, args.visible_head, args.visible_query, _) = (
            address(visible),
            strides,
        )
