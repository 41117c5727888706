"""Relative positions in attention that read the values of positions, on a processor."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.attention.relative_positions import Bias, RelativeKeys, TransformerXL
from heedful.nn.positions import Positions


class _ByDiagonals(Bias):
    """A bias that shifts scores by diagonals if the positions of all rows count up by one.

    Every pair on a diagonal has the same distance, so one score per query and distance is enough
    and no look-up per pair is needed (Dai 2019, appendix B).
    """

    def diagonals(self, positions: Positions) -> Tensor | None:
        """See `Bias.diagonals`."""

        def compute() -> Tensor | None:
            # Padding, packing and beams break the count; the definition looks up each pair then.
            for pos in (positions.query, positions.key):
                count = pos[:, :1] + torch.arange(pos.shape[1])
                if not pos.numel() or not torch.equal(pos, count) or bool((pos[:1] != pos).any()):
                    return None
            query, key = positions.query[0], positions.key[0]
            # All distances key − query, from the most negative to the largest.
            return torch.arange(int(key[0] - query[-1]), int(key[-1] - query[0]) + 1)

        return positions.derive("diagonals", compute)


class HostRelativeKeys(_ByDiagonals, RelativeKeys):
    """Relative keys on a processor."""


class HostTransformerXL(_ByDiagonals, TransformerXL):
    """Relative positions of Transformer-XL on a processor."""
