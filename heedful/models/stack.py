"""Stacks of blocks, and their state in decoding.

Shapes: B sentences, W beams of each, L length, S length of the memory, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from heedful.device import requested_dtype
from heedful.models.block import Block, BlockState
from heedful.models.stack_spec import StackSpec
from heedful.nn.attention.beam_cache import BeamCache, Lineage, choose_beams, chosen_sentences
from heedful.nn.attention.cache import SegmentInputs
from heedful.nn.mixer import Context, MakeCache, Memory, MixerState, Reordering, build_bias
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions


@dataclass(frozen=True)
class StackState:
    """Everything a stack remembers while it decodes B sentences with W beams each: a value.

    Args:
        blocks: states of the sub-layers of every block.
        lineage: lineage of the tokens in rows that the beams of a sentence share; None where each
            beam has rows of its own.
        width: number of beams W.
        memory_positions: [B, S] int64, positions of the memory, if there is one.
    """

    blocks: tuple[BlockState, ...]
    lineage: Lineage | None
    width: int = 1
    memory_positions: Tensor | None = None

    def append(self, positions: Tensor) -> tuple[Self, Context]:
        """Return the state with the positions of more tokens, and the context of their pass.

        Args:
            positions: [B, W] int64, a token of each beam; [B, n], n tokens of the only beam.
        """
        memory = None
        if self.memory_positions is not None:
            memory = Positions(query=positions, key=self.memory_positions)
        # Without shared rows a beam is a row of the batch, so its token becomes [B · W, 1].
        if self.lineage is None:
            own = positions.reshape(-1, 1) if self.width > 1 else positions
            return self, Context(Positions.of_self(own), memory)
        lineage, shared = self.lineage.append(positions)
        return replace(self, lineage=lineage), Context(shared, memory)

    def without_last(self, count: int) -> Self:
        """Return the state of one beam without its last `count` tokens, the same for all rows.

        Appending to the result writes over the tokens that were taken back. Only caches with a
        lineage can do it, so a caller checks the states first.
        """
        assert self.lineage is not None and self.width == 1
        blocks = tuple(
            tuple(
                None if each is None else cast("BeamCache", each).without_last(count)
                for each in states
            )
            for states in self.blocks
        )
        return replace(self, blocks=blocks, lineage=self.lineage.without_last(count))

    def reorder(self, rows: Tensor) -> Self:
        """Return the state of chosen, repeated or dropped beams and sentences.

        Args:
            rows: [B', W'] int64; the value `sentence · W + beam` names the beam that the new state
                has in this place. A row has beams of one sentence only, so that its memory is
                never copied for each beam.
        """
        # The lineage decides which slots of the shared rows stay, and all caches follow it.
        lineage, memory, choice = None, self.memory_positions, Reordering(rows)
        if self.lineage is not None:
            lineage, choice = choose_beams(self.lineage, rows)
        elif memory is not None:
            choice = Reordering(rows, chosen_sentences(rows, self.width, len(memory)))
        if memory is not None and choice.sentences is not None:
            # Most steps keep all sentences: then `sentences` is None and nothing is copied.
            memory = memory.index_select(0, choice.sentences)
        blocks = tuple(
            tuple(None if state is None else state.reorder(choice) for state in states)
            for states in self.blocks
        )
        return replace(
            self, blocks=blocks, lineage=lineage, width=rows.shape[1], memory_positions=memory
        )


class Stack(nn.Module):
    """An encoder, or a decoder when its blocks read a memory.

    Args:
        width: model width D.
        spec: blocks, final norm and dropout, shared position bias.
        name: prefix of the addresses of captures, `encoder` or `decoder`.
    """

    def __init__(self, width: int, spec: StackSpec, name: str) -> None:
        super().__init__()
        self.name = name
        self.blocks = nn.ModuleList(Block(width, block) for block in spec.blocks)
        self.final_norm = build_norm(spec.final_norm, width) if spec.final_norm else None
        self.final_dropout = nn.Dropout(spec.final_dropout)
        self.attends = spec.has_self_attention
        self.position_bias = None
        if spec.shared_position_bias is not None:
            # A bias has a value for each head, and all layers have as many heads (Raffel 2020).
            attention = next(each for each in spec.attentions() if not each.reads_memory)
            self.position_bias = build_bias(spec.shared_position_bias, attention, width)

    def forward(self, x: Tensor, context: Context, read: Sequence[BlockState] = ()) -> Tensor:
        """Pass whole sequences through every block.

        Args:
            x: embedded tokens [B, L, D].
            context: positions of x. A capture may ask for x as `{name}.embedding`, for the output
                of block N as `{name}.N.output`, and for the result as `{name}.output`.
            read: result of `read` for the memory.

        Returns:
            Output of the last block [B, L, D], after the final norm.
        """
        here = self._enter(x, context)
        x, _ = self._run(x, here, read)
        return self._leave(x, here)

    def read(self, memory: Memory) -> tuple[BlockState, ...]:
        """Project a memory to the keys and values of every block, once for all steps.

        Args:
            memory: encoder output with states [B, S, D].
        """
        return tuple(
            tuple(None if part is None else part.read(memory) for part in block.readers())
            for block in self._blocks
        )

    def read_from(self, state: StackState) -> tuple[BlockState, ...]:
        """Return the projected memory of every block from a state, as `read` gives it."""
        return tuple(
            tuple(
                None if part is None else _memory_alone(part, each)
                for part, each in zip(block.readers(), states, strict=True)
            )
            for block, states in zip(self._blocks, state.blocks, strict=True)
        )

    def memory_attention(self) -> dict[str, int]:
        """Return the address and layer index of each attention over a memory, in their order."""
        return {
            f"{self.name}.{number}.{sublayer.address}": number
            for number, block in enumerate(self._blocks)
            for sublayer, part in zip(block.sublayers, block.readers(), strict=True)
            # A recurrent decoder without attention reads a memory and has no heads.
            if hasattr(part, "num_heads")
        }

    def start(
        self, like: Tensor, memory: Memory | None = None, make_cache: MakeCache | None = None
    ) -> StackState:
        """Return the state before the first token, of one beam for each sentence.

        Args:
            like: tensor [B, ...] with a row for each sentence, on the device of the state.
            memory: encoder output, for blocks with cross-attention.
            make_cache: constructor of caches in which each beam has rows of its own; None for a
                cache whose rows all beams of a sentence share.
        """
        read = self.read(memory) if memory is not None else ((),) * len(self.blocks)
        blocks = tuple(
            _initial_state(block, each, like, make_cache)
            for block, each in zip(self._blocks, read, strict=True)
        )
        # Mixers without keys have a state for each beam, and no rows to share.
        shares_rows = make_cache is None and self.attends
        lineage = Lineage.empty(len(like), like.device) if shares_rows else None
        return StackState(blocks, lineage, 1, None if memory is None else memory.positions)

    def step(self, x: Tensor, positions: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Pass more tokens through every block.

        Args:
            x: [B, W, D], a token of each beam; [B, n, D], n tokens of the only beam.
            positions: [B, W] or [B, n] int64, positions of these tokens; −1 is padding, on any
                side.
            state: result of `start`, `step` or `reorder`.

        Returns:
            The output, of the shape of x, and the state after these tokens.
        """
        state, context = state.append(positions)
        here = self._enter(x, context)
        x, blocks = self._run(x, here, state.blocks)
        return self._leave(x, here), replace(state, blocks=blocks)

    def read_segment(
        self, x: Tensor, context: Context, inputs: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pass a segment of each text through every block, with attention to tokens before it.

        Args:
            x: embedded tokens [B, L, D].
            context: positions of the segment as queries, and of the M + L tokens as keys.
            inputs: input of every self-attention for the tokens before, [B, M, D] each.

        Returns:
            The output [B, L, D], and the input of every self-attention for the last M tokens.
        """
        # Inputs are in the order of the self-attentions of the whole stack.
        kept = iter(inputs)
        states: list[Any] = [
            tuple(
                SegmentInputs(next(kept)) if hasattr(part, "read_segment") else None
                for part in block.parts()
            )
            for block in self._blocks
        ]
        here = self._enter(x, context)
        x, after = self._run(x, here, states)
        parts: Iterable[Any] = chain.from_iterable(after)
        return self._leave(x, here), tuple(
            part.inputs for part in parts if isinstance(part, SegmentInputs)
        )

    @property
    def _blocks(self) -> Iterable[Block]:
        return cast("Iterable[Block]", self.blocks)

    def _enter(self, x: Tensor, context: Context) -> Context:
        """Return the context of the blocks for a pass over x [B, L, D]."""
        # Handed down in the context: all blocks add the bias of one table (T5; Raffel 2020).
        shared = () if self.position_bias is None else (self.position_bias,)
        context = replace(context, embedding=x, biases=(*context.biases, *shared))
        here = context.at(self.name)
        here.offer("embedding", x)
        return here

    def _run(
        self, x: Tensor, here: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        """Pass x [B, L, D] through the blocks; return the output and the states after its tokens.

        Args:
            x: output of the embedding.
            here: context of the blocks, result of `_enter`.
            states: state of every block before these tokens; empty for whole sequences.
        """
        after: list[BlockState] = []
        for index, block in enumerate(self.blocks):
            inside = here.at(str(index))
            x, state = block(x, inside, states[index] if states else ())
            inside.offer("output", x)
            after.append(state)
        return x, tuple(after)

    def _leave(self, x: Tensor, here: Context) -> Tensor:
        """Apply the final norm and dropout to x [B, L, D], the output of the last block."""
        # Pre-norm blocks leave the stream without a norm (Wang 2019, "Learning Deep Transformer
        # Models"); post-norm stacks have no final norm, as in Vaswani 2017.
        if self.final_norm is not None:
            x = self.final_norm(x)
        x = self.final_dropout(x)
        here.offer("output", x)
        return x


def _device_and_type(block: Block, rows: Tensor) -> tuple[torch.device, torch.dtype]:
    """Return the device and the type of a block's computations.

    An engine replaces linear layers and keeps the norms. A block without norms may then have no
    parameters left, but biases, whose type is that of the matmuls.
    """
    biases = (getattr(each, "bias", None) for each in block.modules())
    # Usually the first parameter decides, so the generator never walks the other modules.
    tensors = chain(block.parameters(), biases)
    first = next((each for each in tensors if isinstance(each, Tensor)), None)
    return (rows.device, torch.float32) if first is None else (first.device, first.dtype)


def _memory_alone(part: Any, state: Any) -> Any:
    """Return the state of a part that reads a memory as it was before the first token."""
    restart = getattr(part, "restart", None)
    # Keys and values of cross-attention do not change; a recurrent decoder's state does.
    return state if restart is None else restart(state)


def _initial_state(
    block: Block, read: BlockState, rows: Tensor, make_cache: MakeCache | None
) -> BlockState:
    """Return the states of a block before the first token; `read` has those over a memory."""
    device, dtype = _device_and_type(block, rows)
    like = torch.empty(0, dtype=dtype, device=device)
    like = like.to(requested_dtype(like))  # under autocast keys come in its type
    states: list[MixerState | None] = list(read) or [None] * len(block.sublayers)
    for index, part in enumerate(block.parts()):
        if hasattr(part, "initial_state"):
            states[index] = part.initial_state(len(rows), like, make_cache)
    return tuple(states)
