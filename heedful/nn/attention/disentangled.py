"""DeBERTa's relative positions: vectors of distances that meet contents both ways (He 2021).

A score of token i for token j sums three products (equation 2): content with content, which
attention computes itself; the query of i with the key of their distance; the key of j with the
query of their distance. Keys and queries of distances are projections of one table. DeBERTa shares
it among layers, and its version 3 the projections with those of contents; here each layer has
its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from heedful.nn.attention.relative_positions import Bias, SelectingBias
from heedful.nn.feedforward import linear
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec


class Disentangled(SelectingBias):
    """Scores of contents with distances, as in DeBERTa (He 2021, section 3.1).

    Args:
        spec: buckets of distances, norm of their vectors, and the terms.
        num_heads: H.
        head_width: E.
        width: model width D.
        scale: factor on the scores; the paper's is 1 / sqrt(3 E) with both terms.
    """

    def __init__(
        self, spec: Any, num_heads: int, head_width: int, width: int, scale: float
    ) -> None:
        super().__init__()
        self.span, self.max_distance = spec.num_buckets, spec.max_distance
        self.head_width, self.scale = head_width, scale
        # Like a table of tokens, from which the vectors differ in nothing but their use.
        table = nn.init.normal_(torch.empty(2 * self.span, width), std=width**-0.5)
        self.weight = nn.Parameter(table)
        self.norm = None
        if spec.norm_epsilon is not None:
            self.norm = nn.LayerNorm(width, spec.norm_epsilon)
        inner = num_heads * head_width
        self.key = self.query = None
        if spec.terms != "position_to_content":
            self.key = linear(width, inner, bias=True)
        if spec.terms != "content_to_position":
            self.query = linear(width, inner, bias=True)

    @classmethod
    def of_spec(cls, spec: Any, attention: AttentionSpec, width: int) -> Bias:
        """See `Bias.of_spec`."""
        heads, head_width = attention.num_heads, attention.width_of_heads(width)
        return cls(spec, heads, head_width, width, attention.scale_of_scores(width))

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of queries and of keys with all vectors of distances.

        The projections of the vectors, made once for all rows of a batch, are counted here.
        """
        vectors, width = self.weight.shape
        terms = ((self.key, queries), (self.query, keys))
        rows = sum(count + width for maps, count in terms if maps is not None)
        return 2 * vectors * self.head_width * rows

    def _scores(
        self, heads: slice | list[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """Return scale · (q · key of the distance + k · query of the distance)."""
        name = ("disentangled", self.span, self.max_distance)
        # Buckets depend on settings alone and are shared by all layers.
        buckets = positions.derive(name, lambda: self._bucket(-positions.distance()))[:, None]
        vectors = self.weight if self.norm is None else self.norm(self.weight)
        precision = torch.promote_types(query.dtype, torch.float32)
        query, keys = query.to(precision), keys.to(precision)
        batch, count = query.shape[:2]
        index = buckets.expand(batch, count, -1, -1)
        scores = query.new_zeros(())
        if self.key is not None:
            # One matmul with every vector, then a gather, as of relative keys (Shaw 2018).
            products = query @ self._heads(self.key, vectors, heads).mT  # [B, H, Lq, 2 k]
            scores = scores + products.gather(-1, index)
        if self.query is not None:
            # Query heads that share a key head meet it with their own queries of distances.
            shared = keys.repeat_interleave(count // keys.shape[1], 1)
            products = self._heads(self.query, vectors, heads) @ shared.mT  # [B, H, 2 k, Lk]
            # The queries arrive scaled, the keys do not.
            scores = scores + self.scale * products.gather(-2, index)
        return scores

    def _heads(self, maps: nn.Linear, vectors: Tensor, heads: slice | list[int]) -> Tensor:
        """Return projected vectors of some heads, [H, 2 k, E]."""
        precision = torch.promote_types(vectors.dtype, torch.float32)
        split: Tensor = maps(vectors).to(precision).unflatten(-1, (-1, self.head_width))
        return split.transpose(0, 1)[heads]

    def _bucket(self, distance: Tensor) -> Tensor:
        """Return the row of each distance (query position − key position), int64."""
        if self.max_distance is not None:
            # Single distances up to half the buckets, then logarithmic ones, as in the authors'
            # code: float32 and `ceil` decide the borders.
            middle = self.span // 2
            far = distance.abs().clamp(min=middle).float() / middle
            growth = torch.log(far) / math.log((self.max_distance - 1) / middle)
            coarse = (growth * (middle - 1)).ceil().long() + middle
            near = distance.abs() <= middle
            distance = torch.where(near, distance, coarse * distance.sign())
        row: Tensor = (distance + self.span).clamp(0, 2 * self.span - 1)
        return row
