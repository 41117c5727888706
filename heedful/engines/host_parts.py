"""Parts that read positions where these are at hand, on a processor, to compute less.

The definition never reads a value: on a GPU that would wait for it, and a compiler cannot.
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
"""Sinusoids of positions below are kept once computed: 67 MB for a width of 512 at most."""


class TabledSinusoids(SinusoidalPositions):
    """Sinusoids that are looked up in a table; far positions are computed, each once."""

    def forward(self, positions: Tensor) -> Tensor:
        """See `SinusoidalPositions.forward`."""
        table_and_first = sinusoid_table(self, positions)
        if table_and_first is not None:
            table, first = table_and_first
            return nn.functional.embedding(positions + first, table)
        distinct, row = torch.unique(positions, return_inverse=True)
        waves = nn.functional.embedding(row, sinusoids(distinct, self.width, self.layout))
        return waves.masked_fill((positions < 0)[..., None], 0.0)


def sinusoid_table(module: SinusoidalPositions, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return encodings of these positions among others, and the row of position 0.

    Before it there is a row of zeros.

    Args:
        module: whose encodings they are.
        positions: [...] int64; −1 is padding.

    Returns:
        [P, D] float32 and 1; None where no table is kept for such positions.
    """
    if not positions.numel():
        return None
    last = int(positions.max())
    if last >= _TABLE_ROWS:
        return None
    rows = 1 << max(last + 1, _FEWEST_ROWS).bit_length()
    return _sinusoid_table(module.width, module.layout, rows), 1


def encoding_table(module: nn.Module, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return the table of a module that encodes positions, and the row of position 0.

    Args:
        module: of sinusoidal or learned positions.
        positions: [...] int64, that have to lie in it.
    """
    learned = getattr(module, "weight", None)
    if learned is None:
        return sinusoid_table(cast("SinusoidalPositions", module), positions)
    return learned, cast("LearnedPositions", module).unused_rows


@functools.lru_cache(maxsize=8)
def _sinusoid_table(width: int, layout: Literal["pairs", "halves"], rows: int) -> Tensor:
    """[rows + 1, D]: zeros, for position −1, and the encodings of positions 0 to rows − 1."""
    with torch.inference_mode(False):
        waves = sinusoids(torch.arange(rows), width, layout)
        return torch.cat([waves.new_zeros(1, width), waves])


class _ByDiagonals(Bias):
    """A bias that finds out whether all rows count by one, and then shifts products by diagonals.

    A product with every distance of a row is L² numbers shorter than a look-up for each pair.
    """

    def diagonals(self, positions: Positions) -> Tensor | None:
        """See `Bias.diagonals`."""

        def compute() -> Tensor | None:
            for at in (positions.query, positions.key):
                count = at[:, :1] + torch.arange(at.shape[1])
                if not at.numel() or not torch.equal(at, count) or bool((at[:1] != at).any()):
                    return None
            query, key = positions.query[0], positions.key[0]
            return torch.arange(int(key[0] - query[-1]), int(key[-1] - query[0]) + 1)

        return positions.derive("diagonals", compute)


class HostRelativeKeys(_ByDiagonals, RelativeKeys):
    """Relative keys on a processor."""


class HostTransformerXL(_ByDiagonals, TransformerXL):
    """The distances of Transformer-XL on a processor."""


class HostScanMixer(ScanMixer):
    """A mixer that goes over tokens, and moves them only where padding stands before one."""

    def tokens_at(self, positions: Tensor, segments: Tensor | None = None) -> Tokens:
        """See `ScanMixer.tokens_at`."""
        real = positions >= 0
        in_order = real.shape[1] > 1 and not bool((real[:, 1:] > real[:, :-1]).any())
        return Tokens.of(positions, segments, in_order=in_order)


class HostSelfAttention(SelfAttention):
    """Self-attention by the kernels of processors."""

    kernels = PROCESSOR_KERNELS


class HostCrossAttention(CrossAttention):
    """Attention over a memory by the kernels of processors."""

    kernels = PROCESSOR_KERNELS


HOST_KINDS: Kinds = {
    SinusoidalPositions: TabledSinusoids,
    RelativeKeys: HostRelativeKeys,
    TransformerXL: HostTransformerXL,
    ScanMixer: HostScanMixer,
    SelfAttention: HostSelfAttention,
    CrossAttention: HostCrossAttention,
}
"""The classes for a model on a processor, finished or in training, by those of the definition."""
