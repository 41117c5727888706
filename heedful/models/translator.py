"""The encoder-decoder Transformer (Vaswani 2017)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.block import Sight
from heedful.models.spec import TranslatorSpec
from heedful.models.stack import Stack
from heedful.nn.attention import KeyValues
from heedful.nn.beam_cache import (
    BeamCache,
    Lineage,
    choose_beams,
    chosen_sentences,
    join_beams,
)
from heedful.nn.capture import Capture, Enough, Stopping
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.positions import NOTHING_HERE, Positions
from heedful.nn.running_weights import Linear, replace_linear
from heedful.nn.stacked import stacked

Output = Callable[[Tensor], Tensor]
"""Scores target pieces by decoder states."""


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the sources.

    Args:
        states: [B, S, D].
        positions: [B, S] int64, −1 where there is padding.
    """

    states: Tensor
    positions: Tensor


@dataclass(frozen=True)
class TranslatorState:
    """Where decoding stands, for B sentences with W beams each.

    Args:
        caches: one per decoder block; B rows.
        lineage: of the tokens in the caches.
        memory: one projected memory per decoder block; B rows, once per sentence.
        memory_positions: [B, S] int64.
        lengths: [B] int64, tokens decoded so far.
    """

    caches: tuple[BeamCache, ...]
    lineage: Lineage
    memory: tuple[KeyValues, ...]
    memory_positions: Tensor
    lengths: Tensor


