"""A stack by kernels in C: all blocks in one call, or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self, cast

from torch import Tensor

from heedful.engines.class_exchange import EnginePart, become, has_no_hooks
from heedful.engines.inference.cpu_block import (
    KERNEL_CAPTURES,
    AttentionBlock,
    CpuBlock,
    CpuPass,
    RecurrentBlock,
    norm_rows,
)
from heedful.engines.inference.lowering import (
    StackProgram,
    WeightSource,
    lower_block,
    lower_rotary,
    stack_rotary,
)
from heedful.engines.inference.support import block_refusals, one_call_refusals
from heedful.engines.unpadding import RealRows, UnpaddedStack, rows_in_front
from heedful.models.block import Block, BlockState
from heedful.models.stack import Stack
from heedful.models.stack_spec import StackSpec
from heedful.nn.attention.cache import SegmentInputs
from heedful.nn.mixer import Context


class CpuStack(EnginePart, UnpaddedStack):
    """A stack whose linear layers are packed for kernels in C.

    Blocks with a capture inside, and blocks that kernels in C do not serve, are computed by the
    definition, with the packed layers.

    Attributes:
        cpu_blocks: blocks by kernels in C; None for a block that they do not serve.
        program: all blocks as one call; None where they need to be called one by one.
    """

    cpu_blocks: list[CpuBlock | None]
    program: CpuPass | None

    @classmethod
    def of(cls, stack: Stack, spec: StackSpec, width: int, weights: WeightSource | None) -> Self:
        """Make one from an engine's stack; without weights the definition computes all blocks."""
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
        # One block that the definition computes means a return to Python between blocks.
        usable = [block for block in made.cpu_blocks if block is not None]
        if weights and len(usable) == len(blocks) and not one_call_refusals(spec, width, name):
            layers = [each.layer for each in usable]
            made.program = CpuPass(blocks, StackProgram(layers, stack_rotary(spec, width), weights))
        return made

    @property
    def is_whole(self) -> bool:
        """True if one call computes all blocks, and no residual connection was cut."""
        return self.program is not None and not self._uses_definition

    @property
    def _uses_definition(self) -> bool:
        blocks = cast("Iterable[Block]", self.blocks)
        # Inspection cuts residuals and hooks blocks, which the call in C would not notice.
        return self.by_definition or any(block.cut for block in blocks) or not has_no_hooks(*blocks)

    def _run(
        self, x: Tensor, here: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        # Keys of the inputs before a segment are computed again, which the kernels cannot do.
        segments = any(isinstance(state, SegmentInputs) for each in states for state in each)
        if self._uses_definition or segments:
            return super()._run(x, here, states)
        capture = here.capture
        # The whole stack in one call if nothing inside is captured, else block by block.
        if capture is None and self.program is not None:
            result = self.program(x, here, states)
            if result is not None:
                return result
        after: list[BlockState] = []
        for index, block in enumerate(self.blocks):
            inside = here.at(str(index))
            run: Callable[..., tuple[Tensor, BlockState]] = block
            in_c = self.cpu_blocks[index]
            provided = self._kernel_captures(index)
            # The kernels give attention weights; any other capture inside needs the definition.
            if in_c and (capture is None or not capture.concerns(inside.address, besides=provided)):
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

    def _real_rows(self, x: Tensor, context: Context) -> RealRows | None:
        if self._uses_definition:
            return None
        if self.position_bias is not None or context.biases or not all(self.cpu_blocks):
            return None
        if any(getattr(b.self_attention, "position_bias", None) is not None for b in self._blocks):
            return None  # a bias is computed for each slot
        recurs = any(block.self_attention is None for block in self._blocks)
        if recurs and context.positions.query_segment is not None:
            return None  # the definition computes recurrences of packed sequences
        if context.capture is not None:
            # Kernels write attention weights in the padded shape; other captures would be packed.
            numbers = range(len(self.blocks))
            harmless = [
                f"{number}.{each}" for number in numbers for each in self._kernel_captures(number)
            ]
            if context.capture.concerns(self.name, besides=harmless):
                return None
        return rows_in_front(context.positions.query)

    def _kernel_captures(self, number: int) -> tuple[str, ...]:
        """Return the captures inside a block that kernels in C can provide."""
        block = cast("Block", self.blocks[number])
        return () if block.self_attention is None else KERNEL_CAPTURES
