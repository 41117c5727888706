"""Parts as simple as can be, to compare the library's with: a cache, and a position bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from heedful.nn.attention.cache import Cache
from heedful.nn.attention.relative_positions import Bias
from heedful.nn.positions import Positions, check_below


@dataclass(frozen=True, eq=False)
class GrowingCache(Cache):
    """A cache that grows by concatenation: as many slots as tokens appended."""

    @classmethod
    def empty(cls, like_keys: Tensor, like_values: Tensor) -> Self:
        """A cache of no tokens for keys [B, K, n, E] and values [B, K, n, Ev] like these."""
        positions = torch.empty(len(like_keys), 0, dtype=torch.int64, device=like_keys.device)
        return cls(like_keys[:, :, :0], like_values[:, :, :0], positions)

    def append(self, keys: Tensor, values: Tensor, positions: Tensor) -> Self:
        return replace(
            self,
            keys=torch.cat([self.keys, keys], dim=2),
            values=torch.cat([self.values, values], dim=2),
            positions=torch.cat([self.positions, positions], dim=1),
        )

    def trim(self, length: int) -> Self:
        positions = self._forget(length)
        slots = (positions >= 0).any(0).nonzero()
        used = int(slots[-1]) + 1 if len(slots) else 0
        return replace(
            self,
            keys=self.keys[:, :, :used],
            values=self.values[:, :, :used],
            positions=positions[:, :used],
        )


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
