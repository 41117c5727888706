"""Trained vectors of distances that attention adds to the values (Shaw 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.nn.attention.relative_positions import clipped_distance
from heedful.nn.positions import Positions


class RelativeValues(nn.Module):
    """A trained vector per clipped distance, added to the values (Shaw 2018, equation 3).

    A query's output gets Σ weight · vector of the distance. Weights of one distance are summed
    first, so there are never vectors for every pair. All heads share them, as in the paper.

    Args:
        head_width: E.
        max_distance: largest distance on either side with its own vector; farther ones share it.
    """

    def __init__(self, head_width: int, max_distance: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, weights: Tensor, positions: Positions) -> Tensor:
        """Return the vectors to add to the outputs of the heads.

        Args:
            weights: [B, H, Lq, Lk], attention weights.
            positions: positions of queries and keys.

        Returns:
            [B, H, Lq, E] in the dtype of the weights.
        """
        clipped = clipped_distance(positions, self.max_distance)
        # [B, H, Lq, 2 · max_distance + 1] instead of vectors [Lq, Lk, E].
        by_distance = weights.new_zeros(*weights.shape[:3], len(self.weight))
        by_distance = by_distance.scatter_add(-1, clipped.expand_as(weights), weights)
        return by_distance @ self.weight.to(weights.dtype)

    def work(self, queries: int) -> int:
        """Return the operations of the sums over all vectors for `queries` queries of one head."""
        return 2 * self.weight.numel() * queries
