"""All blocks of a stack in one call, where only C is needed between them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from heedful.models.block import Block, Sight
from heedful.models.native_block import NativeBlock, tell_positions, turns_at
from heedful.models.stack import AnyCache, Stack
from heedful.nn.attention import Attention, KeyValues
from heedful.nn.beam_cache import BeamCache
from heedful.nn.native.library import Places, address, kernels
from heedful.nn.native.linear import workspace
from heedful.nn.native.structures import Layer, Pass, Seen


class NativeStack:
    """Blocks on top of each other, as kernels in C compute them.

    Args:
        stack: one that `passes_natively`.
    """

    def __init__(self, stack: Stack) -> None:
        self.blocks = list(cast("Iterable[Block]", stack.blocks))
        count = len(self.blocks)
        running = [cast("NativeBlock", block.running) for block in self.blocks]
        layers = [block.layer for block in running]
        self._layers = (ctypes.POINTER(Layer) * count)(*map(ctypes.pointer, layers))
        self._turning = running[0].turning
        self._addresses = ctypes.c_void_p * count

    def __call__(
        self,
        x: Tensor,
        sight: Sight,
        memory: Sequence[KeyValues],
        caches: Sequence[AnyCache],
    ) -> tuple[Tensor, tuple[AnyCache, ...]] | None:
        """As the blocks one after the other.

        Args:
            x: [B, L, D] float32; [1, R, D] without its padding.
            sight: who stands where; of what is captured nothing is known here.
            memory: of each block, or none.
            caches: of each block, or none.

        Returns:
            As x, and the caches with x's tokens appended; None where it takes the blocks one by
            one.
        """
        if sight.biases or any(type(cache) is not BeamCache for cache in caches):
            return None
        x, positions = x.contiguous(), sight.self_positions
        own, cross = self.blocks[0].self_attention, self.blocks[0].cross_attention
        described = Pass(self._layers, len(self.blocks))
        held: list[object] = [tell_positions(described.self, positions, own.mask)]
        if self._turning is not None:
            places = positions.query if sight.rows is None else sight.rows.positions
            held.append(turns := turns_at(self._turning, places))
            described.turns = turns
        grown: list[BeamCache] = []
        if caches:
            batch, count = positions.query.shape
            shape = (batch, own.key_heads_left, count, own.head_width)
            claims = [cast("BeamCache", cache).claim(shape, x) for cache in caches]
            grown = [cache for cache, _ in claims]
            begins = self._tell_places(described.self, [store.places for _, store in claims])
            if begins is None:
                return None
            described.keys, described.values = begins
            described.taken = positions.key.shape[1] - count
        if cross is not None:
            assert sight.memory_positions is not None
            held.append(tell_positions(described.cross, sight.memory_positions, cross.mask))
            begins = self._tell_places(described.cross, [each.places for each in memory])
            if begins is None:
                return None
            described.memory_keys, described.memory_values = begins
        if sight.rows is not None:
            starts = address(sight.rows.starts)
            described.self.query_rows = described.self.key_rows = starts
            described.cross.query_rows = starts
        rows, library = x.shape[0] * x.shape[1], kernels()
        space = workspace(library.heedful_pass_room(described, rows))
        y = torch.empty_like(x)
        library.heedful_pass(described, x.data_ptr(), rows, y.data_ptr(), space.data_ptr())
        return y, cast("tuple[AnyCache, ...]", tuple(grown))

    def _tell_places(self, seen: Seen, places: Sequence[Places]) -> tuple[Any, Any] | None:
        """Say how keys and values lie; where those of each block begin, if all lie alike."""
        keys, values, *strides = zip(*places, strict=True)
        if any(len(set(each)) > 1 or each[0][3] != 1 for each in strides):
            return None
        seen.key_batch, seen.key_head, seen.key_slot, _ = strides[0][0]
        seen.value_batch, seen.value_head, seen.value_slot, _ = strides[1][0]
        return self._addresses(*keys), self._addresses(*values)


def passes_natively(stack: Stack) -> bool:
    """Whether one call computes all blocks of a stack."""
    blocks = list(cast("Iterable[Block]", stack.blocks))
    if not blocks or not all(isinstance(block.running, NativeBlock) for block in blocks):
        return False
    own = [block.self_attention for block in blocks]
    over = [block.cross_attention for block in blocks if block.cross_attention is not None]
    return (
        all(each.position_bias is None for each in own)
        and all(each.heads_left and _in_common(each) == _in_common(own[0]) for each in own)
        and all(_in_common(each) == _in_common(over[0]) for each in over)
    )


def _in_common(attention: Attention) -> tuple[object, ...]:
    """What is told once for all blocks: who sees whom, how they are turned, the size of keys."""
    turned = None if attention.rotary is None else attention.rotary.spec
    return attention.mask, turned, attention.key_heads_left, attention.head_width
