"""Weights of which only a part is learned: parametrisations for `torch.nn.utils.parametrize`.

The module that has the weight does not know: where it reads its weight, the whole is computed from
the frozen tensor and the learned ones. So a forward pass is that of a module with the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.device import full_precision


class LowRank(nn.Module):
    """A matrix plus products of two thin ones, in some of its rows (LoRA, Hu 2021).

    Args:
        maps: names of the maps that learn a change; each the rows [start, stop) of the matrix, in
            ascending order.
        in_width: columns of the matrix.
        rank: r, the inner width of the products.
        scale: factor of the products.

    Attributes:
        down: by map, [r, in_width], random at first.
        up: by map, [stop - start, r], zero at first, so that the matrix begins unchanged.
    """

    def __init__(
        self, maps: Mapping[str, tuple[int, int]], in_width: int, rank: int, scale: float
    ) -> None:
        super().__init__()
        self.maps = dict(maps)
        self.scale = scale
        self.down = nn.ParameterDict({name: torch.empty(rank, in_width) for name in maps})
        self.up = nn.ParameterDict(
            {name: torch.zeros(stop - start, rank) for name, (start, stop) in maps.items()}
        )
        for down in self.down.values():
            nn.init.uniform_(down, -1 / math.sqrt(in_width), 1 / math.sqrt(in_width))

    def forward(self, weight: Tensor) -> Tensor:
        """The matrix [rows, in_width] with its changes."""
        parts: list[Tensor] = []
        done = 0
        # In a lower precision the sum would not be that of the merged model.
        with full_precision(weight):
            for name, (start, stop) in self.maps.items():
                change = self.scale * (self.up[name] @ self.down[name])
                parts += [weight[done:start], weight[start:stop] + change]
                done = stop
        return torch.cat([*parts, weight[done:]])


class NewRows(nn.Module):
    """A table to which rows were added; only these are learned.

    Args:
        rows: [n, …], their first values.
        first: where they stand in the whole table.
    """

    def __init__(self, rows: Tensor, first: int) -> None:
        super().__init__()
        self.first = first
        self.rows = nn.Parameter(rows.detach().clone())

    def forward(self, table: Tensor) -> Tensor:
        """The whole table, from the rows that there were."""
        return torch.cat([table[: self.first], self.rows, table[self.first :]])

    def right_inverse(self, whole: Tensor) -> Tensor:
        """The rows that there were, from the whole table."""
        after = self.first + len(self.rows)
        return torch.cat([whole[: self.first], whole[after:]])
