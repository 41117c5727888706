"""Parts of few models that read the values of positions, on a processor: biases and scans."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.engines.host_parts import HostSelfAttention
from heedful.nn.attention.latent import LatentSelfAttention
from heedful.nn.attention.relative_positions import Bias, RelativeKeys, TransformerXL
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens
from heedful.nn.positions import Positions


class _ByDiagonals(Bias):
    """A bias that shifts scores by diagonals if the positions of all rows count up by one.

    Every pair on a diagonal has the same distance, so one score per query and distance is enough
    and no look-up per pair is needed (Dai 2019, appendix B).
    """

    def diagonals(self, positions: Positions) -> Tensor | None:
        def compute() -> Tensor | None:
            # With padding, packing or beams, positions do not count up; the definition then looks
            # up each pair.
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


class HostLatentAttention(LatentSelfAttention):
    """Latent attention by the kernels for processors.

    It gets padding: of its two fused maps only the first reads the input.
    """

    kernels = HostSelfAttention.kernels


class HostScanMixer(ScanMixer):
    """A scan over tokens that moves them only if padding stands before a token."""

    def tokens_at(self, positions: Tensor, segments: Tensor | None = None) -> Tokens:
        real = positions >= 0
        # With padding at the end alone, scan order is the order in memory and nothing is copied.
        in_order = real.shape[1] > 1 and not bool((real[:, 1:] > real[:, :-1]).any())
        return Tokens.of(positions, segments, in_order=in_order)
