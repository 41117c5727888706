"""A sub-layer of a block in one call while it is trained, where kernels in C do all of it.

Two linear maps with attention or an activation between them, dropout, the sum with the stream and
its norm: each is a kernel of its own, but where matrices are small, going to and fro between them
takes longer than they do. So there is one call for the pass and one for all its gradients.
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
    Draw,
    ResidualNorm,
    draw,
    norm_parts,
    residual_refusal,
)
from heedful.engines.unpadding import RealRows
from heedful.kernels.library import ACTIVATIONS, address, array_args, has_row_kernels, kernels
from heedful.kernels.structs import Array, LinearTraining, Sublayer
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.masks import Mask
from heedful.nn.mixer import Reordering
from heedful.nn.positions import Positions
from heedful.nn.spec import PlainActivation


@dataclass(frozen=True, eq=False)
class ProjectedMemory:
    """Keys and values of a memory, side by side.

    Args:
        projected: [B, Lk, 2 · K · E] keys and values of all heads; [1, M, …] without padding.
        rows: the places of the rows, if they come without their padding.
    """

    projected: Tensor
    rows: RealRows | None


@dataclass(frozen=True, eq=False)
class LearnedKeyValues:
    """Keys and values in training: left side by side, as a fused sub-layer reads them.

    Args:
        memory: the output of the projection.
        split: makes keys and values of it, when another kernel asks for them.
    """

    memory: ProjectedMemory
    split: Callable[[ProjectedMemory], KeyValues]

    @functools.cached_property
    def plain(self) -> KeyValues:
        """These keys and values as two tensors."""
        with torch.enable_grad():  # kept for every later call, which may want gradients
            return self.split(self.memory)

    @property
    def keys(self) -> Tensor:
        """[B, K, S, E], for a kernel that reads them apart."""
        return self.plain.keys

    @property
    def values(self) -> Tensor:
        """[B, K, S, Ev]."""
        return self.plain.values

    def reorder(self, choice: Reordering) -> KeyValues:
        """Return those of the chosen sentences; beams of a sentence share them."""
        return self.plain.reorder(choice)


@dataclass(frozen=True, eq=False)
class Heads:
    """The attention of a fused sub-layer: heads, positions, mask and memory.

    Args:
        num_heads: of queries, H.
        num_kv_heads: of keys and values, K.
        scale: of the scores.
        positions: of queries and keys.
        mask: who may see whom.
        rows: where the rows of the input stand, if it comes without its padding.
        memory: what is attended to; the input itself if None.
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
        """Return the rows of keys that come without their padding; None where padding stays."""
        return self.rows if self.memory is None else self.memory.rows

    def serve(self, width: int) -> bool:
        """Return whether kernels in C serve, with all heads of queries together so wide."""
        lengths = self.positions.query.shape[1], self.positions.key.shape[1]
        if (
            max(lengths) > LONGEST
            or not self.num_heads
            or not has_row_kernels(width // self.num_heads)
        ):
            return False
        return all(rows is None or rows.in_front for rows in (self.rows, self.key_rows))

    def visible(self) -> Tensor | None:
        """Return the keys each query may see, [B|1, H|1, Lq, Lk]; None for all that are there."""
        positions, mask = self.positions, self.mask
        there = self.rows is not None, self.key_rows is not None

        def shows_all() -> bool:
            real = _real(positions.query, there[0])[:, :, None]
            real = real & _real(positions.key, there[1])[:, None]
            return bool((positions.visible(mask) | ~real[:, None]).all())

        if positions.derive(("shows all rows", mask, there), shows_all):
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
    read: Tensor,
    first: Parameters,
    between: PlainActivation | Heads,
    second: Parameters,
    after: ResidualNorm,
) -> tuple[Tensor, Tensor] | None:
    """`x + dropout(second(between(first(read))))` and its norm; None where C does not do all of it.

    Args:
        x: [..., D], the stream; of attention [B, L, D].
        read: as x: the norm of it, or itself.
        first: to queries, keys and values, or to the inner width.
        between: what stands between the maps: an activation, or heads.
        second: back to D.
        after: dropout, sum and norm that follow.

    Returns:
        The stream that goes on, and the input of the next sub-layer; see `residual_norm`.
    """
    dtype = fused_plan(x, read, first, between, second, after)
    if isinstance(dtype, str):
        return None
    norm, norm_last = after.any_norm, after.norm is not None
    heads = between if isinstance(between, Heads) else None
    projected = None if heads is None or heads.memory is None else heads.memory.projected
    weight, bias, epsilon = norm_parts(norm)
    how = _How(
        dtype,
        norm_last,
        epsilon,
        draw(after.dropout),
        between if not isinstance(between, Heads) else None,
        heads,
        None if heads is None else heads.visible(),
    )
    # The gradient of what is read is added to that of x at once, where they are the same.
    is_same = read is x and x.dtype == torch.float32
    whole, y = _FusedSublayer.apply(  # type: ignore[no-untyped-call]
        x, None if is_same else read, projected, *first, *second, weight, bias, how
    )
    stream = y if norm_last else whole
    return stream, stream if y is None else y


