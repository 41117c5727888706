"""Blocks by kernels in C: one in two calls, or all of a stack in one.

A single block's two calls are the projections of self-attention, and the rest; between them the
cache takes the new keys and values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from heedful.engines.cpu_attention import AttentionCall, rotary_table, set_positions
from heedful.engines.lowering import RotaryAngles, StackProgram
from heedful.engines.packed_linear import workspace
from heedful.kernels.library import HeadAddresses, address, kernels
from heedful.kernels.structs import AttentionArgs, Layer
from heedful.models.block import Block, BlockState
from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValueCache, KeyValues
from heedful.nn.mixer import Context

SHOWN = ("self.weights", "cross.weights")
"""Captures within a block that kernels in C can give."""


class CpuBlock:
    """A block by kernels in C.

    Args:
        block: of an engine's copy of a model.
        layer: the same as a layer of the kernels.
        rotary: rotates its queries and keys, if anything does.
    """

    def __init__(self, block: Block, layer: Layer, rotary: RotaryAngles | None) -> None:
        self.block = block
        self.layer = layer
        self.rotary = rotary
        own = layer.self
        self._widths = [
            count * own.head_width for count in (own.num_heads, own.num_kv_heads, own.num_kv_heads)
        ]

    def __call__(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """See `Block.forward`; x [B, L, D] is float32, [1, R, D] without its padding."""
        x = x.contiguous()
        cache, memory = split_states(states)
        positions = context.positions
        starts = None if context.rows is None else context.rows.starts
        rows = x.shape[0] * x.shape[1]
        attention = self.block.self_attention
        projected = x.new_empty((rows, self.layer.self.projection.out_width))
        layer = ctypes.byref(self.layer)
        library = kernels()
        space = workspace(library.heedful_layer_workspace(layer, rows, 0))
        library.heedful_project(layer, x.data_ptr(), rows, projected.data_ptr(), space.data_ptr())
        places = context.row_positions()
        if self.rotary is not None:
            num_rotated = attention.heads_left + attention.key_heads_left
            library.heedful_rotate(
                *(rotary_table(self.rotary, places), projected.data_ptr(), rows),
                *(projected.shape[1], num_rotated, attention.head_width),
            )
        parts = projected.view(*places.shape, projected.shape[1])
        query, key, value = parts.split(self._widths, -1)
        q, k = attention.queries_of(query), attention.keys_of(key)
        v = attention.values_of(value)
        if cache is not None:
            cache, positions = cache.extend(k, v, positions)
            k, v = cache.keys, cache.values
        biases = attention.biases_with(context.biases)
        own = AttentionCall(attention, q, KeyValues(k, v), positions, biases, starts, starts)
        own.request_weights(context.capture, f"{context.address}.self.weights")
        num_keys, cross = own.described.num_keys, None
        if self.block.cross_attention is not None:
            assert memory is not None and context.memory_positions is not None
            positions = context.memory_positions
            cross = AttentionCall(self.block.cross_attention, None, memory, positions, (), starts)
            cross.request_weights(context.capture, f"{context.address}.cross.weights")
            num_keys = max(num_keys, cross.described.num_keys)
        y = torch.empty_like(x)
        space = workspace(library.heedful_layer_workspace(layer, rows, num_keys))
        library.heedful_layer(
            layer,
            x.data_ptr(),
            rows,
            ctypes.byref(own.described),
            None if cross is None else ctypes.byref(cross.described),
            y.data_ptr(),
            space.data_ptr(),
        )
        own.give_weights(context.capture)
        if cross is not None:
            cross.give_weights(context.capture)
        return y, (cache, memory, None) if self.block.cross_attention else (cache, None)


class CpuPass:
    """All blocks of a stack in one call of kernels in C.

    Args:
        block: the first of them, for what they have in common.
        program: of all blocks.
    """

    def __init__(self, block: Block, program: StackProgram) -> None:
        self._own, self._cross = block.self_attention, block.cross_attention
        self._program = program
        self._addresses = ctypes.c_void_p * len(program)

    def __call__(
        self,
        x: Tensor,
        context: Context,
        states: Sequence[BlockState],
    ) -> tuple[Tensor, tuple[BlockState, ...]] | None:
        """Run all blocks.

        Args:
            x: [B, L, D] float32; [1, R, D] without its padding.
            context: positions of the pass; captures are ignored.
            states: of each block, or none.

        Returns:
            As x, and the states after x's tokens; None where the blocks need to be called
            one by one.
        """
        split = [split_states(each) for each in states]
        caches = [cache for cache, _ in split if cache is not None]
        memory = [read for _, read in split if read is not None]
        if context.biases or any(type(cache) is not BeamCache for cache in caches):
            return None
        x, positions = x.contiguous(), context.positions
        own, cross, rotary = self._own, self._cross, self._program.rotary
        described = self._program.begin()
        alive: list[object] = [set_positions(described.self, positions, own.mask)]
        if rotary is not None:
            alive.append(table := rotary_table(rotary, context.row_positions()))
            described.rotary = table
        grown: list[BeamCache] = []
        if caches:
            batch, count = positions.query.shape
            shape = (batch, own.key_heads_left, count, own.head_width)
            claims = [cast("BeamCache", cache).claim(shape, x) for cache in caches]
            grown = [cache for cache, _ in claims]
            begins = self._set_strides(described.self, [store.places for _, store in claims])
            if begins is None:
                return None
            described.keys, described.values = begins
            described.num_cached = positions.key.shape[1] - count
        if cross is not None:
            assert context.memory_positions is not None
            alive.append(set_positions(described.cross, context.memory_positions, cross.mask))
            begins = self._set_strides(described.cross, [each.places for each in memory])
            if begins is None:
                return None
            described.memory_keys, described.memory_values = begins
        if context.rows is not None:
            starts = address(context.rows.starts)
            described.self.query_starts = described.self.key_starts = starts
            described.cross.query_starts = starts
        rows, library = x.shape[0] * x.shape[1], kernels()
        space = workspace(library.heedful_stack_workspace(described, rows))
        y = torch.empty_like(x)
        library.heedful_stack(described, x.data_ptr(), rows, y.data_ptr(), space.data_ptr())
        if not grown:
            return y, tuple(states)
        return y, tuple((cache, *each[1:]) for cache, each in zip(grown, states, strict=True))

    def _set_strides(
        self, args: AttentionArgs, places: Sequence[HeadAddresses]
    ) -> tuple[Any, Any] | None:
        """Set the strides of keys and values; return where those of each block begin.

        Returns:
            Addresses of all keys and of all values; None where the blocks' strides differ.
        """
        keys, values, *strides = zip(*places, strict=True)
        if any(len(set(each)) > 1 or each[0][3] != 1 for each in strides):
            return None
        args.key_batch, args.key_head, args.key_slot, _ = strides[0][0]
        args.value_batch, args.value_head, args.value_slot, _ = strides[1][0]
        return self._addresses(*keys), self._addresses(*values)


def split_states(states: BlockState) -> tuple[KeyValueCache | None, KeyValues | None]:
    """Return the cache of self-attention and the keys and values of the memory among a block's."""
    if not states:
        return None, None
    cache, memory = states[0], states[1] if len(states) > 2 else None
    return cast("KeyValueCache | None", cache), cast("KeyValues | None", memory)
