"""Relative positions in attention: biases of the scores that depend on distances.

A bias is added before the mask and the softmax. It is a function of positions, never of array
indices, so it serves any block of queries and keys. Shapes: B batch, H heads, K key/value heads, Lq
queries, Lk keys, E head width, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ConfigError
from heedful.nn.positions import Positions, SinusoidalPositions, sinusoids
from heedful.nn.spec import AttentionSpec

OfPairs = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function from row of the batch, head, query index and distance, 0-dim each, to a pair's bias."""


class Bias(nn.Module):
    """A term added to the scores of every pair of query and key."""

    is_of_queries = False
    """True where the bias depends on the query vectors, and therefore has their heads."""

    @classmethod
    def of_spec(cls, spec: Any, attention: AttentionSpec, width: int) -> Bias:
        """Build the bias that a spec describes; by default only the number of heads matters.

        Args:
            spec, attention, width: arguments of `heedful.nn.mixer.build_bias`.
        """
        return cls(attention.num_heads)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return the term to add to the scores.

        Args:
            query: [B, H, Lq, E], rotated if the model rotates, times the attention's scale.
            keys: [B, K, Lk, E], rotated if the model rotates.
            positions: positions of queries and keys.

        Returns:
            [B|1, H, Lq, Lk], at least float32; arbitrary where a position is −1, which the mask
            hides.
        """
        raise NotImplementedError

    def of_heads(
        self, heads: Sequence[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """Return the term for some of the heads, given only the queries and keys of these heads.

        Args:
            heads: ascending indices of the heads.
            query, keys, positions: arguments of `forward`.
        """
        result: Tensor = self(query, keys, positions)
        # A bias computed from the queries has the remaining heads only, so none are selected.
        return result if result.shape[1] == len(heads) else result[:, list(heads)]

    def reduced_to(self, heads: Sequence[int]) -> Bias:
        """Return the bias of the heads that pruning left.

        Args:
            heads: ascending indices of the heads that are left.
        """
        return BiasOfHeads(self, heads)

    def of_pairs(self, query: Tensor) -> OfPairs | None:
        """Return the bias as a function of single pairs; None where it needs whole rows.

        Args:
            query: [B, H, Lq, E], times the attention's scale.
        """
        return None

    def diagonals(self, positions: Positions) -> Tensor | None:
        """Return the distances of the diagonals, if they are alike in all rows; see `Positions`."""
        return positions.diagonals()

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of matmuls for queries of one head that attend to keys."""
        return 0


class BiasOfHeads(Bias):
    """A bias of all heads, reduced to the heads that pruning left.

    Args:
        bias: bias of all heads.
        heads: ascending indices of the heads that are left.
    """

    def __init__(self, bias: Bias, heads: Sequence[int]) -> None:
        super().__init__()
        self.bias = bias
        self.heads = heads

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """See `Bias`; query and keys have only the heads that are left."""
        return self.bias.of_heads(self.heads, query, keys, positions)

    def of_pairs(self, query: Tensor) -> OfPairs | None:
        """See `Bias.of_pairs`."""
        of_pairs = self.bias.of_pairs(query)
        if of_pairs is None or self.bias.is_of_queries:
            return of_pairs  # computed from the queries, it has their heads already
        indices = torch.tensor(list(self.heads), device=query.device)
        return lambda row, head, index, distance: of_pairs(row, indices[head], index, distance)