def fused_plan(
    x: Tensor,
    read: Tensor,
    first: Parameters,
    between: PlainActivation | Heads,
    second: Parameters,
    after: ResidualNorm,
) -> torch.dtype | str:
    """Plan a sub-layer: the type of its products in one call of kernels in C, or why not in one.

    Args:
        x, read, first, between, second, after: see `fused_sublayer`.
    """
    dtype = product_plan(read, *first, fused=True)
    other = product_plan(read, *second, fused=True)
    if isinstance(dtype, str) or isinstance(other, str):
        return dtype if isinstance(dtype, str) else other
    refusal = residual_refusal(after.any_norm, x)
    if refusal is not None:
        return refusal
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


class _How(NamedTuple):
    """The settings of a fused sub-layer: all but the tensors that gradients flow to."""

    dtype: torch.dtype
    norm_last: bool
    epsilon: float
    drop: Draw
    activation: PlainActivation | None
    heads: Heads | None
    visible: Tensor | None


class _FusedSublayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        read: Tensor | None,
        memory: Tensor | None,
        first: Tensor,
        first_bias: Tensor | None,
        second: Tensor,
        second_bias: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        how: _How,
    ) -> tuple[Tensor | None, Tensor | None]:
        x = x.contiguous()
        rows = (x if read is None else read).to(how.dtype).contiguous()
        seen = None if memory is None else memory.to(how.dtype).contiguous()
        parameters = (first, first_bias, second, second_bias)

        def compute() -> tuple[Tensor, Tensor | None, Tensor]:
            whole = torch.empty_like(x, dtype=torch.promote_types(x.dtype, how.dtype))
            y = None
            if weight is not None:
                for_products = not how.norm_last and torch.is_autocast_enabled("cpu")
                kind = torch.get_autocast_dtype("cpu") if for_products else torch.float32
                y = torch.empty_like(x, dtype=kind)
            of = _described(how, rows, seen, *parameters, whole, weight, bias)
            of.x, of.y = Array(*array_args(x)), Array(*array_args(y))
            library, pointer = kernels(), ctypes.byref(of)
            saved = torch.empty(library.heedful_sublayer_saved(pointer), dtype=torch.uint8)
            size = library.heedful_sublayer_workspace(pointer, False)
            room = torch.empty(size, dtype=torch.uint8)
            of.saved, of.workspace = saved.data_ptr(), room.data_ptr()
            library.heedful_sublayer(pointer)
            return whole, y, saved

        whole, y, saved = kept(compute)
        ctx.save_for_backward(rows, seen, *parameters, whole, weight, bias, saved)
        ctx.how = how
        ctx.kinds = tuple(None if each is None else each.dtype for each in (x, read, memory))
        ctx.set_materialize_grads(False)
        return None if how.norm_last and y is not None else whole, y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        for_sum, for_y = (None if g is None else g.contiguous() for g in gradients)
        up = for_y if for_sum is None else for_sum
        if up is None:
            return (None,) * 10
        *tensors, saved = ctx.saved_tensors
        rows, seen, first, first_bias, second, second_bias, _, weight, bias = tensors
        needs, (kind, read_kind, memory_kind) = ctx.needs_input_grad, ctx.kinds
        of = _described(ctx.how, *tensors)
        of.grad_sum, of.grad_y = Array(*array_args(for_sum)), Array(*array_args(for_y))
        of.saved = saved.data_ptr()
        for_x = for_read = for_memory = for_weight = for_bias = None
        if needs[0] and (for_y is not None or read_kind is None or up.dtype != kind):
            for_x = torch.empty_like(up, dtype=kind)
        if read_kind is not None and needs[1]:
            for_read = torch.empty_like(rows, dtype=read_kind)
        of.grad_x = Array(*array_args(for_x))
        of.grad_input = of.grad_x if read_kind is None else Array(*array_args(for_read))
        if seen is not None:
            for_memory = torch.empty_like(seen)
            of.grad_memory = for_memory.data_ptr()
        if for_y is not None:
            for_weight = torch.empty_like(weight)
            for_bias = None if bias is None else torch.empty_like(bias)
            of.grad_norm_weight, of.grad_norm_bias = address(for_weight), address(for_bias)
        parameters = (first, first_bias, second, second_bias)
        result = tuple(
            torch.empty_like(each) if wanted else None
            for each, wanted in zip(parameters, needs[3:7], strict=True)
        )
        of.first.grad_weight, of.first.grad_bias = address(result[0]), address(result[1])
        of.second.grad_weight, of.second.grad_bias = address(result[2]), address(result[3])
        library, pointer = kernels(), ctypes.byref(of)
        room = torch.empty(library.heedful_sublayer_workspace(pointer, True), dtype=torch.uint8)
        of.workspace = room.data_ptr()
        library.heedful_sublayer_backward(pointer)
        if needs[0] and for_x is None:  # it is what comes down
            for_x = up
        if for_memory is not None:
            for_memory = for_memory.to(memory_kind) if needs[2] else None
        return for_x, for_read, for_memory, *result, for_weight, for_bias, None


