"""Relative positions in attention: biases of the scores, and vectors of distances.

A bias is added before the mask and the softmax. It looks at positions, never at array indices, so
it serves any block of queries and keys. Shapes: B batch, H heads, K key/value heads, Lq queries, Lk
keys, E head width, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ConfigError
from heedful.nn.positions import Positions, SinusoidalPositions, check_below, sinusoids
from heedful.nn.spec import AttentionSpec, BiasSpec

OfPairs = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A bias of single pairs, by row of the batch, head, place of the query and distance: all []."""


class Bias(nn.Module):
    """Something added to the scores of every pair of query and key."""

    is_of_queries = False
    """True where it depends on the numbers of a query, and so has the heads that queries have."""

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """The scores to add.

        Args:
            query: [B, H, Lq, E], rotated if the model rotates, times the attention's scale.
            keys: [B, K, Lk, E], rotated if the model rotates.
            positions: where queries and keys stand.

        Returns:
            [B|1, H, Lq, Lk], at least float32; whatever it says where either position is −1
            is hidden by the mask.
        """
        raise NotImplementedError

    def of_heads(
        self, heads: Sequence[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """The scores to add for some of the heads, of which alone are the query and the keys.

        Args:
            heads: their numbers, ascending.
            query, keys, positions: as of `forward`.
        """
        result: Tensor = self(query, keys, positions)
        # What heads share, and depends on the queries, has been said for those heads only.
        return result if result.shape[1] == len(heads) else result[:, list(heads)]

    def of_pairs(self, query: Tensor) -> OfPairs | None:
        """Return the bias as a function of single pairs; None where it needs whole rows.

        Args:
            query: [B, H, Lq, E], times the attention's scale.
        """
        return None

    def diagonals(self, positions: Positions) -> Tensor | None:
        """Distances that all rows have in the same order; see `Positions.diagonals`."""
        return positions.diagonals()

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of matrix products for queries of one head that look at keys."""
        return 0


class BiasOfHeads(Bias):
    """A bias made for all heads, for those that are left of them.

    Args:
        bias: of all.
        heads: numbers of those that are left, ascending.
    """

    def __init__(self, bias: Bias, heads: Sequence[int]) -> None:
        super().__init__()
        self.bias = bias
        self.heads = heads

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """See `Bias`; query and keys are of the heads that are left."""
        return self.bias.of_heads(self.heads, query, keys, positions)

    def of_pairs(self, query: Tensor) -> OfPairs | None:
        """See `Bias.of_pairs`."""
        of_pairs = self.bias.of_pairs(query)
        if of_pairs is None or self.bias.is_of_queries:
            return of_pairs  # what it says of a query is of that query's own head
        numbers = torch.tensor(list(self.heads), device=query.device)
        return lambda row, head, place, distance: of_pairs(row, numbers[head], place, distance)


class Alibi(Bias):
    """A penalty that grows with distance, with a fixed slope per head (Press 2022).

    Both directions are penalised alike; the paper's own use is causal.

    Args:
        num_heads: H.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        # Plain numbers: a buffer would lose precision when the model is cast to bfloat16.
        self.slopes = _alibi_slopes(num_heads)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """-slope · |distance|, [B, H, Lq, Lk] float32."""

        def compute() -> Tensor:
            distance = positions.distance().abs().to(torch.float32)
            return distance[:, None] * -distance.new_tensor(self.slopes)[:, None, None]

        return positions.derive(("alibi", self.slopes), compute)

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        slopes = torch.tensor(self.slopes, device=query.device)
        return lambda row, head, place, distance: -slopes[head] * distance.abs()


class T5Bias(Bias):
    """A learned number per head and bucket of distances (Raffel 2020, section 2.1).

    Half the buckets are for single small distances, the other half grow logarithmically up to
    `max_distance`; beyond it all distances share the last one.

    Args:
        num_heads: H.
        num_buckets: buckets in all; with `bidirectional`, half of them for keys after the query.
        max_distance: where the last bucket begins at the latest.
        bidirectional: whether keys after the query are told apart; otherwise they count as
            distance 0.

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

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """The learned number of each pair's bucket, [B, H, Lq, Lk] float32."""
        name = ("t5", self.num_buckets, self.max_distance, self.bidirectional)
        buckets = positions.derive(name, lambda: self._bucket(positions.distance()))
        return nn.functional.embedding(buckets, self.weight.float()).permute(0, 3, 1, 2)

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        table = self.weight.float()
        return lambda row, head, place, distance: table[self._bucket(distance), head]

    def _bucket(self, distance: Tensor) -> Tensor:
        """Bucket number of each distance (key position − query position), int64."""
        if self.bidirectional:
            one_side = self.num_buckets // 2
            offset = (distance > 0) * one_side
            distance = distance.abs()
        else:
            one_side = self.num_buckets
            offset = torch.zeros_like(distance)
            distance = (-distance).clamp(min=0)
        exact = one_side // 2
        growth = torch.log(distance.clamp(min=1).float() / exact)
        steps = growth / math.log(self.max_distance / exact) * (one_side - exact)
        coarse = (exact + steps.long()).clamp(max=one_side - 1)
        return offset + torch.where(distance < exact, distance, coarse)


class Kerple(Bias):
    """A learned penalty that grows with the logarithm of distance (KERPLE; Chi 2022).

    Scores lose r₁ · log(1 + r₂ · distance), which goes on past the trained length as ALiBi does.

    Args:
        num_heads: H.
    """

    LEAST = 0.01
    """Smallest r₁ and r₂, as in the authors' program."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, num_heads) * torch.tensor([[2.0], [1.0]]))

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """-r₁ · log(1 + r₂ · |distance|), [B, H, Lq, Lk] float32."""
        distance = positions.derive(("distance",), lambda: positions.distance().abs().float())
        scale, rate = self.weight.float().clamp(min=self.LEAST)[..., None, None]
        penalty: Tensor = scale * torch.log1p(rate * distance[:, None])
        return -penalty

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`."""
        scale, rate = self.weight.float().clamp(min=self.LEAST)
        return lambda row, head, place, distance: (
            -scale[head] * torch.log1p(rate[head] * distance.abs())
        )


class RelativeKeys(Bias):
    """A learned vector per clipped distance, compared with the query as keys are (Shaw 2018).

    The vectors are shared by all heads, as in the paper.

    Args:
        head_width: E.
        max_distance: distances beyond it, on either side, count as it.
    """

    is_of_queries = True

    def __init__(self, head_width: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """query · vector of the distance, [B, H, Lq, Lk]."""
        precision = torch.promote_types(query.dtype, torch.float32)
        query, table = query.to(precision), self.weight.to(precision)
        diagonals = self.diagonals(positions)
        if diagonals is not None and len(diagonals) < len(table) and query.shape[2] > 1:
            return skew(query @ table[self._row(diagonals)].T)
        # One product with every vector, then a pick: Lk vectors per query would not fit.
        clipped = clipped_distance(positions, self.max_distance)
        return (query @ table.T).gather(-1, clipped.expand(-1, query.shape[1], -1, -1))

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of each query's product with every vector that it may need."""
        vectors, width = self.weight.shape
        if queries > 1:
            vectors = min(vectors, queries + keys - 1)
        return 2 * vectors * width * queries

    def of_pairs(self, query: Tensor) -> OfPairs:
        """See `Bias.of_pairs`: products with every vector, of which a pair picks one."""
        table = self.weight.to(torch.promote_types(query.dtype, torch.float32))
        products = query.to(table.dtype) @ table.T
        return lambda row, head, place, distance: products[row, head, place, self._row(distance)]

    def _row(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


class TransformerXL(Bias):
    """The distances of Transformer-XL (Dai 2019, section 3.3), which no table ends.

    Beside scale · q · k, which attention has, a score gets scale · (u · k + (q + v) · W r). The
    sinusoids r of the distance from key to query become by W what keys are for content; u and v
    are queries that every token asks. Here each layer has its own, as in the authors' larger
    models.

    Args:
        num_heads: H.
        head_width: E.
        width: D, of the sinusoids; even.
        scale: of the scores.
    """

    undecayed = frozenset({"content_query", "distance_query"})  # they are added, as biases are

    def __init__(self, num_heads: int, head_width: int, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.content_query = nn.Parameter(torch.zeros(num_heads, head_width))  # u
        self.distance_query = nn.Parameter(torch.zeros(num_heads, head_width))  # v
        self.weight = nn.Parameter(torch.empty(num_heads * head_width, width))  # W
        nn.init.xavier_uniform_(self.weight)
        self.sinusoids = SinusoidalPositions(width, "halves")

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """scale · (u · key + (query + v) · W r), [B, H, Lq, Lk]."""
        return self._scores(slice(None), query, keys, positions)

    def of_heads(
        self, heads: Sequence[int], query: Tensor, keys: Tensor, positions: Positions
    ) -> Tensor:
        """See `Bias`."""
        return self._scores(list(heads), query, keys, positions)

    def work(self, queries: int, keys: int) -> int:
        """Return the operations of queries with distances, and of u with the keys.

        The keys of distances are made once for all rows of a batch; they are counted here.
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
        content, distance = (
            self.scale * each[heads].to(precision)
            for each in (self.content_query, self.distance_query)
        )
        weight = self.weight.unflatten(0, self.content_query.shape)[heads].to(precision)
        asked = query.to(precision) + distance[:, None]
        grouped = content.unflatten(0, (keys.shape[1], -1))
        of_keys = torch.einsum("kge,bkle->bkgl", grouped, keys.to(precision)).flatten(1, 2)
        diagonals = self.diagonals(positions) if query.shape[2] > 1 else None
        if diagonals is None:
            by_distance = self._by_rotation(asked, weight, positions)
        else:
            by_distance = skew(_with_distances(asked, weight, -diagonals))
        scores: Tensor = by_distance + of_keys[:, :, None]
        return scores

    def _by_rotation(self, asked: Tensor, weight: Tensor, positions: Positions) -> Tensor:
        """Products with the keys of distances, for positions in any order; nothing per pair.

        sin(i − j) = sin i cos j − cos i sin j and the like divide the sinusoids of a distance into
        those of query i and of key j. Each query takes D numbers for E, which is cheaper only for
        a single one: else every distance needs its key made.

        Args:
            asked: [B, H, Lq, E], queries and v, scaled.
            weight: [H, E, D].
            positions: where queries and keys stand.
        """
        half = weight.shape[-1] // 2
        waves = positions.derive(
            ("sinusoids", 2 * half),
            lambda: (self.sinusoids(positions.query), self.sinusoids(positions.key)),
        )
        of_query, of_key = (each.to(asked.dtype) for each in waves)
        by_sine, by_cosine = torch.einsum("bhqe,hed->bhqd", asked, weight).split(half, -1)
        sine, cosine = (each[:, None] for each in of_query.split(half, -1))
        turned = torch.cat(
            [by_cosine * sine - by_sine * cosine, by_sine * sine + by_cosine * cosine], -1
        )
        products: Tensor = (turned.flatten(1, 2) @ of_key.mT).unflatten(1, asked.shape[1:3])
        return products


def skew(products: Tensor) -> Tensor:
    """Shift products of queries and distances to the keys at these distances (Huang 2018).

    The Music Transformer's step that needs no memory: rows of its input are read with one number
    less than they have, so that each begins one further to the left.

    Args:
        products: [..., Lq, Lq + Lk − 1], of each query with the distances from 1 − Lq to Lk − 1,
            seen from the first one's key.

    Returns:
        [..., Lq, Lk]: entry (i, j) is entry (i, j − i + Lq − 1); a view where that can be.
    """
    queries, diagonals = products.shape[-2:]
    if queries == 1:
        return products
    row = diagonals - 1
    shifted = products.flatten(-2)[..., queries - 1 :][..., : queries * row]
    result: Tensor = shifted.unflatten(-1, (queries, row))[..., : diagonals - queries + 1]
    return result


def _with_distances(asked: Tensor, weight: Tensor, distances: Tensor) -> Tensor:
    """Return the product of each query with the key of each distance, [B, H, Lq, n].

    Args:
        asked: [B, H, Lq, E].
        weight: [H, E, D], which makes keys of sinusoids.
        distances: [n] int64.
    """
    waves = sinusoids(distances, weight.shape[-1], "halves").to(asked.dtype)
    keys = (waves @ weight.flatten(0, 1).T).unflatten(-1, weight.shape[:2])
    return torch.einsum("bhqe,nhe->bhqn", asked, keys)


def clipped_distance(positions: Positions, farthest: int) -> Tensor:
    """Distances counted from the lowest, clipped, [B, 1, Lq, Lk] int64."""
    clipped = positions.derive(
        ("clipped distance", farthest),
        lambda: positions.distance().clamp(-farthest, farthest) + farthest,
    )
    return clipped[:, None]


class ExplicitBias(Bias):
    """Given numbers, looked up by the positions of query and key.

    Args:
        table: [B|1, H, P, P'], the number for query position p and key position p'. A
            `Parameter` is learned.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        assert table.dim() == 4, table.shape
        if isinstance(table, nn.Parameter):
            self.table: Tensor = table
        else:
            self.register_buffer("table", table)

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """The numbers of the table, [B, H, Lq, Lk].

        Raises:
            ModelError: when a position lies past the table.
        """
        batch, heads, num_query_positions, num_key_positions = self.table.shape
        for at, size in (
            (positions.query, num_query_positions),
            (positions.key, num_key_positions),
        ):
            check_below(
                at,
                size,
                f"the explicit bias, which ends at {size - 1}",
                "Give a larger bias, or shorter sequences",
            )
        device = self.table.device
        rows = torch.arange(len(positions.query), device=device) % batch
        result = self.table[
            rows[:, None, None, None],
            torch.arange(heads, device=device)[None, :, None, None],
            positions.query.clamp(min=0)[:, None, :, None],
            positions.key.clamp(min=0)[:, None, None, :],
        ]
        return result.to(torch.promote_types(result.dtype, torch.float32))


def build_bias(spec: BiasSpec, attention: AttentionSpec, width: int) -> Bias:
    """The bias that a piece of configuration stands for.

    Args:
        spec: of the bias.
        attention: to whose scores it is added.
        width: D.
    """
    return _BUILDERS[spec.kind](spec, attention, width)


_BUILDERS: Mapping[str, Callable[[Any, AttentionSpec, int], Bias]] = {
    "alibi": lambda spec, attention, width: Alibi(attention.num_heads),
    "t5": lambda spec, attention, width: T5Bias(
        attention.num_heads, spec.num_buckets, spec.max_distance, spec.bidirectional
    ),
    "kerple": lambda spec, attention, width: Kerple(attention.num_heads),
    "relative_keys": lambda spec, attention, width: RelativeKeys(
        attention.width_of_heads(width), spec.max_distance
    ),
    "transformer_xl": lambda spec, attention, width: TransformerXL(
        attention.num_heads,
        attention.width_of_heads(width),
        width,
        attention.scale_of_scores(width),
    ),
}


def _alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """The paper's slopes: geometric for a power of two, else filled up from the next power's."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: num_heads - power])