class SelectingBias(Bias):
    """Base of biases that compute the heads which they are asked for, and no others."""

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return the term of all heads, [B, H, Lq, Lk]; see `Bias`."""
        return self._scores(slice(None), query, keys, positions)

    def of_heads(
        self, heads: Sequence[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """See `Bias`."""
        return self._scores(list(heads), query, keys, positions)

    def _scores(
        self, heads: slice | list[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """Return the term of some heads, [B, H, Lq, Lk], given only their queries and keys."""
        raise NotImplementedError


class Alibi(Bias):
    """ALiBi: a penalty linear in distance, with a fixed slope per head (Press 2022, section 3).

    Both directions are penalised alike; the paper's own use is causal.

    Args:
        num_heads: H.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        # Python floats: a buffer would lose precision when the model is cast to bfloat16.
        self.slopes = _alibi_slopes(num_heads)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return -slope · |distance|, [B, H, Lq, Lk] float32."""

        def compute() -> Tensor:
            distance = positions.distance().abs().to(torch.float32)
            return distance[:, None] * -distance.new_tensor(self.slopes)[:, None, None]

        # It has no trained parameters, so all layers of a pass share one tensor.
        return positions.derive(("alibi", self.slopes), compute)

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        slopes = torch.tensor(self.slopes, device=query.device)
        return lambda row, head, index, distance: -slopes[head] * distance.abs()


class T5Bias(Bias):
    """T5's bias: a trained scalar per head and bucket of distances (Raffel 2020, section 2.1).

    Half the buckets are for single small distances, the other half grow logarithmically up to
    `max_distance`; beyond it all distances share the last one.

    Args:
        num_heads: H.
        num_buckets: number of buckets; with `bidirectional`, half of them for keys after the query.
        max_distance: distance from which on all keys share the last bucket.
        bidirectional: flag of separate buckets for keys after the query; otherwise such keys count
            as distance 0.

    Raises:
        ConfigError: when the buckets cannot be laid out.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        one_side = num_buckets // 2 if bidirectional else num_buckets
        if one_side < 2 or max_distance <= one_side // 2:
            raise ConfigError(
                f"{num_buckets} buckets do not divide distances up to {max_distance}",
                remedy="Use at least 2 buckets a direction, and a max_distance above half of them",
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))

    @classmethod
    def of_spec(cls, spec: Any, attention: AttentionSpec, width: int) -> Bias:
        """See `Bias.of_spec`."""
        return cls(attention.num_heads, spec.num_buckets, spec.max_distance, spec.bidirectional)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return the scalar of each pair's bucket, [B, H, Lq, Lk] float32."""
        name = ("t5", self.num_buckets, self.max_distance, self.bidirectional)
        # Buckets depend on settings alone and are shared by all layers; the table is this module's.
        buckets = positions.derive(name, lambda: self._bucket(positions.distance()))
        return nn.functional.embedding(buckets, self.weight.float()).permute(0, 3, 1, 2)

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        table = self.weight.float()
        return lambda row, head, index, distance: table[self._bucket(distance), head]

    def _bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance (key position − query position), int64."""
        if self.bidirectional:
            one_side = self.num_buckets // 2
            offset = (distance > 0) * one_side
            distance = distance.abs()
        else:
            one_side = self.num_buckets
            offset = torch.zeros_like(distance)
            distance = (-distance).clamp(min=0)
        # Half the buckets of a direction are exact, as in T5; the clamp keeps the logarithm finite.
        exact = one_side // 2
        growth = torch.log(distance.clamp(min=1).float() / exact)
        steps = growth / math.log(self.max_distance / exact) * (one_side - exact)
        coarse = (exact + steps.long()).clamp(max=one_side - 1)
        return offset + torch.where(distance < exact, distance, coarse)


class Kerple(Bias):
    """A trained penalty that grows with the logarithm of distance (KERPLE; Chi 2022).

    Scores lose r₁ · log(1 + r₂ · distance), which extends past the trained length as ALiBi does.

    Args:
        num_heads: H.
    """

    LEAST = 0.01
    """Smallest r₁ and r₂, as in the authors' code."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        # Uniform up to 2 and up to 1, as in the authors' code.
        self.weight = nn.Parameter(torch.rand(2, num_heads) * torch.tensor([[2.0], [1.0]]))

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return -r₁ · log(1 + r₂ · |distance|), [B, H, Lq, Lk] float32."""
        distance = positions.derive(("distance",), lambda: positions.distance().abs().float())
        # Clamped where used: the paper requires r₁, r₂ > 0, and updates could make them negative.
        scale, rate = self.weight.float().clamp(min=self.LEAST)[..., None, None]
        penalty: Tensor = scale * torch.log1p(rate * distance[:, None])
        return -penalty

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        scale, rate = self.weight.float().clamp(min=self.LEAST)
        return lambda row, head, index, distance: (
            -scale[head] * torch.log1p(rate[head] * distance.abs())
        )


class RelativeKeys(Bias):
    """A trained key per clipped distance, shared by all heads (Shaw 2018, equation 4).

    Args:
        head_width: E.
        max_distance: largest distance on either side with its own vector; farther ones share it.
    """

    is_of_queries = True

    def __init__(self, head_width: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        nn.init.xavier_uniform_(self.weight)

    @classmethod
    def of_spec(cls, spec: Any, attention: AttentionSpec, width: int) -> Bias:
        """See `Bias.of_spec`."""
        return cls(attention.width_of_heads(width), spec.max_distance)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """Return query · vector of the distance, [B, H, Lq, Lk]."""
        precision = torch.promote_types(query.dtype, torch.float32)
        query, table = query.to(precision), self.weight.to(precision)
        diagonals = self.diagonals(positions)
        # Short rows have fewer diagonals than the table has vectors, and need no gather.
        if diagonals is not None and len(diagonals) < len(table) and query.shape[2] > 1:
            return skew(query @ table[self._row(diagonals)].T)
        # One matmul with every vector, then a gather: Lk vectors per query would not fit in memory.
        clipped = clipped_distance(positions, self.max_distance)
        return (query @ table.T).gather(-1, clipped.expand(-1, query.shape[1], -1, -1))

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of the matmul of queries with every vector that they may need."""
        vectors, width = self.weight.shape
        if queries > 1:
            vectors = min(vectors, queries + keys - 1)
        return 2 * vectors * width * queries

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`: the matmul with every vector, of which a pair picks one element."""
        table = self.weight.to(torch.promote_types(query.dtype, torch.float32))
        products = query.to(table.dtype) @ table.T
        return lambda row, head, index, distance: products[row, head, index, self._row(distance)]

    def _row(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


class TransformerXL(SelectingBias):
    """The relative positions of Transformer-XL, without a largest distance (Dai 2019, section 3.3).

    To scale · q · k, which attention computes, the bias adds scale · (u · k + (q + v) · W r), where
    r are the sinusoids of the distance from key to query, W projects them to keys, and u and v are
    trained queries of all tokens. Each layer has its own u and v here, as in the authors' larger
    models.

    Args:
        num_heads: H.
        head_width: E.
        width: D, even width of the sinusoids.
        scale: factor on the scores.
    """

    undecayed = frozenset({"content_query", "distance_query"})  # trained like biases

    def __init__(self, num_heads: int, head_width: int, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.content_query = nn.Parameter(torch.zeros(num_heads, head_width))  # u
        self.distance_query = nn.Parameter(torch.zeros(num_heads, head_width))  # v
        self.weight = nn.Parameter(torch.empty(num_heads * head_width, width))  # W
        nn.init.xavier_uniform_(self.weight)
        self.sinusoids = SinusoidalPositions(width, "halves")

    @classmethod
    def of_spec(cls, spec: Any, attention: AttentionSpec, width: int) -> Bias:
        """See `Bias.of_spec`."""
        return cls(
            attention.num_heads,
            attention.width_of_heads(width),
            width,
            attention.scale_of_scores(width),
        )

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of queries with distances, and of u with the keys.

        The keys of distances, made once for all rows of a batch, are counted here.
        """
        head_width, width = self.content_query.shape[1], self.weight.shape[1]
        if queries > 1:
            distances = queries + keys - 1
            return 2 * head_width * (distances * (queries + width) + keys)
        return 2 * (head_width * (width + keys) + width * keys)

    def _scores(
        self, heads: slice | list[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        precision = torch.promote_types(query.dtype, torch.float32)
        # `query` is scaled already, u and v are not.
        content, distance = (
            self.scale * each[heads].to(precision)
            for each in (self.content_query, self.distance_query)
        )
        weight = self.weight.unflatten(0, self.content_query.shape)[heads].to(precision)
        shifted_query = query.to(precision) + distance[:, None]
        # [K, H / K, E]: query heads beside the key head that they share, which is not repeated.
        grouped = content.unflatten(0, (keys.shape[1], -1))
        of_keys = torch.einsum("kge,bkle->bkgl", grouped, keys.to(precision)).flatten(1, 2)
        diagonals = self.diagonals(positions) if query.shape[2] > 1 else None
        # Diagonals need Lq + Lk − 1 keys in all: cheaper for more than one query.
        if diagonals is None:
            by_distance = self._by_rotation(shifted_query, weight, positions)
        else:
            by_distance = skew(_with_distances(shifted_query, weight, -diagonals))
        scores: Tensor = by_distance + of_keys[:, :, None]
        return scores

    def _by_rotation(self, shifted_query: Tensor, weight: Tensor, positions: Positions) -> Tensor:
        """Return (q + v) · W r for positions in any order, without a tensor per pair of tokens.

        sin(i − j) = sin i cos j − cos i sin j and the rule for cosines split the sinusoids of a
        distance into those of query i and of key j. Each query becomes a vector of D elements
        instead of E, which is cheaper than the keys of all distances only for a single query.

        Args:
            shifted_query: [B, H, Lq, E], queries plus v, scaled.
            weight: [H, E, D].
            positions: positions of queries and keys.
        """
        half = weight.shape[-1] // 2
        waves = positions.derive(
            ("sinusoids", 2 * half),
            lambda: (self.sinusoids(positions.query), self.sinusoids(positions.key)),
        )
        of_query, of_key = (each.to(shifted_query.dtype) for each in waves)
        by_sine, by_cosine = torch.einsum("bhqe,hed->bhqd", shifted_query, weight).split(half, -1)
        # "halves" layout: the first half of the channels are sines, the second cosines.
        sine, cosine = (each[:, None] for each in of_query.split(half, -1))
        rotated = torch.cat(
            [by_cosine * sine - by_sine * cosine, by_sine * sine + by_cosine * cosine], -1
        )
        products: Tensor = (rotated.flatten(1, 2) @ of_key.mT).unflatten(
            1, shifted_query.shape[1:3]
        )
        return products


def skew(products: Tensor) -> Tensor:
    """Shift scores by distance to scores by key (Music Transformer; Huang 2018).

    The shift is a view: rows are read one element shorter than they are, so that each begins one
    further to the left.

    Args:
        products: [..., Lq, Lq + Lk − 1], scores of each query with the distances from 1 − Lq to
            Lk − 1 in ascending order.

    Returns:
        [..., Lq, Lk], whose entry (i, j) is entry (i, j − i + Lq − 1); a view where possible.
    """
    queries, diagonals = products.shape[-2:]
    if queries == 1:
        return products
    row = diagonals - 1
    # Row i of length `row` starts at queries − 1 + i · row = i · diagonals + (queries − 1 − i).
    shifted = products.flatten(-2)[..., queries - 1 :][..., : queries * row]
    result: Tensor = shifted.unflatten(-1, (queries, row))[..., : diagonals - queries + 1]
    return result


def _with_distances(shifted_query: Tensor, weight: Tensor, distances: Tensor) -> Tensor:
    """Return the scores of each query with the key of each distance, [B, H, Lq, n].

    Args:
        shifted_query: [B, H, Lq, E].
        weight: [H, E, D], projection of sinusoids to keys.
        distances: [n] int64.
    """
    encodings = sinusoids(distances, weight.shape[-1], "halves").to(shifted_query.dtype)
    keys = (encodings @ weight.flatten(0, 1).T).unflatten(-1, weight.shape[:2])
    return torch.einsum("bhqe,nhe->bhqn", shifted_query, keys)


def clipped_distance(positions: Positions, farthest: int) -> Tensor:
    """Return clipped distances, shifted to count from 0, [B, 1, Lq, Lk] int64."""
    clipped = positions.derive(
        ("clipped distance", farthest),
        lambda: positions.distance().clamp(-farthest, farthest) + farthest,
    )
    return clipped[:, None]


def _alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the slopes: geometric for powers of two, else with some slopes of the next power."""
    # The authors' rule: 2^(−8/n), 2^(−16/n) … and every second slope of the next power of two.
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: num_heads - power])
