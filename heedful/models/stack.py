"""Blocks on top of each other, and the state they decode with.

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
from heedful.nn.attention.beam_cache import Lineage, choose_beams, chosen_sentences
from heedful.nn.attention.cache import SegmentInputs
from heedful.nn.attention.relative_positions import build_bias
from heedful.nn.mixer import Context, MakeCache, Memory, MixerState, Reordering
from heedful.nn.norms import build_norm
from heedful.nn.positions import Positions


@dataclass(frozen=True)
class StackState:
    """Everything a stack remembers while it decodes B sentences with W beams each: a value.

    Args:
        blocks: of every block the states of its mixers.
        lineage: of the tokens in rows that the beams of a sentence share; None where each beam has
            rows of its own.
        width: W.
        memory_positions: [B, S] int64 of the memory that is read, if there is one.
    """

    blocks: tuple[BlockState, ...]
    lineage: Lineage | None
    width: int = 1
    memory_positions: Tensor | None = None

    def append(self, positions: Tensor) -> tuple[Self, Context]:
        """Return the state with more tokens, before the blocks have read them, and their context.

        Args:
            positions: [B, W] int64, a token of each beam; [B, n], n tokens of the only beam.
        """
        memory = None
        if self.memory_positions is not None:
            memory = Positions(query=positions, key=self.memory_positions)
        if self.lineage is None:
            own = positions.reshape(-1, 1) if self.width > 1 else positions
            return self, Context(Positions.of_self(own), memory)
        lineage, shared = self.lineage.append(positions)
        return replace(self, lineage=lineage), Context(shared, memory)

    def reorder(self, rows: Tensor) -> Self:
        """Return the state of chosen, repeated or dropped beams and sentences.

        Args:
            rows: [B', W'] int64; entry `sentence · W + beam` takes the place it stands at. All
                entries of a row are beams of one sentence, so its memory is never copied per beam.
        """
        lineage, memory, choice = None, self.memory_positions, Reordering(rows)
        if self.lineage is not None:
            lineage, choice = choose_beams(self.lineage, rows)
        elif memory is not None:
            choice = Reordering(rows, chosen_sentences(rows, self.width, len(memory)))
        if memory is not None and choice.sentences is not None:
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
        spec: the blocks, the final norm and dropout, a shared position bias.
        name: prefix of captures in this stack, `encoder` or `decoder`.
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
            attention = next(
                part for block in spec.blocks for part in block.mixers() if part.kind == "attention"
            )
            self.position_bias = build_bias(spec.shared_position_bias, attention, width)

    def forward(self, x: Tensor, context: Context, read: Sequence[BlockState] = ()) -> Tensor:
        """Pass whole sequences through every block.

        Args:
            x: [B, L, D], embedded.
            context: positions of x. A capture may ask for x itself, [B, L, D], as
                `{name}.embedding`, for the output of block N as `{name}.N.output`, and for the
                result as `{name}.output`.
            read: the memory as every block keeps it, from `read`.

        Returns:
            [B, L, D].
        """
        here = self._enter(x, context)
        x, _ = self._run(x, here, read)
        return self._leave(x, here)

    def read(self, memory: Memory) -> tuple[BlockState, ...]:
        """Return a memory as every block keeps it: keys and values, projected once.

        Args:
            memory: with states [B, S, D].
        """
        return tuple(
            tuple(part.read(memory) if hasattr(part, "read") else None for part in block.parts())
            for block in self._blocks
        )

    def read_from(self, state: StackState) -> tuple[BlockState, ...]:
        """Return the memory as every block keeps it in a state."""
        return tuple(
            tuple(
                _memory_alone(part, each) if hasattr(part, "read") else None
                for part, each in zip(block.parts(), states, strict=True)
            )
            for block, states in zip(self._blocks, state.blocks, strict=True)
        )

    def memory_attention(self) -> dict[str, int]:
        """Return the attentions over a memory, in their order: address and number of the layer."""
        return {
            f"{self.name}.{number}.{sublayer.address}": number
            for number, block in enumerate(self._blocks)
            for sublayer, part in zip(block.sublayers, block.parts(), strict=True)
            if hasattr(part, "read") and hasattr(part, "num_heads")
        }

    def start(
        self, like: Tensor, memory: Memory | None = None, make_cache: MakeCache | None = None
    ) -> StackState:
        """Return the state before the first token, of one beam for each sentence.

        Args:
            like: [B, ...], a row for each sentence, on the device.
            memory: to be read, if the blocks read one.
            make_cache: kind of cache; each beam has rows of its own in it. None for one whose rows
                all beams of a sentence share. Without attention there are no such rows.
        """
        read = self.read(memory) if memory is not None else ((),) * len(self.blocks)
        blocks = tuple(
            _initial_state(block, each, like, make_cache)
            for block, each in zip(self._blocks, read, strict=True)
        )
        shares_rows = make_cache is None and self.attends
        lineage = Lineage.empty(len(like), like.device) if shares_rows else None
        return StackState(blocks, lineage, 1, None if memory is None else memory.positions)

    def step(self, x: Tensor, positions: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Pass more tokens through every block.

        Args:
            x: [B, W, D], a token of each beam; [B, n, D], n tokens of the only beam.
            positions: [B, W] or [B, n] int64, of these tokens; −1 is padding, on any side.
            state: from `start`, `step` or `reorder`.

        Returns:
            As x, and the state after these tokens.
        """
        state, context = state.append(positions)
        here = self._enter(x, context)
        x, blocks = self._run(x, here, state.blocks)
        return self._leave(x, here), replace(state, blocks=blocks)

    def read_segment(
        self, x: Tensor, context: Context, inputs: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pass a segment of each text through every block, which also see tokens before it.

        Args:
            x: [B, L, D], embedded.
            context: positions of the segment as queries, and of the M + L tokens as keys.
            inputs: of every self-attention, [B, M, D] each, the tokens before.

        Returns:
            [B, L, D], and the inputs of every self-attention, of the last M tokens.
        """
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
        """Return the context of the blocks of a pass, which begins with x [B, L, D]."""
        shared = () if self.position_bias is None else (self.position_bias,)
        context = replace(context, embedding=x, biases=(*context.biases, *shared))
        here = context.at(self.name)
        here.offer("embedding", x)
        return here

    def _run(
        self, x: Tensor, here: Context, states: Sequence[BlockState]
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        """Pass x [B, L, D] through the blocks; return it with the states after its tokens.

        Args:
            x: output of the embedding.
            here: context of the blocks, from `_enter`.
            states: state of every block before these tokens; empty where nothing is kept.
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
    """Return where a block computes and in what type.

    An engine replaces linear layers and keeps the norms. A block without norms may then have no
    parameters left, but biases, which are of the type of the products.
    """
    biases = (getattr(each, "bias", None) for each in block.modules())
    # The first will do: nearly always a parameter, so that a search begins without a list of all.
    tensors = chain(block.parameters(), biases)
    found = next((each for each in tensors if isinstance(each, Tensor)), None)
    return (rows.device, torch.float32) if found is None else (found.device, found.dtype)


def _memory_alone(part: Any, state: Any) -> Any:
    """Return the state of a part that reads a memory, without the tokens read since."""
    restart = getattr(part, "restart", None)
    return state if restart is None else restart(state)


def _initial_state(
    block: Block, read: BlockState, rows: Tensor, make_cache: MakeCache | None
) -> BlockState:
    """Return the states of a block before the first token, beside those it read of a memory."""
    device, dtype = _device_and_type(block, rows)
    like = torch.empty(0, dtype=dtype, device=device)
    like = like.to(requested_dtype(like))  # under autocast keys come in its type
    states: list[MixerState | None] = list(read) or [None] * len(block.sublayers)
    for index, part in enumerate(block.parts()):
        if hasattr(part, "initial_state"):
            states[index] = part.initial_state(len(rows), like, make_cache)
    return tuple(states)
