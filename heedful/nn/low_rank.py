"""Weights of which only a part is trained: parametrisations for `torch.nn.utils.parametrize`.

The module that owns the weight stays as it is: each access computes the whole weight from the
frozen tensor and the trained ones. So a forward pass is that of a module with the merged weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.device import full_precision


class LowRank(nn.Module):
    """A matrix plus low-rank updates of some of its rows (LoRA; Hu 2021, section 4.1).

    Args:
        maps: names of the maps that are adapted, each with its rows [start, stop) of the matrix,
            in ascending order.
        in_width: columns of the matrix.
        rank: r, the inner dimension of up · down.
        scale: factor on up · down.

    Attributes:
        down: [r, in_width] for each map, random at first.
        up: [stop - start, r] for each map, zero at first, so that the matrix begins unchanged.
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
        # The bound of the authors' program: Kaiming-uniform with a = √5. With both factors zero
        # neither would ever get a gradient.
        for down in self.down.values():
            nn.init.uniform_(down, -1 / math.sqrt(in_width), 1 / math.sqrt(in_width))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the matrix [rows, in_width] with its updates added."""
        parts: list[Tensor] = []
        done = 0
        # Under autocast the sum would be rounded, and the merged model would give other outputs.
        with full_precision(weight):
            # Without the paper's dropout on the input of `down`, which no single matrix could
            # express: the validated model is the merged one.
            for name, (start, stop) in self.maps.items():
                change = self.scale * (self.up[name] @ self.down[name])
                parts += [weight[done:start], weight[start:stop] + change]
                done = stop
        return torch.cat([*parts, weight[done:]])


class NewRows(nn.Module):
    """A frozen table with inserted rows; only these are trained.

    Args:
        rows: [n, …], first values of the inserted rows.
        first: index of the first inserted row in the whole table.
    """

    def __init__(self, rows: Tensor, first: int) -> None:
        super().__init__()
        self.first = first
        self.rows = nn.Parameter(rows.detach().clone())

    def forward(self, table: Tensor) -> Tensor:
        """Insert the rows into the frozen table."""
        return torch.cat([table[: self.first], self.rows, table[self.first :]])

    def right_inverse(self, whole: Tensor) -> Tensor:
        """Return the frozen rows of a whole table."""
        # `parametrize` calls this when it is registered, to find the tensor that it keeps.
        after = self.first + len(self.rows)
        return torch.cat([whole[: self.first], whole[after:]])
