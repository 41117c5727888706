"""A decoder without a memory that predicts the next token (GPT, Radford 2018; LLaMA, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.model_spec import CausalLMSpec
from heedful.models.segment_memory import SegmentMemory
from heedful.models.stack import Stack, StackState
from heedful.nn.attention.cache import Cache, RingCache, StaticCache
from heedful.nn.attention.kernels.request import soft_cap
from heedful.nn.attention.masks import Mask
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.mixer import Context, MakeCache
from heedful.nn.positions import Positions

CacheKind = Literal["auto", "growing", "ring", "static"]

_RING_CHUNK = 128
"""Most columns of a prompt that a ring takes at once: it has as many slots beside its window."""


@dataclass(frozen=True)
class CausalLMState:
    """Everything the model remembers while it writes W continuations of each of B prompts.

    Args:
        decoder: state of the stack.
        next_positions: [B, W] int64, position of the next token of each continuation.
    """

    decoder: StackState
    next_positions: Tensor


class CausalLM(nn.Module):
    """A language model over token ids.

    Args:
        spec: complete description; see `heedful.models.model_spec`.
    """

    def __init__(self, spec: CausalLMSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec.vocabulary, spec.width)
        # The very module, not a copy: its tensor is stored once (`canonical_weights`).
        self.output_projection = (
            self.embedding if spec.tied else TokenEmbedding(spec.vocabulary, spec.width)
        )
        self.output_bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.output_bias else None
        self.input = InputEmbedding(spec.width, spec.embedding)
        self.decoder = Stack(spec.width, spec.decoder, "decoder")

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] of the output projection."""
        return self.output_projection.weight

    @property
    def window(self) -> int | None:
        """Positions that a token sees, its own and those before it; None where it sees all."""
        # The layer that sees furthest decides. Layers without attention have no cache.
        ends = [mask.reach for mask in self._masks()]
        known = [end for end in ends if end is not None]
        return max(known) + 1 if known and len(known) == len(ends) else None

    def _masks(self) -> list[Mask]:
        """Return the mask of every attention of the pattern; other mixers have none."""
        return [attention.mask for attention in self.spec.decoder.attentions()]

    def _check_heeds_segments(self) -> None:
        if not all(mask.heeds_segments for mask in self._masks()):
            raise ModelError(
                "Packed texts would see each other: the model's mask does not heed segments",
                where="decoder.block.self_attention.mask",
                remedy="Use a mask of kind all_of with parts causal and segment",
            )

    def logits(self, states: Tensor) -> Tensor:
        """Project states [..., D] to logits [..., V]."""
        logits = self.output_projection.logits(states, self.output_bias)
        return soft_cap(logits, self.spec.logits_softcap)  # Gemma 2 (2024)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """Run over whole sequences.

        Args:
            ids: [B, L] int64.
            positions: [B, L] int64, counted from 0 at each text's first token; −1 is padding. None
                for rows of one text each without padding, which the fastest attention requires.
            segments: [B, L] int64, number of the text of each token where a row packs several.
            capture: tensors to keep, by addresses such as `decoder.0.self.weights`.

        Returns:
            Input of `logits` [B, L, D]; position t predicts token t + 1.

        Raises:
            ModelError: when a learned position lies past its table, or when there are segments and
                the model's mask would let them see each other.
        """
        if segments is not None:
            self._check_heeds_segments()
        # Positions that are known to count from 0 are not read: a causal flag replaces the mask.
        if positions is None:
            own = Positions.counting(len(ids), ids.shape[1], ids.device)
        else:
            own = Positions.of_self(positions, segments)
        x = self.input(ids, own.query, self.embedding)
        states: Tensor = self.decoder(x, Context(own, capture=capture))
        return states

    def empty_memory(self, rows: int) -> SegmentMemory:
        """Return the memory before the first segments.

        Args:
            rows: number of texts B.

        Raises:
            ModelError: when the model has none.
        """
        memory = self.spec.memory
        if memory is None:
            raise ModelError(
                "This model keeps no memory of earlier segments",
                where="memory",
                remedy="Train one with model.memory",
            )
        # A block may have several mixers over the input, each with a memory of its own input.
        layers = sum(len(block.mixers()) for block in self.spec.decoder.blocks)
        device = self.output_weight.device
        return SegmentMemory.empty(rows, memory, self.spec.width, layers, device)

    def read_segment(
        self,
        ids: Tensor,
        positions: Tensor,
        segments: Tensor,
        memory: SegmentMemory,
        capture: Capture | None = None,
    ) -> tuple[Tensor, SegmentMemory]:
        """Run over a segment of each text, which also attends to a memory (Dai 2019).

        A text in segments of any length gets the states that `forward` gives it as a whole.
        Gradients end where a segment begins.

        Args:
            ids: [B, L] int64.
            positions: [B, L] int64, counted from 0 in the segment; −1 is padding, on the right.
            segments: [B, L] int64, number of the text of each token; −1 for padding. Texts that
                follow each other in a row do not see each other.
            memory: result of `empty_memory`, or of the previous segment.
            capture: tensors to keep, as in `forward`.

        Returns:
            Input of `logits` [B, L, D], and the memory for the next segment.

        Raises:
            ModelError: when the model's mask would let texts see each other.
        """
        # The memory may still hold the end of an earlier text in the same row.
        self._check_heeds_segments()
        x = self.input(ids, positions, self.embedding)
        context = Context(memory.positions(positions, segments), capture=capture)
        states, inputs = self.decoder.read_segment(x, context, memory.inputs)
        return states, memory.after(inputs, segments)

    def start(
        self,
        prompt: Tensor,
        prompt_positions: Tensor,
        *,
        make_cache: MakeCache | None = None,
        chunk: int | None = None,
    ) -> CausalLMState:
        """Run over prompts and return the state before their continuations, one each.

        Args:
            prompt: [B, L] int64; a row may be all padding, and L may be 0.
            prompt_positions: [B, L] int64, counted from 0 at each first token; −1 is padding.
            make_cache: constructor of caches; None for a cache whose rows all continuations share.
            chunk: most columns in one pass; all if None. A ring needs it to be small.
        """
        # Counted, as padding may stand on either side of a prompt.
        lengths = (prompt_positions >= 0).sum(1, keepdim=True)  # [B, 1]
        state = CausalLMState(self.decoder.start(prompt, make_cache=make_cache), lengths)
        length = prompt.shape[1]
        # `or 1`: a range has no step of 0, and an empty prompt has no columns.
        for first in range(0, length, chunk or length or 1):
            columns = slice(first, first + (chunk or length))
            _, state = self.extend(state, prompt[:, columns], prompt_positions[:, columns])
        return state

    def extend(
        self, state: CausalLMState, ids: Tensor, positions: Tensor
    ) -> tuple[Tensor, CausalLMState]:
        """Run over more tokens.

        Args:
            state: result of `start`, `extend`, `step` or `reorder`.
            ids: [B, W] int64, a token of each continuation; [B, n], n tokens of the only one.
            positions: positions of these tokens, of the same shape; −1 is padding, on any side.

        Returns:
            Input of `logits` [B, W or n, D], and the state after these tokens, with the same
            `next_positions`.
        """
        x = self.input(ids, positions, self.embedding)
        hidden, decoder = self.decoder.step(x, positions, state.decoder)
        return hidden, CausalLMState(decoder, state.next_positions)

    def step(self, state: CausalLMState, tokens: Tensor) -> tuple[Tensor, CausalLMState]:
        """Run over one more token of every continuation.

        Args:
            state: result of `start`, `step` or `reorder`.
            tokens: [B, W] int64.

        Returns:
            Logits [B, W, V] float32 of the token after it, and the state.
        """
        hidden, state = self.extend(state, tokens, state.next_positions)
        # float32 whatever the model computes in: a search sums log-probabilities.
        logits = self.logits(hidden).float()
        return logits, CausalLMState(state.decoder, state.next_positions + 1)

    def reorder(self, state: CausalLMState, rows: Tensor) -> CausalLMState:
        """Choose, repeat or drop continuations.

        Args:
            state: state of B prompts with W continuations.
            rows: [B', W'] int64; the value `prompt · W + continuation` names the continuation that
                the new state has in this place.
        """
        next_positions = state.next_positions.reshape(-1)[rows]
        return CausalLMState(state.decoder.reorder(rows), next_positions)

    def with_cache(self, kind: CacheKind, length: int, *, chunk: int = _RING_CHUNK) -> CachedLM:
        """Return this model with caches of one kind, for a search.

        Args:
            kind: kind of cache; `auto` is a ring where the model has a window, which a ring needs.
            length: most tokens of a text, the size of a static cache.
            chunk: most tokens in one pass with a ring.
        """
        window = self.window
        if kind == "auto":
            kind = "growing" if window is None else "ring"
        if kind == "ring":
            assert window is not None
            chunk = min(chunk, length)
            # The first query of a chunk sees window - 1 tokens before it, which must not be
            # overwritten by the chunk's other tokens.
            capacity = window + chunk - 1

            def ring(keys: Tensor, values: Tensor) -> Cache:
                return RingCache.empty(keys, values, capacity, window)

            return CachedLM(self, ring, chunk)
        if kind == "static":

            def static(keys: Tensor, values: Tensor) -> Cache:
                return StaticCache.empty(keys, values, length)

            return CachedLM(self, static, None)
        return CachedLM(self, None, None)

    def stacks(self) -> dict[str, Stack]:
        """Return the stacks by name, in the order of a pass."""
        return {"decoder": self.decoder}

    def input_modules(self) -> dict[str, InputEmbedding]:
        """Return the module that embeds the tokens of each stack."""
        return {"decoder": self.input}

    def stream_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [B, L, V] of the next token from normed states of any layer [B, L, D]."""
        return self.logits(hidden)

    def predict(self, states: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return logits [R, V] of the next token at R chosen tokens.

        Args:
            states: [B, L, D], result of `forward`.
            positions: [B, L] int64, argument of `forward`; used by other kinds of model.
            rows: [B, L] bool, flags of the chosen tokens.
        """
        return self.logits(states[rows])


@dataclass(frozen=True)
class CachedLM:
    """A language model with a chosen kind of cache; see `CausalLM.with_cache`."""

    model: CausalLM
    make_cache: MakeCache | None
    chunk: int | None

    def start(self, source: Tensor, source_positions: Tensor) -> CausalLMState:
        return self.model.start(
            source, source_positions, make_cache=self.make_cache, chunk=self.chunk
        )

    def step(self, state: CausalLMState, tokens: Tensor) -> tuple[Tensor, CausalLMState]:
        return self.model.step(state, tokens)

    def reorder(self, state: CausalLMState, rows: Tensor) -> CausalLMState:
        return self.model.reorder(state, rows)
