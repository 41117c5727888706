"""Multi-head latent attention (DeepSeek V2, 2024): a small vector for each token is all it caches.

Keys and values of all heads are maps of that vector, the latent. Rotations do not commute with the
maps, so a few channels of the keys are rotated apart: one key for all heads, cached beside the
latent (section 2.1.3).

Shapes: B sentences, L tokens, S tokens in the cache, H heads, E head width, of whose channels the
last R are rotated, Ev width of a head's values, C width of the latent, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.nn.attention.beam_cache import BeamCache
from heedful.nn.attention.cache import KeyValues, SegmentInputs
from heedful.nn.attention.multi_head import SelfAttention
from heedful.nn.feedforward import linear
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.mixer import Context, KeyValueCache, MakeCache
from heedful.nn.norms import build_norm
from heedful.nn.spec import AttentionSpec
from heedful.nn.work import Saved, Work, weight_work


class LatentSelfAttention(SelfAttention):
    """Self-attention whose keys and values are maps of one latent for each token.

    Args:
        width: model width D.
        spec: attention spec whose `latent` is set.
    """

    def __init__(self, width: int, spec: AttentionSpec) -> None:
        super().__init__(width, spec)
        assert spec.latent is not None
        self.output = linear(self.num_heads * spec.latent.value_width, width, bias=spec.bias)

    def _build_projections(self, width: int, spec: AttentionSpec) -> None:
        latent, rotary = spec.latent, spec.rotary
        assert latent is not None and rotary is not None and rotary.width is not None
        self.rotated, self.latent_width = rotary.width, latent.width
        self.value_width = latent.value_width
        apart = {"latent": latent.width, "rotated_key": self.rotated}
        self.projection = FusedLinear(width, apart, bias=spec.bias)
        self.latent_norm = build_norm(latent.norm, latent.width)
        plain = self.head_width - self.rotated
        heads = {"key": self.num_heads * plain, "value": self.num_heads * latent.value_width}
        self.expansion = FusedLinear(latent.width, heads, bias=False)
        self.query_latent = self.query_latent_norm = None
        if latent.query_width is not None:
            self.query_latent = linear(width, latent.query_width, bias=spec.bias)
            self.query_latent_norm = build_norm(latent.norm, latent.query_width)
        # Queries have a latent of their own only to save memory in training.
        self.query = linear(
            latent.query_width or width, self.num_heads * self.head_width, bias=False
        )

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Attend within x [B, L, D]; see `Mixer`."""
        context = context or Context.whole(x)
        positions = context.positions
        memory = self._expand(*self._latents(x, positions.query))
        return self._attend(self._queries(x, positions.query), memory, positions, context)

    def initial_state(
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> KeyValueCache:
        """Return an empty cache of latents as keys and of rotated keys as values, of one head."""
        if make_cache is None:
            return BeamCache()
        latent, rotated = (
            like.new_empty((rows, 1, 0, n)) for n in (self.latent_width, self.rotated)
        )
        return make_cache(latent, rotated)

    def step(self, x: Tensor, state: Any, context: Context) -> tuple[Tensor, Any]:
        """Attend from new tokens to themselves and to those in the state; see `Mixer.step`."""
        if isinstance(state, SegmentInputs):
            return self.read_segment(x, state, context)
        rows = self.rows_of(x, context)
        q = self._queries(rows, context.positions.query)
        latent, rotated = self._latents(rows, context.positions.query)
        state, positions = state.extend(latent, rotated, context.positions)
        memory = self._expand(state.keys, state.values)
        return self._attend(q, memory, positions, context).view_as(x), state

    def read_segment(
        self, x: Tensor, state: SegmentInputs, context: Context
    ) -> tuple[Tensor, SegmentInputs]:
        """Attend from a segment to itself and to the tokens before it; see `SelfAttention`."""
        whole = torch.cat([state.inputs.to(x.dtype), x], 1)
        positions = context.positions
        memory = self._expand(*self._latents(whole, positions.key))
        mixed = self._attend(self._queries(x, positions.query), memory, positions, context)
        return mixed, SegmentInputs(whole[:, x.shape[1] :].detach())

    def work(self, queries: int, keys: int) -> Work:
        """Return the operations of queries that attend to keys, whose latents are expanded."""
        maps = [self.projection, self.query, self.output]
        if self.query_latent is not None:
            maps.append(self.query_latent)
        pairs = 2 * queries * self.num_heads * keys * (self.head_width + self.value_width)
        if self.position_bias is not None:
            pairs += self.num_heads * self.position_bias.work(queries, keys)
        weights = queries * weight_work(*maps) + keys * weight_work(self.expansion)
        return Work(weights=weights, attention=pairs)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of the latents and rotated keys of tokens."""
        return (self.latent_width + self.rotated) * tokens * number_bytes

    def segment_work(self, tokens: int, memory: int) -> Work:
        """Return the operations of a segment, and of the latents of tokens before it."""
        own = self.work(tokens, memory + tokens)
        return own + Work(weights=memory * weight_work(self.projection))

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Add the latents, which are inputs of maps, to the elements of plain attention."""
        query = 0 if self.query_latent is None else self.query_latent.out_features
        kept = super().saved(length, mixed=mixed, shared_bias=shared_bias)
        return kept.plus(Saved(2 * (self.latent_width + query)))

    def _queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries [B, H, L, E] of x [B, L, D], the last R channels rotated."""
        if self.query_latent is not None and self.query_latent_norm is not None:
            x = self.query_latent_norm(self.query_latent(x))
        plain, rotated = self._heads(self.query(x), self.num_heads).split(
            [self.head_width - self.rotated, self.rotated], -1
        )
        assert self.rotary is not None
        return torch.cat([plain, self.rotary(rotated, positions)], -1)

    def _latents(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents [B, 1, L, C] and rotated keys [B, 1, L, R], those of one head."""
        latent, key = self.projection(x)
        assert self.rotary is not None
        return self.latent_norm(latent)[:, None], self.rotary(key[:, None], positions)

    def _expand(self, latent: Tensor, rotated: Tensor) -> KeyValues:
        """Return keys [B, H, S, E] and values [B, H, S, Ev] of latents and of rotated keys."""
        plain, values = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in self.expansion(latent[:, 0])
        )
        shared = rotated.expand(-1, self.num_heads, -1, -1)
        return KeyValues(torch.cat([plain, shared], -1), values)
