"""A decoder without a memory that predicts the next token (GPT, Radford 2018; LLaMA, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.block import Sight
from heedful.models.family import CausalLMSpec
from heedful.models.stack import AnyCache, MakeCache, Stack
from heedful.nn.beam_cache import BeamCache, Lineage, choose_beams
from heedful.nn.cache import Cache, KeyValueCache
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.masks import FAR, build_mask
from heedful.nn.positions import Positions
from heedful.nn.running_weights import Linear, replace_linear
from heedful.nn.spec import AllOfSpec, AnyOfSpec, MaskSpec, SegmentSpec


@dataclass(frozen=True)
class CausalLMState:
    """Where generation stands, for B prompts with W continuations each.

    Args:
        caches: one per block; those of `BeamCache` have B rows, others B·W, the continuations of a
            prompt side by side.
        next_positions: [B, W] int64, where the next token of each will stand.
        lineage: of the tokens in caches of `BeamCache`; None with others.
    """

    caches: tuple[KeyValueCache, ...]
    next_positions: Tensor
    lineage: Lineage | None = None


class CausalLM(nn.Module):
    """A language model over token ids.

    Args:
        spec: the complete description; see `heedful.models.family`.
    """

    def __init__(self, spec: CausalLMSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec.vocabulary, spec.width)
        self.output_projection = (
            self.embedding if spec.tied else TokenEmbedding(spec.vocabulary, spec.width)
        )
        self.output_bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.output_bias else None
        self.running_output: nn.Module | None = None
        self.input = InputEmbedding(spec.width, spec.embedding)
        self.decoder = Stack(spec.width, spec.decoder, "decoder")

    @property
    def output_weight(self) -> Tensor:
        """[V, D], whose rows the states are compared to."""
        return self.output_projection.weight

    @property
    def window(self) -> int | None:
        """How many positions back a token sees, its own among them; None if all."""
        mask = build_mask(self.spec.decoder.block.self_attention.mask)
        here = FAR // 2
        first, _ = mask.bounds(here, here)
        return here - first + 1 if first > 0 else None

    def logits(self, states: Tensor) -> Tensor:
        """States [..., D] to scores of every token [..., V]."""
        if self.running_output is not None:
            found: Tensor = self.running_output(states)
            return found
        return F.linear(states, self.output_weight, self.output_bias)

    def settle(self, linear: Linear) -> None:
        """Put other layers in place of all linear ones; nothing can be learned or saved any more.

        Args:
            linear: of `heedful.nn.running_weights`.
        """
        replace_linear(self, linear)
        self.running_output = linear(self.output_weight, self.output_bias)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        segments: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """Run over whole texts.

        Args:
            ids: [B, L] int64.
            positions: [B, L] int64, counted from 0 at each text's first token; −1 is padding.
            segments: [B, L] int64, which text a token belongs to where a row packs several.
            capture: what to keep on the way, at addresses such as `decoder.0.self.weights`.

        Returns:
            [B, L, D], what `logits` takes; position t predicts token t + 1.

        Raises:
            ModelError: when a learned position lies past its table, or when there are segments and
                the model's mask would let them see each other.
        """
        if segments is not None and not heeds_segments(self.spec.decoder.block.self_attention.mask):
            raise ModelError(
                "Packed texts would see each other: the model's mask does not heed segments",
                where="decoder.block.self_attention.mask",
                remedy="Use a mask of kind all_of with parts causal and segment",
            )
        x = self.input(ids, positions, self.embedding)
        sight = Sight(Positions.of_self(positions, segments), capture=capture)
        states: Tensor = self.decoder(x, sight)[0]
        return states

    def extend(
        self, caches: tuple[AnyCache, ...], ids: Tensor, positions: Tensor
    ) -> tuple[Tensor, tuple[AnyCache, ...]]:
        """Run over more tokens of texts that caches hold the beginning of.

        Args:
            caches: one per block, from `start`, `extend` or `Stack.empty_caches`.
            ids: [B, n] int64.
            positions: [B, n] int64; −1 is padding, on any side.

        Returns:
            States [B, n, D], and the caches with these tokens appended.
        """
        return self._read(caches, ids, positions, Positions.of_self(positions))

    def start(
        self,
        prompt: Tensor,
        prompt_positions: Tensor,
        *,
        make_cache: MakeCache | None = None,
        chunk: int | None = None,
    ) -> CausalLMState:
        """Read prompts and be ready to continue them, one continuation each.

        Args:
            prompt: [B, L] int64; a row may be all padding, and L may be 0.
            prompt_positions: [B, L] int64, counted from 0 at each first token; −1 is padding.
            make_cache: the kind of cache; None for one whose rows all continuations share.
            chunk: most columns read at once; all if None. A ring needs it to be small.
        """
        rows, length = prompt.shape
        lengths = (prompt_positions >= 0).sum(1, keepdim=True)
        columns = (
            [slice(first, first + (chunk or length)) for first in range(0, length, chunk or length)]
            if length
            else []
        )
        if make_cache is not None:
            apart = self.decoder.empty_caches(rows, make_cache)
            for part in columns:
                _, apart = self.extend(apart, prompt[:, part], prompt_positions[:, part])
            return CausalLMState(apart, lengths)
        shared = (BeamCache(),) * len(self.decoder.blocks)
        lineage = Lineage.empty(rows, prompt.device)
        for part in columns:
            lineage, positions = lineage.append(prompt_positions[:, part])
            _, shared = self._read(shared, prompt[:, part], prompt_positions[:, part], positions)
        return CausalLMState(shared, lengths, lineage)

    def step(self, state: CausalLMState, tokens: Tensor) -> tuple[Tensor, CausalLMState]:
        """Read one more token of every continuation.

        Args:
            state: from `start`, `step` or `reorder`.
            tokens: [B, W] int64.

        Returns:
            Logits [B, W, V] float32 of the token after it, and the state.
        """
        lineage, at = state.lineage, state.next_positions
        if lineage is None:  # each continuation in a row of its own
            tokens, at = tokens.reshape(-1, 1), at.reshape(-1, 1)
            positions = Positions.of_self(at)
        else:
            lineage, positions = lineage.append(at)
        states, caches = self._read(state.caches, tokens, at, positions)
        logits = self.logits(states).float().view(*state.next_positions.shape, -1)
        return logits, CausalLMState(caches, state.next_positions + 1, lineage)

    def reorder(self, state: CausalLMState, rows: Tensor) -> CausalLMState:
        """Choose, repeat or drop continuations.

        Args:
            state: B prompts with W continuations.
            rows: [B', W'] int64; entry `prompt · W + continuation` takes the place it stands at.
        """
        at = state.next_positions.reshape(-1)[rows]
        if state.lineage is None:
            apart = tuple(cast("Cache", c).reorder(rows.reshape(-1)) for c in state.caches)
            return CausalLMState(apart, at)
        shared = cast("tuple[BeamCache, ...]", state.caches)
        caches, lineage = choose_beams(shared, state.lineage, rows)
        return CausalLMState(caches, at, lineage)

    def _read(
        self, caches: tuple[AnyCache, ...], ids: Tensor, at: Tensor, positions: Positions
    ) -> tuple[Tensor, tuple[AnyCache, ...]]:
        """States of ids that stand `at` [B, n], and the caches with them."""
        x = self.input(ids, at, self.embedding)
        states, caches = self.decoder(x, Sight(positions), caches=caches)
        return states, caches


def heeds_segments(mask: MaskSpec) -> bool:
    """Whether texts that share a row do not see each other under a mask."""
    if isinstance(mask, AllOfSpec | AnyOfSpec):
        return any(map(heeds_segments, mask.parts))
    return isinstance(mask, SegmentSpec)
