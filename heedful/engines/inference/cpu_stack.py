"""A stack by kernels in C: all blocks in one call, or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self, cast

from torch import Tensor

from heedful.engines.class_exchange import has_no_hooks
from heedful.engines.inference.cpu_block import (
    SHOWN,
    AttentionBlock,
    CpuBlock,
    CpuPass,
    RecurrentBlock,
)
from heedful.engines.inference.cpu_embedding import norm_rows
from heedful.engines.inference.engine_parts import EnginePart, become
from heedful.engines.inference.lowering import (
    StackProgram,
    WeightSource,
    lower_block,
    lower_rotary,
    stack_rotary,
)
from heedful.engines.inference.support import block_refusals, one_call_refusals
from heedful.engines.unpadding import PackedContext, RealRows, rows_in_front
from heedful.models.block import Block, BlockState
from heedful.models.stack import Stack
from heedful.models.stack_spec import StackSpec
from heedful.nn.attention.cache import SegmentInputs
from heedful.nn.mixer import Context


class CpuStack(EnginePart, Stack):
    """A stack whose linear layers are packed for kernels in C.

    Blocks that are looked into, and those that kernels in C do not serve, are computed by the
    definition, with the packed layers.

    Attributes:
        cpu_blocks: each block by kernels in C; None where they do not serve it.
        program: all blocks in one call; None where they need to be called one by one.
    """

    cpu_blocks: list[CpuBlock | None]
    program: CpuPass | None

    @classmethod
    def of(cls, stack: Stack, spec: StackSpec, width: int, weights: WeightSource | None) -> Self:
        """A stack of an engine's copy as one of this class.

        Args:
            stack: its layers are packed; its attributes are shared.
            spec: of the stack.
            width: D.
            weights: of the copy, by name; None where they are not packed for kernels in C.
        """
        made = become(stack, cls)
        made.cpu_blocks = []
        name = stack.name
        blocks = list(cast("Iterable[Block]", stack.blocks))
        for number, (block, own) in enumerate(zip(blocks, spec.blocks, strict=True)):
            if weights is None or block_refusals(own, width, name):
                made.cpu_blocks.append(None)
                continue
            layer = lower_block(weights, f"{name}.blocks.{number}", own, width)
            attention = own.attentions().get("self_attention")
            if attention is None:
                made.cpu_blocks.append(RecurrentBlock(block, layer, weights))
                continue
            rotary = lower_rotary(attention, width)
            made.cpu_blocks.append(AttentionBlock(block, layer, rotary))
        made.program = None
        usable = [block for block in made.cpu_blocks if block is not None]
        if weights and len(usable) == len(blocks) and not one_call_refusals(spec, width, name):
            layers = [each.layer for each in usable]
            made.program = CpuPass(blocks, StackProgram(layers, stack_rotary(spec, width), weights))
        return made

    @property
    def is_whole(self) -> bool:
        """True if all blocks are computed in one call, and no residual was cut."""
        return self.program is not None and not self._uses_definition

    @property
    def _uses_definition(self) -> bool:
        blocks = cast("Iterable[Block]", self.blocks)
        return self.by_definition or any(block.cut for block in blocks) or not has_no_hooks(*blocks)

    def forward(self, x: Tensor, context: Context, read: Sequence[BlockState] = ()) -> Tensor:
        """See `Stack.forward`; padding is left out where it comes last."""
        rows = self._real_rows(context)
        if rows is None:
            return super().forward(x, context, read)
        packed = rows.pack(x)
        here = self._enter(packed, PackedContext.of(context, rows, packed))
        y, _ = self._run(packed, here, read)
        return rows.unpack(self._leave(y, here))

    def _run(
        self, x: Tensor, here: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        if self._uses_definition or _read_segments(states):
            return super()._run(x, here, states)
        capture = here.capture
        if capture is None and self.program is not None:
            result = self.program(x, here, states)
            if result is not None:
                return result
        after: list[BlockState] = []
        for index, block in enumerate(self.blocks):
            inside = here.at(str(index))
            run: Callable[..., tuple[Tensor, BlockState]] = block
            in_c = self.cpu_blocks[index]
            shown = self._shown(index)
            if in_c and (capture is None or not capture.concerns(inside.address, besides=shown)):
                run = in_c
            x, state = run(x, inside, states[index] if states else ())
            inside.offer("output", x)
            after.append(state)
        return x, tuple(after)

    def _leave(self, x: Tensor, here: Context) -> Tensor:
        if self._uses_definition:
            return super()._leave(x, here)
        if self.final_norm is not None:
            x = norm_rows(x, self.final_norm)
        here.offer("output", x)
        return x

    def _real_rows(self, context: Context) -> RealRows | None:
        """The rows of a pass that goes without its padding; None where padding stays."""
        if self._uses_definition:
            return None
        if self.position_bias is not None or context.biases or not all(self.cpu_blocks):
            return None
        if any(getattr(b.self_attention, "position_bias", None) is not None for b in self._blocks):
            return None  # a bias is computed for each slot
        if context.positions.query_segment is not None and not self._attends_everywhere:
            return None  # recurrences of packed texts are computed by the definition
        if context.capture is not None:
            numbers = range(len(self.blocks))
            harmless = [f"{number}.{each}" for number in numbers for each in self._shown(number)]
            if context.capture.concerns(self.name, besides=harmless):
                return None
        return rows_in_front(context.positions.query)

    @property
    def _attends_everywhere(self) -> bool:
        return all(block.self_attention is not None for block in self._blocks)

    def _shown(self, number: int) -> tuple[str, ...]:
        """Return the captures within a block that kernels in C can give."""
        block = cast("Block", self.blocks[number])
        return () if block.self_attention is None else SHOWN


def _read_segments(states: Sequence[BlockState]) -> bool:
    """Return whether self-attention reads tokens before a segment, of which it makes keys anew."""
    return any(isinstance(state, SegmentInputs) for each in states for state in each)
