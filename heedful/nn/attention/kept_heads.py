"""The heads of an attention that pruning left (Michel 2019), and the places of the others.

Shapes: B batch, H heads, K key/value heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from heedful.nn.attention.relative_positions import Bias
from heedful.nn.positions import Positions


@dataclass(frozen=True)
class KeptHeads:
    """The heads of an attention that pruning left.

    A key/value head is left as long as one of the query heads that share it is.

    Args:
        heads: their numbers, ascending.
        total: H.
        shared: query heads that shared a key/value head, H / K.
    """

    heads: tuple[int, ...]
    total: int
    shared: int = 1

    @property
    def key_heads(self) -> tuple[int, ...]:
        """Numbers of the key/value heads that are left, ascending."""
        return tuple(sorted({head // self.shared for head in self.heads}))

    @property
    def regroup(self) -> tuple[int, ...] | None:
        """For each head left the place of its key/value head among those left.

        None where equally many heads share each, which attention takes as it is.
        """
        places = {number: place for place, number in enumerate(self.key_heads)}
        result = tuple(places[head // self.shared] for head in self.heads)
        counts = {result.count(place) for place in places.values()}
        return None if len(counts) <= 1 else result

    @property
    def whole(self) -> bool:
        """True where nothing was pruned."""
        return len(self.heads) == self.total

    def in_place(self, value: Tensor, filler: float = 0.0) -> Tensor:
        """Tensors of the heads left, each at its number.

        Args:
            value: [B, heads left, …].
            filler: for heads that are gone.

        Returns:
            [B, H, …].
        """
        return _placed(value, self.heads, self.total, filler)

    def keys_in_place(self, value: Tensor) -> Tensor:
        """[B, key/value heads left, …] to [B, K, …], zero for those that are gone."""
        return _placed(value, self.key_heads, self.total // self.shared, 0.0)


class BiasOfKept(Bias):
    """A bias made for all heads, for those that are left.

    Args:
        bias: of all.
        kept: which are left.
    """

    def __init__(self, bias: Bias, kept: KeptHeads) -> None:
        super().__init__()
        self.bias = bias
        self.kept = kept

    def forward(self, query: Tensor, keys: Tensor, positions: Positions) -> Tensor:
        """See `Bias`; query and keys are of the heads that are left."""
        return self.bias.of_heads(self.kept.heads, query, keys, positions)


def _placed(value: Tensor, numbers: Sequence[int], total: int, filler: float) -> Tensor:
    if len(numbers) == total:
        return value
    result = value.new_full((value.shape[0], total, *value.shape[2:]), filler)
    result[:, list(numbers)] = value
    return result
