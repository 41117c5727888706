"""Longformer's global tokens: a few tokens that see everything, by projections of their own.

Beltagy (2020, section 3): "global" attention serves another purpose than a window's, so queries of
the global tokens, and the keys and values that these queries see, come from projections of their
own. All other queries see the global tokens as they see any token. Visibility is left to the
mask: `Window(256) | GlobalTokens(count)`.

Shapes: B sentences, L length, H heads, K key/value heads, E head width, G global queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.nn.attention.cache import GlobalQueries, KeyValues
from heedful.nn.attention.multi_head import (
    SelfAttention,
)
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.mixer import Context, KeyValueCache, MakeCache, Reordering
from heedful.nn.positions import NOTHING_HERE, Positions
from heedful.nn.spec import AttentionSpec
from heedful.nn.work import Saved, Work, weight_work


@dataclass(frozen=True)
class GlobalState:
    """Keys and values of the tokens so far, of both projections.

    Args:
        plain: cache for the plain queries.
        of_global: cache for the queries of global tokens.
    """

    plain: KeyValueCache
    of_global: KeyValueCache

    def reorder(self, choice: Reordering) -> GlobalState:
        """Return the caches of the chosen beams."""
        return GlobalState(self.plain.reorder(choice), self.of_global.reorder(choice))


class GlobalSelfAttention(SelfAttention):
    """Self-attention whose first tokens attend by projections of their own.

    Args:
        width: model width D.
        spec: attention spec whose `global_tokens` is set.

    Captured queries, keys and values are those of the plain projection; scores, weights and context
    are those that each token really uses.
    """

    def __init__(self, width: int, spec: AttentionSpec) -> None:
        super().__init__(width, spec)
        assert spec.global_tokens is not None
        self.global_tokens = spec.global_tokens
        # The names are distinct: `StoredApart` puts the maps of all children in
        # one state dict.
        query, key_value = self._widths()
        widths = {f"global_{name}": each for name, each in (query | key_value).items()}
        self.global_projection = FusedLinear(width, widths, bias=spec.bias, gain=1 / math.sqrt(2))

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Attend within x; see `SelfAttention.forward`."""
        context = context or Context.whole(x)
        q, keys, values = self._project(x, context)
        # Every token is projected twice, as global queries see all tokens by the second projection.
        own, own_keys, own_values = self._project(x, context, self.global_projection)
        memory, positions = KeyValues(keys, values), context.positions
        others = self._global_queries(own, KeyValues(own_keys, own_values), positions)
        return self._attend(q, memory, positions, context, others)

    def initial_state(  # type: ignore[override]
        self, rows: int, like: Tensor, make_cache: MakeCache | None = None
    ) -> GlobalState:
        """Return two empty caches; see `Mixer.initial_state`."""
        plain, of_global = (
            super(GlobalSelfAttention, self).initial_state(rows, like, make_cache) for _ in range(2)
        )
        return GlobalState(plain, of_global)

    def step(self, x: Tensor, state: GlobalState, context: Context) -> tuple[Tensor, GlobalState]:
        """Attend from new tokens to themselves and to those in the caches; see `Mixer.step`."""
        shape, x = x.shape, self.rows_of(x, context)
        q, keys, values = self._project(x, context)
        own, own_keys, own_values = self._project(x, context, self.global_projection)
        plain, positions = state.plain.extend(keys, values, context.positions)
        # Both caches hold the same tokens, so the positions of the first serve the second.
        of_global, _ = state.of_global.extend(own_keys, own_values, context.positions)
        others = self._global_queries(own, KeyValues(of_global.keys, of_global.values), positions)
        memory = KeyValues(plain.keys, plain.values)
        output = self._attend(q, memory, positions, context, others).view(shape)
        return output, GlobalState(plain, of_global)

    def work(self, queries: int, keys: int) -> Work:
        """Add the projections, and the pairs of global queries; see `Costed`."""
        few = min(self.global_tokens, queries)
        pairs = 4 * few * self.heads_left * self.head_width * keys
        weights = queries * weight_work(self.global_projection)
        return super().work(queries, keys) + Work(weights=weights, attention=pairs)

    def state_bytes(self, tokens: int, number_bytes: int) -> int:
        """Return the bytes of keys and values of both projections."""
        return 2 * super().state_bytes(tokens, number_bytes)

    def saved(self, length: int, *, mixed: bool, shared_bias: bool) -> Saved:
        """Add queries, keys and values of the second projection."""
        widths = self.heads_left + 2 * self.key_heads_left
        kept = super().saved(length, mixed=mixed, shared_bias=shared_bias)
        return kept.plus(Saved(widths * self.head_width))

    def _global_queries(
        self, q: Tensor, memory: KeyValues, positions: Positions
    ) -> GlobalQueries | None:
        """Pick the queries of global tokens from all [B, H, Lq, E]; None for an empty sequence."""
        at = positions.query
        chosen = (at >= 0) & (at < self.global_tokens)
        most = at.shape[1]
        if positions.query_segment is None:  # each packed sequence has global tokens of its own
            most = min(self.global_tokens, most)
        if not most:
            return None
        # Chosen queries sort first, in order; rows with fewer than `most` fill up with padding.
        rows = (~chosen).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        segment, lineage = positions.query_segment, positions.lineage
        if lineage is not None:
            lineage = lineage.gather(1, rows[..., None].expand(-1, -1, lineage.shape[2]))
        picked = Positions(
            torch.where(chosen.gather(1, rows), at.gather(1, rows), NOTHING_HERE),
            positions.key,
            None if segment is None else segment.gather(1, rows),
            positions.key_segment,
            lineage,
        )
        # A fixed number per row, so that the result is one tensor and the host reads no counts.
        index = rows[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        return GlobalQueries(q.gather(2, index), memory, picked, rows)