def _described(
    how: _How,
    rows: Tensor,
    memory: Tensor | None,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None,
    whole: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Sublayer:
    """Return the arguments that the forward and the backward pass have in common."""
    seed, least, kept_scale = how.drop
    of = Sublayer(
        LinearTraining(first.data_ptr(), address(first_bias), None, None, *reversed(first.shape)),
        LinearTraining(
            second.data_ptr(), address(second_bias), None, None, *reversed(second.shape)
        ),
        input=rows.data_ptr(),
        sum=Array(*array_args(whole)),
        norm_weight=address(weight),
        norm_bias=address(bias),
        rows=rows.numel() // rows.shape[-1],
        dropout_seed=seed,
        drop_threshold=least,
        keep_scale=kept_scale,
        epsilon=how.epsilon,
        is_bf16=how.dtype == torch.bfloat16,
        activation=ACTIVATIONS.index(how.activation) if how.activation else len(ACTIVATIONS),
    )
    if how.heads is not None:
        _describe_heads(of, how.heads, how.visible, memory)
    return of


def _describe_heads(
    of: Sublayer, heads: Heads, visible: Tensor | None, memory: Tensor | None
) -> None:
    batch, of.num_queries = heads.positions.query.shape
    of.batch, of.num_keys = heads.positions.key.shape
    of.num_heads, of.num_kv_heads, of.score_scale = heads.num_heads, heads.num_kv_heads, heads.scale
    if heads.rows is not None:
        of.query_starts = heads.rows.starts.data_ptr()
    if heads.key_rows is not None:
        of.key_starts = heads.key_rows.starts.data_ptr()
    if memory is not None:
        of.memory, of.memory_rows = memory.data_ptr(), memory.numel() // memory.shape[-1]
    if visible is not None:
        strides = visible.expand(batch, heads.num_heads, -1, -1).stride()
        of.visible, (of.visible_batch, of.visible_head, of.visible_query, _) = (
            address(visible),
            strides,
        )
