"""The decoder of recurrent translators: cells and attention that may depend on each other.

The source is a fixed vector (Sutskever 2014; Cho 2014); or additive attention is queried by the
previous state (Bahdanau 2015); or multiplicative attention is queried by the current state, and its
output may be fed to the next step (Luong 2015). Where a step reads the output of attention, a whole
sequence is a loop over its tokens, as in the papers; otherwise layers read the sequence at once.

Shapes: B sentences, W beams of each, L length, S length of the memory, D model width; P vectors of
a layer's state, N layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from heedful.config import Direction
from heedful.device import full_precision
from heedful.nn.attention.cache import KeyValues
from heedful.nn.attention.score_attention import (
    ScoreFunction,
    offer_weights,
    one_memory,
)
from heedful.nn.mixer import Context, Memory, Reordering
from heedful.nn.mixer_spec import RecurrentDecoderSpec
from heedful.nn.mixers.recurrent import RecurrentLayers, Runs
from heedful.nn.work import FLOAT32, Saved, Work, weight_work


@dataclass(frozen=True)
class RecurrentDecoderState:
    """The projected source of a decoder, and the states of its layers for each beam.

    Args:
        summary: [B, D], the encoder's last state.
        start: [B, N · P, D], the states of all layers before the first token.
        vectors: [B, W, N · P, D], current states of all layers.
        output: [B, W, D], output of the previous step; zeros before the first.
        memory: keys and values of the attention; None without attention.
    """

    summary: Tensor
    start: Tensor
    vectors: Tensor
    output: Tensor
    memory: KeyValues | None = None

    def reorder(self, choice: Reordering) -> RecurrentDecoderState:
        """Return the state of the chosen beams and sentences."""
        summary, start, memory = self.summary, self.start, self.memory
        if choice.sentences is not None:
            summary = summary.index_select(0, choice.sentences)
            start = start.index_select(0, choice.sentences)
            memory = None if memory is None else memory.reorder(choice)
        # Beams move as rows; summary and start belong to the sentence and are shared by its beams.
        vectors, output = (each.flatten(0, 1)[choice.rows] for each in (self.vectors, self.output))
        return RecurrentDecoderState(summary, start, vectors, output, memory)

    @property
    def own(self) -> tuple[Tensor, ...]:
        """The tensors that belong to single beams."""
        return self.vectors, self.output


class RecurrentDecoder(nn.Module):
    """Recurrent layers over a memory, with attention to it or only with its last state.

    Args:
        width: model width D.
        spec: cell, layers, attention, feeding and readout.

    A capture may ask for `{address}.weights` [B, 1, L, S] and `{address}.context` [B, 1, L, D]
    where there is attention.
    """

    def __init__(self, width: int, spec: RecurrentDecoderSpec) -> None:
        super().__init__()
        self.width = width
        self.spec = spec
        # Input feeding: the first layer reads [token; context or output] (Luong 2015, section 3.3).
        more = width if spec.feeding != "none" else 0
        self.layers = nn.ModuleList(
            RecurrentLayers(
                width + (more if number == 0 else 0), width, spec.cell, keep_bias=spec.keep_bias
            )
            for number in range(spec.num_layers)
        )
        self.dropout = nn.Dropout(spec.dropout)
        self.vectors = spec.num_layers * self._layer(0).vectors
        # s₀ = tanh(W · last state), as in Bahdanau 2015, for every layer and vector of its state.
        self.start = nn.Linear(width, self.vectors * width)
        self.attention = None
        if spec.attention is not None:
            self.num_heads = 1  # whose weights can be shown
            self.attention = ScoreFunction(width, spec.attention)
        self.readout = None
        if spec.readout == "tanh":
            self.readout = nn.Linear(2 * width, width)
        elif spec.readout == "maxout":
            # Maxout of pairs (Goodfellow 2013): of state, token and context (Bahdanau 2015, A.2.2).
            self.readout = nn.Linear(3 * width, 2 * width)
        for layer in (self.start, self.readout):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def _layer(self, number: int) -> RecurrentLayers:
        return cast("RecurrentLayers", self.layers[number])

    def read(self, memory: Memory) -> RecurrentDecoderState:
        """Project a memory, and compute the states before the first token."""
        states = memory.states
        with full_precision(states):
            # Cells run in the weights' dtype: rounding errors of states would add up over steps.
            states = states.to(self._layer(0).dtype)
            summary = last_state(states, memory.positions, self.spec.summary)
            start = torch.tanh(self.start(summary)).unflatten(-1, (self.vectors, self.width))
            keys = None
            if self.attention is not None:
                keys = self.attention.read(replace(memory, states=states))
        output = summary.new_zeros((len(summary), 1, self.width))
        return RecurrentDecoderState(summary, start, start[:, None], output, keys)

    def restart(self, state: RecurrentDecoderState) -> RecurrentDecoderState:
        """Return the state before the first token, with one beam for each sentence."""
        output = torch.zeros_like(state.summary)[:, None]
        return replace(state, vectors=state.start[:, None], output=output)

    def step(
        self, x: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, RecurrentDecoderState]:
        """Read more tokens; see `CrossMixer.step`. Padding does not change the state.

        Args:
            x: [B, W, D], one token of each beam; or [B, L, D], tokens of the only beam.
            state: state from `read`, `step` or `reorder`.
            context: positions of the tokens and of the memory.
        """
        # Called only for its check: packed sources are refused before any state is
        # computed from them.
        one_memory(context)
        with full_precision(x):
            tokens = x.to(state.start.dtype)
            if state.vectors.shape[1] > 1 or x.shape[1] == 1:
                result, state = self._step_beams(tokens, state, context)
            elif self.is_sequential:
                result, state = self._loop(tokens, state, context)
            else:
                result, state = self._sequence(tokens, state, context)
        return result.to(x.dtype), state

    @property
    def is_sequential(self) -> bool:
        """True where a step reads the output of attention, so that steps depend on each other."""
        return self.attention is not None and self.spec.feeding != "none"

    def _sequence(
        self, x: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, RecurrentDecoderState]:
        """Read tokens of the only beam [B, L, D] layer by layer."""
        # Without feeding nothing flows from attention to a cell, so each layer is one fast call.
        runs = Runs.of(context.positions)
        vector = state.summary[:, None].expand_as(x)
        before = state.vectors[:, 0].unflatten(1, (self.spec.num_layers, -1))
        top, after = torch.cat([x, vector], -1) if self.spec.feeding == "context" else x, []
        for number in range(self.spec.num_layers):
            read = self._between(top, number)
            states, last = self._layer(number).sequence(read, runs, before[:, number])
            top = self._with_residual(states, read, number)
            after.append(last)
        mixed = vector
        if self.attention is not None:
            mixed, weights = self._attend(top, state, context)
            self._offer(context, mixed, weights)
        result = self._read_out(top, x, mixed)
        return result, replace(state, vectors=torch.cat(after, 1)[:, None])

    def _loop(
        self, x: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, RecurrentDecoderState]:
        """Read tokens of the only beam [B, L, D] in a loop."""
        runs = Runs.of(context.positions)
        tokens, real = runs.take(x), runs.is_real[:, :, None]
        outputs: list[tuple[Tensor, Tensor, Tensor]] = []
        for number in range(tokens.shape[1]):
            top, mixed, weights, after = self._advance(
                tokens[:, number : number + 1], state, context
            )
            if self.spec.feeding == "output":
                top = self._read_out(top, tokens[:, number : number + 1], mixed)
                after = replace(after, output=torch.where(real[:, number, None], top, state.output))
            # Rows that have ended keep their state, while longer ones go on.
            vectors = torch.where(real[:, number, None, None], after.vectors, state.vectors)
            state = replace(after, vectors=vectors)
            outputs.append((top, mixed, weights))
        if not outputs:
            return x, state
        top, mixed, weights = (torch.cat(each, 1) for each in zip(*outputs, strict=True))
        # With output feeding each step has computed its output; otherwise one call computes all.
        if self.spec.feeding != "output":
            top = self._read_out(top, tokens, mixed)
        self._offer(context, runs.place(mixed, x), runs.place(weights, x))
        return runs.place(top, x), state

    def _step_beams(
        self, x: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, RecurrentDecoderState]:
        """Read one token of each beam [B, W, D]."""
        top, mixed, weights, after = self._advance(x, state, context)
        result = self._read_out(top, x, mixed)
        if self.attention is not None:
            self._offer(context, mixed, weights)
        real = context.positions.query.reshape(*x.shape[:2], 1) >= 0
        return result, replace(
            after,
            vectors=torch.where(real[..., None], after.vectors, state.vectors),
            output=torch.where(real, result, state.output),
        )

    def _advance(
        self, x: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, Tensor, Tensor, RecurrentDecoderState]:
        """Read one token of each beam [B, W, D].

        Returns:
            The last layer's state and the context vector, [B, W, D] each; weights [B, W, S], empty
            without attention; and the state after the token, with the output of the previous step.
        """
        shape, attends_first = x.shape[:2], self.spec.feeding == "context"
        before = state.vectors.unflatten(2, (self.spec.num_layers, -1))
        mixed, weights = state.summary[:, None].expand_as(x), x[..., :0]
        if self.attention is not None and attends_first:
            # Bahdanau's order: the query is the last layer's previous state, for an LSTM h without
            # its cell.
            mixed, weights = self._attend(before[:, :, -1, 0], state, context)
        extra = {"none": [], "context": [mixed], "output": [state.output]}[self.spec.feeding]
        top, after = torch.cat([x, *extra], -1), []
        for number in range(self.spec.num_layers):
            read = self._between(top, number).flatten(0, 1)
            vectors = self._layer(number).advance(read, before[:, :, number].flatten(0, 1))
            top = self._with_residual(vectors[:, 0], read, number).unflatten(0, shape)
            after.append(vectors.unflatten(0, shape))
        if self.attention is not None and not attends_first:
            # Luong's order: the query is the state after the token.
            mixed, weights = self._attend(top, state, context)
        return top, mixed, weights, replace(state, vectors=torch.cat(after, 2))

    def _attend(
        self, query: Tensor, state: RecurrentDecoderState, context: Context
    ) -> tuple[Tensor, Tensor]:
        assert self.attention is not None
        assert state.memory is not None
        assert context.memory_positions is not None
        mixed, weights = self.attention(query, state.memory, context.memory_positions.key)
        return mixed, weights

    def _between(self, x: Tensor, number: int) -> Tensor:
        """Return the input of a layer from the layer below, after dropout."""
        # Between layers only, not within a state: recurrent noise would add up (Zaremba 2014).
        dropped: Tensor = self.dropout(x) if number else x
        return dropped

    def _with_residual(self, states: Tensor, read: Tensor, number: int) -> Tensor:
        # From the second layer on: the first reads token and context, which may be wider (Wu 2016).
        return states + read if self.spec.residual and number else states

    def _read_out(self, top: Tensor, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the output [..., D] from state, token and context [..., D] each."""
        if self.readout is None:
            return top
        if self.spec.readout == "tanh":
            # tanh(W [c; h]) (Luong 2015, equation 5).
            return torch.tanh(self.readout(torch.cat([mixed, top], -1)))
        pairs: Tensor = self.readout(torch.cat([top, x, mixed], -1)).unflatten(-1, (-1, 2))
        return pairs.amax(-1)

    def _offer(self, context: Context, mixed: Tensor, weights: Tensor) -> None:
        offer_weights(context, weights)
        context.offer("context", mixed[:, None])

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of tokens that attend to a memory; see `Costed`."""
        maps: Sequence[nn.Module] = [self.layers, *([self.readout] if self.readout else [])]
        own = Work(weights=queries * weight_work(*maps))
        if self.attention is None:
            return own
        return own + self.attention.work(queries, keys, self.width)

    def read_work(self, tokens: int) -> Work:
        """Return the operations of projecting `tokens` tokens of a memory."""
        first = Work(weights=weight_work(self.start))
        return first if self.attention is None else first + self.attention.read_work(tokens)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes kept of a memory: keys and values, its last state, and first states."""
        numbers = self.width * (1 + self.vectors)
        if self.attention is not None:
            numbers += tokens * (self.attention.key_width(self.width) + self.width)
        return numbers * FLOAT32

    @property
    def beam_bytes(self) -> int:
        """Bytes that each beam has to itself: the states of the layers and the last output."""
        return self.width * (self.vectors + 1) * FLOAT32

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Return the elements of gates, states, weights and readout inputs; see `Costed`."""
        total = Saved()
        for number in range(self.spec.num_layers):
            total = total.plus(self._layer(number).saved(by_step=self.is_sequential))
        if self.attention is not None:
            total = total.plus(self.attention.saved(length, self.width))
        inputs = {"none": 0, "tanh": 3, "maxout": 5}[self.spec.readout]
        fed = 2 if self.spec.feeding != "none" else 0
        return total.plus(Saved((inputs + fed) * self.width))

    def read_saved(self, mixed: bool) -> Saved:
        """Return the elements that a token of the memory keeps for gradients: key and value."""
        if self.attention is None:
            return Saved()
        return Saved(0, 0, self.attention.key_width(self.width) + self.width)


def last_state(states: Tensor, positions: Tensor, direction: Direction) -> Tensor:
    """Return the state of an encoder after all tokens; zeros for a sequence without tokens.

    Args:
        states: [B, S, D].
        positions: [B, S] int64; −1 is padding.
        direction: direction of the encoder; with both, each has half of the width.

    Returns:
        [B, D].
    """
    if not states.shape[1]:
        return states.new_zeros(states.shape[0], states.shape[2])
    real = positions >= 0
    far = positions.new_tensor(torch.iinfo(positions.dtype).max)
    # By position and not by index, since padding may stand on either side.
    ends = positions.argmax(1), torch.where(real, positions, far).argmin(1)
    last, first = (states[torch.arange(len(states)), end] for end in ends)
    half = states.shape[-1] // 2
    both = torch.cat([last[:, :half], first[:, half:]], -1)
    return {"forward": last, "backward": first, "both": both}[direction] * real.any(1)[:, None]
