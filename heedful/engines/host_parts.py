"""Parts that read the values of positions, on a processor, to compute less.

The definition never reads a value: a GPU would have to be waited for, and a compiler cannot do it.
"""

from __future__ import annotations

import functools
from typing import Literal, cast

import torch
from torch import Tensor, nn

from heedful.engines.class_exchange import Kinds
from heedful.engines.processor_kernels import PROCESSOR_KERNELS
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.attention.relative_positions import Bias, RelativeKeys, TransformerXL
from heedful.nn.mixers.scan_mixer import ScanMixer, Tokens
from heedful.nn.positions import LearnedPositions, Positions, SinusoidalPositions, sinusoids

_FEWEST_ROWS = 64
_TABLE_ROWS = 1 << 14
"""Positions below this keep their sinusoids in a table: 67 MB for a width of 512 at most."""


class TabledSinusoids(SinusoidalPositions):
    """Sinusoids from a table; positions beyond the table are computed, each distinct one once."""

    def forward(self, positions: Tensor) -> Tensor:
        """See `SinusoidalPositions.forward`."""
        table_and_first = sinusoid_table(self, positions)
        if table_and_first is not None:
            table, first = table_and_first
            return nn.functional.embedding(positions + first, table)
        # Each distinct position is computed once: the rows of a batch repeat the same positions.
        distinct, row = torch.unique(positions, return_inverse=True)
        encodings = nn.functional.embedding(row, sinusoids(distinct, self.width, self.layout))
        return encodings.masked_fill((positions < 0)[..., None], 0.0)


def sinusoid_table(module: SinusoidalPositions, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return a table that holds the encodings of these positions, and its row of position 0.

    Args:
        module: sinusoidal positions.
        positions: positions [...] int64; −1 is padding.

    Returns:
        Table [P, D] float32 whose first row, that of padding, is zeros; and 1. None where no table
        is kept for positions as large.
    """
    if not positions.numel():
        return None
    last = int(positions.max())
    if last >= _TABLE_ROWS:
        return None
    # Powers of two: while a search grows, the table is made anew a few times and not at each step.
    rows = 1 << max(last + 1, _FEWEST_ROWS).bit_length()
    return _sinusoid_table(module.width, module.layout, rows), 1


def encoding_table(module: nn.Module, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return the table of a module that encodes positions, and the row of position 0.

    Args:
        module: sinusoidal or learned positions.
        positions: positions [...] int64 that the table must hold.
    """
    learned = getattr(module, "weight", None)
    if learned is None:
        return sinusoid_table(cast("SinusoidalPositions", module), positions)
    return learned, cast("LearnedPositions", module).unused_rows


@functools.lru_cache(maxsize=8)
def _sinusoid_table(width: int, layout: Literal["pairs", "halves"], rows: int) -> Tensor:
    """Return [rows + 1, D]: zeros for position −1, then encodings of positions 0 to rows − 1."""
    # A tensor made in inference mode could not be used by a later pass with gradients.
    with torch.inference_mode(False):
        encodings = sinusoids(torch.arange(rows), width, layout)
        return torch.cat([encodings.new_zeros(1, width), encodings])


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


class HostScanMixer(ScanMixer):
    """A scan over tokens that moves them only if padding stands before a token."""

    def tokens_at(self, positions: Tensor, segments: Tensor | None = None) -> Tokens:
        """See `ScanMixer.tokens_at`."""
        real = positions >= 0
        # With padding at the end alone, scan order is the order in memory and nothing is copied.
        in_order = real.shape[1] > 1 and not bool((real[:, 1:] > real[:, :-1]).any())
        return Tokens.of(positions, segments, in_order=in_order)


class HostSelfAttention(SelfAttention):
    """Self-attention by the kernels for processors."""

    kernels = PROCESSOR_KERNELS


class HostCrossAttention(CrossAttention):
    """Cross-attention by the kernels for processors."""

    kernels = PROCESSOR_KERNELS


HOST_KINDS: Kinds = {
    SinusoidalPositions: TabledSinusoids,
    RelativeKeys: HostRelativeKeys,
    TransformerXL: HostTransformerXL,
    ScanMixer: HostScanMixer,
    SelfAttention: HostSelfAttention,
    CrossAttention: HostCrossAttention,
}
"""Classes for inference and training on a processor, by the definition's classes."""
