"""The encoder-decoder Transformer (Vaswani 2017)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.block import BlockState
from heedful.models.model_spec import TranslatorSpec
from heedful.models.stack import Stack, StackState
from heedful.nn.attention.kernels.request import soft_cap
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding, in_rows, source_embedding
from heedful.nn.mixer import Context, Memory
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from heedful.models.sounds.transcriber_spec import TranscriberSpec
    from heedful.nn.capture import Capture

Output = Callable[[Tensor], Tensor]
"""Function from decoder states [..., D] to logits of target tokens."""


@dataclass(frozen=True)
class TranslatorState:
    """Everything the translator remembers while it decodes B sentences with W beams each.

    Args:
        decoder: state of the decoder's stack.
        lengths: [B] int64, number of tokens decoded so far.
    """

    decoder: StackState
    lengths: Tensor

    @property
    def memory_positions(self) -> Tensor:
        """[B, S] int64 positions of the source's tokens; −1 is padding."""
        positions = self.decoder.memory_positions
        assert positions is not None
        return positions


class EncoderDecoder(nn.Module, ABC):
    """A decoder of token ids over the states of an encoder, which a kind of model defines.

    Attributes:
        spec: complete description of the model.
    """

    spec: TranslatorSpec | TranscriberSpec
    target_embedding: TokenEmbedding
    output_projection: TokenEmbedding
    output_bias: nn.Parameter | None
    source_input: nn.Module
    target_input: InputEmbedding
    encoder: Stack
    decoder: Stack

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] of the output projection."""
        return self.output_projection.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Project decoder states [..., D] to logits of target tokens [..., V]."""
        logits = self.output_projection.logits(hidden, self.output_bias)
        return soft_cap(logits, self.spec.logits_softcap)  # Gemma 2 (2024)

    def output_over(self, ids: Tensor) -> Output:
        """Return a function like `logits` that is limited to the target tokens `ids` [V']."""
        # Rows are gathered here, once for all steps of a search.
        output = self.output_projection.logits_over(ids, self.output_bias)
        softcap = self.spec.logits_softcap
        return output if softcap is None else lambda hidden: soft_cap(output(hidden), softcap)

    @abstractmethod
    def read_source(self, source: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's input [B, S, D] and its positions [B, S]; see `encode`."""

    def encode(
        self,
        source: Tensor,
        source_positions: Tensor,
        capture: Capture | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """Run the encoder.

        Args:
            source: [B, S] int64 ids, or [B, 2 S, bands] float frames of a sound.
            source_positions: [B, S] int64, counted from 0 at each first token; −1 is padding.
            capture: tensors to keep, by addresses such as `encoder.0.self.weights`.
            segments: [B, S] int64, number of the sentence of each token where a row packs several,
                which then do not see each other.

        Raises:
            DataError: when frames have another number of bands.
            ModelError: when there are segments that a mixer does not support, or a position lies
                past a table.
        """
        x, source_positions = self.read_source(source, source_positions)
        context = Context(Positions.of_self(source_positions, segments), capture=capture)
        states = self.encoder(x, context)
        # The embedding is included, since attention of convolutions adds it to the
        # values (Gehring 2017).
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
            memory: result of `encode`.
            target: [B, T] int64 decoder inputs, which start with the begin token.
            target_positions: [B, T] int64; −1 is padding.
            capture: tensors to keep, by addresses such as `decoder.3.cross.weights`.
            segments: [B, T] int64, number of the source sentence of each token where a row packs
                several.

        Returns:
            Input of `logits` [B, T, D]; position t predicts target t + 1.

        Raises:
            ModelError: when there are segments that a mixer does not support, or on one side only.
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
        """Return decoder states [B, T, D] for sources [B, S] and decoder inputs [B, T].

        Rows of several pairs have segments [B, S] and [B, T], equal for both sides of a pair, and
        positions that begin anew in each.
        """
        # A single call for training: wrappers such as DistributedDataParallel know only `forward`.
        memory = self.encode(source, source_positions, capture, source_segments)
        segments = (target_segments, source_segments)
        positions = Positions(target_positions, memory.positions, *segments)
        return self._decode(self.decoder.read(memory), positions, target, capture)

    def start(self, source: Tensor, source_positions: Tensor) -> TranslatorState:
        """Encode sources and return the state before the first target token, of one beam each."""
        memory = self.encode(source, source_positions)
        lengths = torch.zeros(source.shape[0], dtype=torch.int64, device=source.device)
        return TranslatorState(self.decoder.start(source, memory), lengths)

    def step(
        self, state: TranslatorState, tokens: Tensor, output: Output | None = None
    ) -> tuple[Tensor, TranslatorState]:
        """Decode one more token of every beam.

        Args:
            state: result of `start`, `step` or `reorder`.
            tokens: [B, W] int64, each beam's latest token; the begin token at first.
            output: result of `output_over`, for logits of some tokens; None for all.

        Returns:
            Logits [B, W, V] float32 of the next token, and the state after it.
        """
        # All beams of a sentence have the same length.
        positions = state.lengths[:, None].expand_as(tokens)
        x = self.target_input(tokens, positions, self.target_embedding)
        hidden, decoder = self.decoder.step(x, positions, state.decoder)
        logits = (self.logits if output is None else output)(self._scaled(hidden)).float()
        return logits, TranslatorState(decoder, state.lengths + 1)

    def reorder(self, state: TranslatorState, rows: Tensor) -> TranslatorState:
        """Choose, repeat or drop beams and sentences.

        Args:
            state: state of B sentences with W beams.
            rows: [B', W'] int64; the value `sentence · W + beam` names the beam that the new state
                has in this place. A row has beams of one sentence only, so that its memory is
                never copied for each beam.
        """
        # All beams of a row are of one sentence, so the first names it.
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
        """Return cross-attention weights for given targets, computed by the definition.

        Args:
            source: [B, S] int64 ids.
            source_positions: [B, S] int64; −1 is padding.
            target: [B, T] int64 decoder inputs.
            target_positions: [B, T] int64; −1 is padding.
            layers: indices of decoder layers; all if None.
            heads: indices of heads of each layer; all if None.

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
        """Return cross-attention weights for given targets over encoded sources.

        Args:
            state: state of B sentences, of which only the projected memory is used.
            target: [B, T] int64 decoder inputs.
            target_positions: [B, T] int64; −1 is padding.
            layers: indices of decoder layers; all if None.

        Returns:
            [N', B, H, T, S] float32; zero where either side is padding.

        Raises:
            ModelError: when the decoder does not attend to its source, or to rows of it.
        """
        attention = self.decoder.memory_attention()
        if self.spec.embedding.row_size:
            raise ModelError(
                "This model attends to rows of its source, and not to single tokens",
                remedy="Leave out alignments and coverage",
            )
        if not attention:
            raise ModelError(
                "This model has no attention to its source, of which it keeps one vector",
                remedy="Leave out alignments and coverage, or use a model with attention",
            )
        # Distinct layers in their order: a layer may attend to the source twice.
        chosen = list(dict.fromkeys(attention.values())) if layers is None else layers
        addresses = [
            f"{each}.weights" for layer in chosen for each, at in attention.items() if at == layer
        ]
        from heedful.nn.capture import Enough, Stopping  # most passes keep no tensors

        capture = Stopping(addresses)
        with suppress(Enough):  # raised at the last of these weights, which ends the pass early
            read = self.decoder.read_from(state.decoder)
            positions = Positions(query=target_positions, key=state.memory_positions)
            self._decode(read, positions, target, capture)
        return torch.stack([capture.found[address] for address in addresses])

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def input_modules(self) -> dict[str, Any]:
        """Return the module that makes the input of each stack."""
        return {"encoder": self.source_input, "decoder": self.target_input}

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, T, V] of the next token from normed states of any layer [B, T, D]."""
        # The states of a layer, unlike those of `forward`, are not scaled yet.
        return self.logits(self._scaled(hidden))

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return logits [R, V] of the next token at R chosen tokens.

        Args:
            states: [B, T, D], result of `forward`.
            positions: [B, S] int64, positions of the sources; used by other kinds of model.
            rows: [B, T] bool, flags of the chosen tokens.
        """
        return self.logits(states[rows])

    def _decode(
        self,
        read: Sequence[BlockState],
        positions: Positions,
        target: Tensor,
        capture: Capture | None,
    ) -> Tensor:
        """Run the decoder, with positions of the target as queries and of the memory as keys."""
        x = self.target_input(target, positions.query, self.target_embedding)
        # Self-attention has the target on both sides; cross-attention the memory as keys.
        own = Positions.of_self(positions.query, positions.query_segment)
        return self._scaled(self.decoder(x, Context(own, positions, capture=capture), read))

    def _scaled(self, hidden: Tensor) -> Tensor:
        scale = self.spec.output_scale  # 1/√D in T5, whose output table is tied (Raffel 2020)
        return hidden if scale is None else hidden * scale


class Translator(EncoderDecoder):
    """A sequence-to-sequence model over token ids.

    Args:
        spec: complete description; see `heedful.models.model_spec`.
    """

    spec: TranslatorSpec

    def __init__(self, spec: TranslatorSpec) -> None:
        super().__init__()
        self.spec = spec
        # This table comes first, so that shared tables are stored under its name
        # (`TranslatorSpec.ties`).
        self.target_embedding = TokenEmbedding(spec.target_vocabulary, spec.width)
        self.source_embedding = (
            self.target_embedding
            if spec.share_embeddings in ("all", "inputs")
            else source_embedding(spec.source_vocabulary, spec.width, spec.embedding.row_size)
        )
        self.output_projection = (
            TokenEmbedding(spec.target_vocabulary, spec.width)
            if spec.share_embeddings in ("inputs", "none")
            else self.target_embedding
        )
        self.output_bias = (
            nn.Parameter(torch.zeros(spec.target_vocabulary)) if spec.output_bias else None
        )
        # One for each side, as learned positions are not shared between source and target.
        self.source_input = InputEmbedding(spec.width, spec.embedding)
        self.target_input = InputEmbedding(spec.width, spec.embedding)
        self.encoder = Stack(spec.width, spec.encoder, "encoder")
        self.decoder = Stack(spec.width, spec.decoder, "decoder")

    def read_source(self, source: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens [B, S, D] and their positions [B, S]."""
        if self.spec.embedding.row_size:
            source, positions = in_rows(source, positions, self.spec.embedding.row_size)
        return self.source_input(source, positions, self.source_embedding), positions
