"""Vectors of distances that attention adds to the values (Shaw 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.attention.relative_positions import clipped_distance
from heedful.nn.positions import Positions


class RelativeValues(nn.Module):
    """A learned vector per clipped distance, added to the values that are mixed (Shaw 2018).

    A query's output gets Σ weight · vector of the distance. Weights of one distance are summed
    first, so there are never vectors for every pair. All heads share them, as in the paper.

    Args:
        head_width: E.
        max_distance: distances beyond it, on either side, count as it.
    """

    def __init__(self, head_width: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, weights: Tensor, positions: Positions) -> Tensor:
        """The vectors to add to the mixed values.

        Args:
            weights: [B, H, Lq, Lk], of attention.
            positions: where queries and keys stand.

        Returns:
            [B, H, Lq, E] in the type of the weights.
        """
        clipped = clipped_distance(positions, self.max_distance)
        by_distance = weights.new_zeros(*weights.shape[:3], len(self.weight))
        by_distance = by_distance.scatter_add(-1, clipped.expand_as(weights), weights)
        return by_distance @ self.weight.to(weights.dtype)

    def work(self, queries: int) -> int:
        """Return the operations of the sums of every vector for so many queries of one head."""
        return 2 * self.weight.numel() * queries
