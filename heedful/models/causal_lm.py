"""A decoder without a memory that predicts the next token (GPT, Radford 2018; LLaMA, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.models.block import Sight
from heedful.models.family import CausalLMSpec
from heedful.models.stack import MakeCache, Stack
from heedful.nn.cache import Cache, GrowingCache
from heedful.nn.capture import Capture
from heedful.nn.embeddings import InputEmbedding, TokenEmbedding
from heedful.nn.masks import FAR, build_mask
from heedful.nn.positions import Positions
from heedful.nn.spec import AllOfSpec, AnyOfSpec, MaskSpec, SegmentSpec


@dataclass(frozen=True)
class CausalLMState:
    """Where generation stands, for B prompts with W continuations each.

    Args:
        caches: one per block; B·W rows, the continuations of a prompt side by side.
        next_positions: [B, W] int64, where the next token of each will stand.
    """

    caches: tuple[Cache, ...]
    next_positions: Tensor


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
        return F.linear(states, self.output_weight, self.output_bias)

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
        self, caches: tuple[Cache, ...], ids: Tensor, positions: Tensor
    ) -> tuple[Tensor, tuple[Cache, ...]]:
        """Run over more tokens of texts that caches hold the beginning of.

        Args:
            caches: one per block, from `start`, `extend` or `Stack.empty_caches`.
            ids: [B, n] int64.
            positions: [B, n] int64; −1 is padding, on any side.

        Returns:
            States [B, n, D], and the caches with these tokens appended.
        """
        x = self.input(ids, positions, self.embedding)
        states, caches = self.decoder(x, Sight(Positions.of_self(positions)), caches=caches)
        return states, caches

    def start(
        self,
        prompt: Tensor,
        prompt_positions: Tensor,
        *,
        make_cache: MakeCache = GrowingCache.empty,
        chunk: int | None = None,
    ) -> CausalLMState:
        """Read prompts and be ready to continue them, one continuation each.

        Args:
            prompt: [B, L] int64; a row may be all padding, and L may be 0.
            prompt_positions: [B, L] int64, counted from 0 at each first token; −1 is padding.
            make_cache: the kind of cache, growing by default.
            chunk: most columns read at once; all if None. A ring needs it to be small.
        """
        caches = self.decoder.empty_caches(prompt.shape[0], make_cache)
        length = prompt.shape[1]
        for first in range(0, length, chunk or max(length, 1)):
            part = slice(first, first + (chunk or length))
            _, caches = self.extend(caches, prompt[:, part], prompt_positions[:, part])
        lengths = (prompt_positions >= 0).sum(1, keepdim=True)
        return CausalLMState(caches, lengths)

    def step(self, state: CausalLMState, tokens: Tensor) -> tuple[Tensor, CausalLMState]:
        """Read one more token of every continuation.

        Args:
            state: from `start`, `step` or `reorder`.
            tokens: [B, W] int64.

        Returns:
            Logits [B, W, V] float32 of the token after it, and the state.
        """
        ids, positions = tokens.reshape(-1, 1), state.next_positions.reshape(-1, 1)
        states, caches = self.extend(state.caches, ids, positions)
        logits = self.logits(states).float().view(*tokens.shape, -1)
        return logits, CausalLMState(caches, state.next_positions + 1)

    def reorder(self, state: CausalLMState, rows: Tensor) -> CausalLMState:
        """Choose, repeat or drop continuations.

        Args:
            state: B prompts with W continuations.
            rows: [B', W'] int64; entry `prompt · W + continuation` takes the place it stands at.
        """
        caches = tuple(cache.reorder(rows.reshape(-1)) for cache in state.caches)
        return CausalLMState(caches, state.next_positions.reshape(-1)[rows])


def heeds_segments(mask: MaskSpec) -> bool:
    """Whether texts that share a row do not see each other under a mask."""
    if isinstance(mask, AllOfSpec | AnyOfSpec):
        return any(map(heeds_segments, mask.parts))
    return isinstance(mask, SegmentSpec)