class Translator(nn.Module):
    """A sequence-to-sequence model over token ids.

    Args:
        spec: the complete description; see `heedful.models.spec`.
    """

    def __init__(self, spec: TranslatorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.target_embedding = TokenEmbedding(spec.target_vocabulary, spec.width)
        self.source_embedding = (
            self.target_embedding
            if spec.share_embeddings in ("all", "inputs")
            else TokenEmbedding(spec.source_vocabulary, spec.width)
        )
        self.output_projection = (
            TokenEmbedding(spec.target_vocabulary, spec.width)
            if spec.share_embeddings in ("inputs", "none")
            else self.target_embedding
        )
        self.output_bias = (
            nn.Parameter(torch.zeros(spec.target_vocabulary)) if spec.output_bias else None
        )
        self.running_output: nn.Module | None = None
        self._running_linear: Linear | None = None
        self.source_input = InputEmbedding(spec.width, spec.embedding)
        self.target_input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.decoder = Stack(spec.width, spec.decoder, "decoder")

    @property
    def output_weight(self) -> Tensor:
        """[V, D], whose rows the decoder's states are compared to."""
        return self.output_projection.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Decoder states [..., D] to scores of every target piece [..., V]."""
        if self.running_output is not None:
            found: Tensor = self.running_output(hidden)
            return found
        return F.linear(hidden, self.output_weight, self.output_bias)

    def output_over(self, ids: Tensor) -> Output:
        """What scores some target pieces as `logits` scores all; made once for many calls.

        Args:
            ids: [V'] int64, the pieces.

        Returns:
            A function of decoder states [..., D] that gives scores [..., V'].
        """
        weight = self.output_weight[ids]
        bias = None if self.output_bias is None else self.output_bias[ids]
        if self._running_linear is not None:
            return self._running_linear(weight, bias)
        return functools.partial(F.linear, weight=weight, bias=bias)

    def settle(self, linear: Linear) -> None:
        """Put other layers in place of all linear ones; nothing can be learned or saved any more.

        Args:
            linear: of `heedful.nn.running_weights`.
        """
        replace_linear(self, linear)
        self._running_linear = linear
        self.running_output = linear(self.output_weight, self.output_bias)

    def encode(
        self, source: Tensor, source_positions: Tensor, capture: Capture | None = None
    ) -> Memory:
        """Run the encoder.

        Args:
            source: [B, S] int64 ids.
            source_positions: [B, S] int64, counted from 0 at each first token; −1 is padding.
            capture: what to keep on the way, at addresses such as `encoder.0.self.weights`.
        """
        x = self.source_input(source, source_positions, self.source_embedding)
        sight = Sight(Positions.of_self(source_positions), capture=capture)
        states, _ = self.encoder(x, sight)
        return Memory(states, source_positions)

    def decode(
        self,
        memory: Memory,
        target: Tensor,
        target_positions: Tensor,
        capture: Capture | None = None,
    ) -> Tensor:
        """Run the decoder over whole targets (teacher forcing).

        Args:
            memory: from `encode`.
            target: [B, T] int64 decoder inputs, which start with the begin token.
            target_positions: [B, T] int64; −1 is padding.
            capture: what to keep on the way, at addresses such as `decoder.3.cross.weights`.

        Returns:
            [B, T, D], what `logits` takes; position t predicts target t + 1.
        """
        projected = self.decoder.project_memory(memory.states, memory.positions)
        return self._decode(projected, memory.positions, target, target_positions, capture)

    def forward(
        self,
        source: Tensor,
        source_positions: Tensor,
        target: Tensor,
        target_positions: Tensor,
        capture: Capture | None = None,
    ) -> Tensor:
        """Decoder states [B, T, D] for sources [B, S] and decoder inputs [B, T]."""
        memory = self.encode(source, source_positions, capture)
        return self.decode(memory, target, target_positions, capture)

    def start(self, source: Tensor, source_positions: Tensor) -> TranslatorState:
        """Encode and be ready to decode; one beam per sentence, nothing decoded yet."""
        memory = self.encode(source, source_positions)
        projected = self.decoder.project_memory(memory.states, memory.positions)
        caches = (BeamCache(),) * len(self.decoder.blocks)
        lineage = Lineage.empty(source.shape[0], source.device)
        lengths = torch.zeros(source.shape[0], dtype=torch.int64, device=source.device)
        return TranslatorState(caches, lineage, projected, memory.positions, lengths)

    def step(
        self, state: TranslatorState, tokens: Tensor, output: Output | None = None
    ) -> tuple[Tensor, TranslatorState]:
        """Decode one more token of every beam.

        Args:
            state: from `start`, `step` or `reorder`.
            tokens: [B, W] int64, each beam's latest token; the begin token at first.
            output: from `output_over`, where only some pieces are asked about.

        Returns:
            Logits [B, W, V] float32 of the next token, and the state after it.
        """
        positions = state.lengths[:, None].expand_as(tokens)
        x = self.target_input(tokens, positions, self.target_embedding)
        lineage, self_positions = state.lineage.append(positions)
        sight = Sight(self_positions, Positions(query=positions, key=state.memory_positions))
        hidden, caches = self.decoder(x, sight, memory=state.memory, caches=state.caches)
        lengths = state.lengths + 1
        state = dataclasses.replace(state, caches=caches, lineage=lineage, lengths=lengths)
        scored = self.logits if output is None else output
        return scored(self._scaled(hidden)).float(), state

    def reorder(self, state: TranslatorState, rows: Tensor) -> TranslatorState:
        """Choose, repeat or drop beams and sentences.

        Args:
            state: B sentences with W beams.
            rows: [B', W'] int64; entry `sentence · W + beam` takes the place it stands at. All
                entries of a row are beams of one sentence, so its memory is never copied per beam.
        """
        memory, memory_positions, lengths = state.memory, state.memory_positions, state.lengths
        sentences = chosen_sentences(rows, state.lineage.width, memory_positions.shape[0])
        if sentences is not None:
            memory = tuple(layer.select(sentences) for layer in memory)
            memory_positions = memory_positions.index_select(0, sentences)
            lengths = lengths.index_select(0, sentences)
        caches, lineage = choose_beams(state.caches, state.lineage, rows)
        return TranslatorState(caches, lineage, memory, memory_positions, lengths)

    def join(self, state: TranslatorState, other: TranslatorState) -> TranslatorState:
        """The sentences of both states, those of the first before those of the other.

        Args:
            state: with at least one token decoded.
            other: with as many beams, and at least one token decoded too.
        """
        both = (state, other)
        length = max(_filled(each.memory_positions) for each in both)
        caches, lineage = join_beams(state.caches, state.lineage, other.caches, other.lineage)
        return TranslatorState(
            caches,
            lineage,
            tuple(
                one.join(two, length) for one, two in zip(*(s.memory for s in both), strict=True)
            ),
            stacked([s.memory_positions for s in both], length, -1, fill=NOTHING_HERE),
            torch.cat([s.lengths for s in both]),
        )

    def cross_attention(
        self,
        source: Tensor,
        source_positions: Tensor,
        target: Tensor,
        target_positions: Tensor,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> Tensor:
        """Cross-attention weights of given targets, recomputed from the definition.

        Args:
            source: [B, S] int64 ids at `source_positions` [B, S].
            target: [B, T] int64 decoder inputs at `target_positions` [B, T].
            layers: decoder layers, all if None.
            heads: heads of each, all if None.

        Returns:
            [N', B, H', T, S] float32; zero where either side is padding.
        """
        state = self.start(source, source_positions)
        weights = self.attention_from(state, target, target_positions, layers)
        return weights if heads is None else weights[:, :, list(heads)]

    def attention_from(
        self,
        state: TranslatorState,
        target: Tensor,
        target_positions: Tensor,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Cross-attention weights of given targets over sources that have been read already.

        Args:
            state: of B sentences; only what was made of their sources counts.
            target: [B, T] int64 decoder inputs at `target_positions` [B, T].
            target_positions: [B, T] int64; −1 is padding.
            layers: decoder layers, all if None.

        Returns:
            [N', B, H, T, S] float32; zero where either side is padding.
        """
        chosen = range(len(self.decoder.blocks)) if layers is None else layers
        addresses = [f"decoder.{layer}.cross.weights" for layer in chosen]
        capture = Stopping(addresses)
        with suppress(Enough):  # what comes after the last weights is not needed
            self._decode(state.memory, state.memory_positions, target, target_positions, capture)
        return torch.stack([capture.found[address] for address in addresses])

    def _decode(
        self,
        memory: Sequence[KeyValues],
        memory_positions: Tensor,
        target: Tensor,
        target_positions: Tensor,
        capture: Capture | None,
    ) -> Tensor:
        x = self.target_input(target, target_positions, self.target_embedding)
        sight = Sight(
            Positions.of_self(target_positions),
            Positions(query=target_positions, key=memory_positions),
            capture=capture,
        )
        return self._scaled(self.decoder(x, sight, memory=memory)[0])

    def _scaled(self, hidden: Tensor) -> Tensor:
        scale = self.spec.output_scale
        return hidden if scale is None else hidden * scale


def _filled(positions: Tensor) -> int:
    """How many columns of [B, S] there are up to the last where something stands."""
    last: Tensor = (positions != NOTHING_HERE).any(0).nonzero().amax()
    return int(last) + 1
