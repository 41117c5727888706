"""Scans over tokens that read the values of positions, on a processor."""

from __future__ import annotations

from torch import Tensor

from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens


class HostScanMixer(ScanMixer):
    """A scan over tokens that moves them only if padding stands before a token."""

    def tokens_at(self, positions: Tensor, segments: Tensor | None = None) -> Tokens:
        """See `ScanMixer.tokens_at`."""
        real = positions >= 0
        # With padding at the end alone, scan order is the order in memory and nothing is copied.
        in_order = real.shape[1] > 1 and not bool((real[:, 1:] > real[:, :-1]).any())
        return Tokens.of(positions, segments, in_order=in_order)
