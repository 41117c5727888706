"""Blocks by kernels in C: all blocks of a stack in one call, or one by one.

A single block with self-attention is two calls, the projections and the rest; between them the
cache takes the new keys and values. A block with a recurrence is one call. In PyTorch every norm,
sum and rounding is an operation with its own pass over memory and its own acquisition of the GIL:
of a step of 3 ms for one sentence of a small model, 0.5 ms were arithmetic.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from heedful.engines.inference.cpu_attention import (
    AttentionCall,
    places_of,
    rotary_table,
    set_positions,
)
from heedful.engines.inference.lowering import RotaryAngles, StackProgram, WeightSource
from heedful.engines.inference.packed_linear import workspace
from heedful.engines.unpadding import row_positions, rows_of
from heedful.kernels.library import HeadAddresses, address, kernels
from heedful.kernels.structs import AttentionArgs, Layer, Norm, StackArgs
from heedful.models.block import Block, BlockState
from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValues
from heedful.nn.mixer import Context, KeyValueCache, MixerState, ScanState
from heedful.nn.norms import is_rms, norm_parts

KERNEL_CAPTURES = ("self.weights", "cross.weights")
"""Captures inside a block with self-attention that kernels in C can provide."""


class AttentionBlock:
    """A block of an engine with self-attention by kernels in C."""

    def __init__(self, block: Block, layer: Layer, rotary: RotaryAngles | None) -> None:
        self.block = block
        self.layer = layer
        self.rotary = rotary
        own = layer.self
        # The projection's output is query, key, value, in this order, each with all its heads.
        self._widths = [
            count * own.head_width for count in (own.num_heads, own.num_kv_heads, own.num_kv_heads)
        ]

    def __call__(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """See `Block.forward`; x [B, L, D] is float32, [1, R, D] without its padding."""
        x = x.contiguous()
        cache, _, memory = split_states(states)
        positions = context.positions
        packed = rows_of(context)
        starts = None if packed is None else packed.starts
        rows = x.shape[0] * x.shape[1]  # B · L, or R without padding
        attention = self.block.self_attention
        projected = x.new_empty((rows, self.layer.self.projection.out_width))
        layer = ctypes.byref(self.layer)
        library = kernels()
        space = workspace(library.heedful_layer_workspace(layer, rows, 0))
        library.heedful_project(layer, x.data_ptr(), rows, projected.data_ptr(), space.data_ptr())
        places = row_positions(context)
        if self.rotary is not None:
            # Queries and keys are adjacent, so one call rotates both, before the cache takes keys.
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
        num_keys, cross = own.args.num_keys, None
        if self.block.cross_attention is not None:
            assert memory is not None and context.memory_positions is not None
            positions = context.memory_positions
            cross = AttentionCall(self.block.cross_attention, None, memory, positions, (), starts)
            cross.request_weights(context.capture, f"{context.address}.cross.weights")
            num_keys = max(num_keys, cross.args.num_keys)
        y = torch.empty_like(x)
        # Self- and cross-attention share memory for scores, sized for the larger number of keys.
        space = workspace(library.heedful_layer_workspace(layer, rows, num_keys))
        library.heedful_layer(
            layer,
            x.data_ptr(),
            rows,
            ctypes.byref(own.args),
            None if cross is None else ctypes.byref(cross.args),
            y.data_ptr(),
            space.data_ptr(),
        )
        own.give_weights(context.capture)
        if cross is not None:
            cross.give_weights(context.capture)
        return y, (cache, memory, None) if self.block.cross_attention else (cache, None)


class RecurrentBlock:
    """A block of an engine with average attention or an SSRU by kernels in C."""

    def __init__(self, block: Block, layer: Layer, weights: WeightSource) -> None:
        self.block = block
        self.layer = layer
        self._pass = CpuPass([block], StackProgram([layer], None, weights))

    def __call__(
        self, x: Tensor, context: Context, states: BlockState = ()
    ) -> tuple[Tensor, BlockState]:
        """See `Block.forward`; the definition computes inputs that kernels do not serve."""
        result = self._pass(x, context, (states,) if states else ())
        if result is None:
            by_definition: tuple[Tensor, BlockState] = self.block(x, context, states)
            return by_definition
        y, after = result
        return y, after[0] if after else (None,) * len(self.block.sublayers)


CpuBlock = AttentionBlock | RecurrentBlock
"""A block by kernels in C, with the struct `layer` that the kernels take."""


class CpuPass:
    """All blocks of a stack in one call of kernels in C.

    Args:
        blocks: blocks with equal masks, rotary embeddings and key heads.
        program: program of these blocks.
    """

    def __init__(self, blocks: Sequence[Block], program: StackProgram) -> None:
        own = [block.self_attention for block in blocks]
        cross = [block.cross_attention for block in blocks]
        self._attends = [each is not None for each in own]
        # `one_call_refusals` made sure that all attentions agree in the fields that a call has
        # once.
        self._own = next((each for each in own if each is not None), None)
        self._cross = next((each for each in cross if each is not None), None)
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
            x: input [B, L, D] float32; [1, R, D] without its padding.
            context: positions of the pass; its capture is ignored.
            states: states of each block, or none.

        Returns:
            Output, shaped as x, and the states after x's tokens; None where the blocks need to be
            called one by one.
        """
        split = [split_states(each) for each in states]
        caches = {i: cache for i, (cache, _, _) in enumerate(split) if cache is not None}
        recurrent = {i: state for i, (_, state, _) in enumerate(split) if state is not None}
        memory = {i: read for i, (_, _, read) in enumerate(split) if read is not None}
        if not self._serves(x, context, caches.values()):
            return None
        x, positions = x.contiguous(), context.positions
        args = self._program.begin()
        alive: list[object] = []  # tensors that `args` has only the addresses of
        grown: dict[int, MixerState] = {}
        if (own := self._own) is not None:
            alive.append(set_positions(args.self, positions, own.mask))
            if self._program.rotary is not None:
                alive.append(table := rotary_table(self._program.rotary, row_positions(context)))
                args.rotary = table
        if caches:
            assert own is not None
            batch, count = positions.query.shape
            shape = (batch, own.key_heads_left, count, own.head_width)
            # C writes the new keys and values into the slots that are claimed here.
            claims = {i: cast("BeamCache", cache).claim(shape, x) for i, cache in caches.items()}
            grown |= {i: cache for i, (cache, _) in claims.items()}
            stores = {i: places_of(store) for i, (_, store) in claims.items()}
            begins = self._set_strides(args.self, stores)
            if begins is None:
                return None
            args.keys, args.values = begins
            args.num_cached = positions.key.shape[1] - count
        if not all(self._attends):
            after, kept = self._set_recurrence(args, context, recurrent)
            grown |= after
            alive.append(kept)
        if self._cross is not None:
            assert context.memory_positions is not None
            alive.append(set_positions(args.cross, context.memory_positions, self._cross.mask))
            begins = self._set_strides(
                args.cross, {i: places_of(each) for i, each in memory.items()}
            )
            if begins is None:
                return None
            args.memory_keys, args.memory_values = begins
        if (packed := rows_of(context)) is not None:
            starts = address(packed.starts)
            args.self.query_starts = args.self.key_starts = starts
            args.cross.query_starts = args.recurrence.starts = starts
        rows, library = x.shape[0] * x.shape[1], kernels()
        # One workspace serves all layers in turn.
        space = workspace(library.heedful_stack_workspace(args, rows))
        y = torch.empty_like(x)
        library.heedful_stack(args, x.data_ptr(), rows, y.data_ptr(), space.data_ptr())
        # Without caches and recurrences (an encoder) the states are returned unchanged.
        if not grown:
            return y, tuple(states)
        return y, tuple((grown[i], *each[1:]) for i, each in enumerate(states))

    def _serves(self, x: Tensor, context: Context, caches: Iterable[KeyValueCache]) -> bool:
        """Return whether one call can compute this pass."""
        if self._own is not None and context.biases:
            return False
        # Other caches (rings, fixed slots) decide in Python where a token goes.
        if any(type(cache) is not BeamCache for cache in caches):
            return False
        return all(self._attends) or (context.positions.query_segment is None and bool(x.numel()))

    def _set_strides(
        self, args: AttentionArgs, places: Mapping[int, HeadAddresses]
    ) -> tuple[Any, Any] | None:
        """Set the strides of keys and values; return the addresses of each block's.

        Returns:
            Addresses of all keys and of all values; None where the blocks' strides differ.
        """
        # One call has one set of strides for all blocks, and needs adjacent elements of a head.
        keys, values, *strides = zip(*places.values(), strict=True)
        if any(len(set(each)) > 1 or each[0][3] != 1 for each in strides):
            return None
        args.key_batch, args.key_head, args.key_slot, _ = strides[0][0]
        args.value_batch, args.value_head, args.value_slot, _ = strides[1][0]
        return tuple(
            self._of_blocks(dict(zip(places, each, strict=True))) for each in (keys, values)
        )

    def _set_recurrence(
        self, args: StackArgs, context: Context, states: Mapping[int, ScanState]
    ) -> tuple[dict[int, MixerState], object]:
        """Set the sequences that recurrences run over, and their states.

        Returns:
            The states after this pass by block number, and objects that must outlive the call.
        """
        positions = context.positions.query.contiguous()
        args.recurrence.num_texts = len(positions)
        if rows_of(context) is None:
            args.recurrence.positions = positions.data_ptr()
        if not states:
            return {}, positions
        before = {i: state.tensors[0].contiguous() for i, state in states.items()}
        after = {i: torch.empty_like(each) for i, each in before.items()}
        args.recurrence.num_texts = next(iter(before.values())).shape[:2].numel()
        args.states = self._of_blocks({i: each.data_ptr() for i, each in before.items()})
        args.next_states = self._of_blocks({i: each.data_ptr() for i, each in after.items()})
        return {i: ScanState((each,)) for i, each in after.items()}, (positions, before)

    def _of_blocks(self, addresses: Mapping[int, int]) -> Any:
        """Return addresses by block number as an array; null for blocks without one."""
        return self._addresses(*map(addresses.get, range(len(self._program))))


def split_states(
    states: BlockState,
) -> tuple[KeyValueCache | None, ScanState | None, KeyValues | None]:
    """Return a block's cache, its recurrence's state, and its keys and values of the memory."""
    if not states:
        return None, None, None
    own, memory = states[0], cast("KeyValues | None", states[1] if len(states) > 2 else None)
    if isinstance(own, ScanState):
        return None, own, memory
    return cast("KeyValueCache | None", own), None, memory


def norm_rows(x: Tensor, norm: nn.Module) -> Tensor:
    """Norm x [..., D] by a kernel, or by the module where kernels do not serve."""
    weight, bias, epsilon = norm_parts(norm)
    # The kernel knows an RMS norm by its missing bias, so a layer norm needs one.
    is_known = (bias is None) == is_rms(norm)
    if weight is None or not is_known or not _serves(x, weight):
        y: Tensor = norm(x)
        return y
    x = x.contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    struct = Norm(address(weight), address(bias), epsilon)
    kernels().heedful_norm(struct, x.data_ptr(), x.numel() // width, width, y.data_ptr())
    return y


def _serves(*tensors: Tensor) -> bool:
    if kernels() is None:
        return False
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
