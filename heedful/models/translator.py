"""The encoder-decoder Transformer (Vaswani 2017)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.block import BlockState
from heedful.models.model_spec import TranslatorSpec
from heedful.models.stack import Stack, StackState
from heedful.nn.attention.kernels.request import soft_cap
from heedful.nn.capture import Capture, Enough, Stopping
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.mixer import Context, Memory
from heedful.nn.positions import Positions

Output = Callable[[Tensor], Tensor]
"""Scores target pieces by decoder states."""


@dataclass(frozen=True)
class TranslatorState:
    """Everything the translator remembers while it decodes B sentences with W beams each.

    Args:
        decoder: states of its blocks.
        lengths: [B] int64, tokens decoded so far.
    """

    decoder: StackState
    lengths: Tensor

    @property
    def memory_positions(self) -> Tensor:
        """[B, S] int64 positions of the source's tokens; −1 is padding."""
        positions = self.decoder.memory_positions
        assert positions is not None
        return positions


class Translator(nn.Module):
    """A sequence-to-sequence model over token ids.

    Args:
        spec: the complete description; see `heedful.models.model_spec`.
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
        logits = self.output_projection.logits(hidden, self.output_bias)
        return soft_cap(logits, self.spec.logits_softcap)

    def output_over(self, ids: Tensor) -> Output:
        """Return a function that scores target pieces `ids` [V'] as `logits` scores all."""
        output = self.output_projection.logits_over(ids, self.output_bias)
        softcap = self.spec.logits_softcap
        return output if softcap is None else lambda hidden: soft_cap(output(hidden), softcap)

    def encode(
        self,
        source: Tensor,
        source_positions: Tensor,
        capture: Capture | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """Run the encoder.

        Args:
            source: [B, S] int64 ids.
            source_positions: [B, S] int64, counted from 0 at each first token; −1 is padding.
            capture: what to keep on the way, at addresses such as `encoder.0.self.weights`.
            segments: [B, S] int64, the sentence of each token where a row packs several, which
                then do not see each other.

        Raises:
            ModelError: for segments that a mixer cannot tell apart.
        """
        x = self.source_input(source, source_positions, self.source_embedding)
        context = Context(Positions.of_self(source_positions, segments), capture=capture)
        states = self.encoder(x, context)
        return Memory(states, source_positions, embedding=x, segments=segments)

    def decode(
        self,
        memory: Memory,
        target: Tensor,
        target_positions: Tensor,
        capture: Capture | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder over whole targets (teacher forcing).

        Args:
            memory: from `encode`.
            target: [B, T] int64 decoder inputs, which start with the begin token.
            target_positions: [B, T] int64; −1 is padding.
            capture: what to keep on the way, at addresses such as `decoder.3.cross.weights`.
            segments: [B, T] int64, the sentence of the memory's row that each token translates,
                where a row packs several.

        Returns:
            [B, T, D], what `logits` takes; position t predicts target t + 1.

        Raises:
            ModelError: for segments that a mixer cannot tell apart, or of one side only.
        """
        positions = Positions(target_positions, memory.positions, segments, memory.segments)
        return self._decode(self.decoder.read(memory), positions, target, capture)

    def forward(
        self,
        source: Tensor,
        source_positions: Tensor,
        target: Tensor,
        target_positions: Tensor,
        capture: Capture | None = None,
        source_segments: Tensor | None = None,
        target_segments: Tensor | None = None,
    ) -> Tensor:
        """Decoder states [B, T, D] for sources [B, S] and decoder inputs [B, T].

        Rows of several pairs have segments [B, S] and [B, T], equal for both sides of a pair, and
        positions that begin anew in each.
        """
        memory = self.encode(source, source_positions, capture, source_segments)
        segments = (target_segments, source_segments)
        positions = Positions(target_positions, source_positions, *segments)
        return self._decode(self.decoder.read(memory), positions, target, capture)

    def start(self, source: Tensor, source_positions: Tensor) -> TranslatorState:
        """Encode and be ready to decode; one beam per sentence, nothing decoded yet."""
        memory = self.encode(source, source_positions)
        lengths = torch.zeros(source.shape[0], dtype=torch.int64, device=source.device)
        return TranslatorState(self.decoder.start(source, memory), lengths)

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
        hidden, decoder = self.decoder.step(x, positions, state.decoder)
        logits = (self.logits if output is None else output)(self._scaled(hidden)).float()
        return logits, TranslatorState(decoder, state.lengths + 1)

    def reorder(self, state: TranslatorState, rows: Tensor) -> TranslatorState:
        """Choose, repeat or drop beams and sentences.

        Args:
            state: B sentences with W beams.
            rows: [B', W'] int64; entry `sentence · W + beam` takes the place it stands at. All
                entries of a row are beams of one sentence, so its memory is never copied per beam.
        """
        sentences = rows[:, 0] // state.decoder.width
        return TranslatorState(state.decoder.reorder(rows), state.lengths[sentences])

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

        Raises:
            ModelError: when the decoder does not attend to its source.
        """
        attention = self.decoder.memory_attention()
        if not attention:
            raise ModelError(
                "This model has no attention to its source, of which it keeps one vector",
                remedy="Leave out alignments and coverage, or use a model with attention",
            )
        chosen = list(dict.fromkeys(attention.values())) if layers is None else layers
        addresses = [
            f"{each}.weights" for layer in chosen for each, at in attention.items() if at == layer
        ]
        capture = Stopping(addresses)
        with suppress(Enough):  # what comes after the last weights is not needed
            read = self.decoder.read_from(state.decoder)
            positions = Positions(query=target_positions, key=state.memory_positions)
            self._decode(read, positions, target, capture)
        return torch.stack([capture.found[address] for address in addresses])

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def input_modules(self) -> dict[str, InputEmbedding]:
        """Return the module that embeds the tokens of each stack."""
        return {"encoder": self.source_input, "decoder": self.target_input}

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Scores [B, T, V] of the next piece from normed decoder states of any layer [B, T, D]."""
        return self.logits(self._scaled(hidden))

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Scores [R, V] of the next piece at R chosen tokens.

        Args:
            states: [B, T, D] of `forward`.
            positions: [B, S] int64 of the sources; other kinds of model need theirs.
            rows: [B, T] bool, the chosen tokens.
        """
        return self.logits(states[rows])

    def _decode(
        self,
        read: Sequence[BlockState],
        positions: Positions,
        target: Tensor,
        capture: Capture | None,
    ) -> Tensor:
        """Run the decoder; positions are of the target's queries and the memory's keys."""
        x = self.target_input(target, positions.query, self.target_embedding)
        own = Positions.of_self(positions.query, positions.query_segment)
        return self._scaled(self.decoder(x, Context(own, positions, capture=capture), read))

    def _scaled(self, hidden: Tensor) -> Tensor:
        scale = self.spec.output_scale
        return hidden if scale is None else hidden * scale
