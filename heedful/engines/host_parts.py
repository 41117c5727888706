"""Parts that read the values of positions, on a processor, to compute less.

The definition never reads a value: the host would wait for a GPU, and a compiler cannot trace it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from heedful.engines.class_exchange import Kinds
from heedful.nn.attention.attend import KernelSet
from heedful.nn.attention.kernels.request import Kernel
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.positions import AxisPositions, LearnedPositions, SinusoidalPositions, sinusoids

_FEWEST_ROWS = 64
_TABLE_ROWS = 1 << 14
"""Positions below this keep their sinusoids in a table: 67 MB for a width of 512 at most."""


class TabledSinusoids(SinusoidalPositions):
    """Sinusoids from a table; positions beyond the table are computed, each distinct one once."""

    def forward(self, positions: Tensor) -> Tensor:
        table_and_first = sinusoid_table(self, positions)
        if table_and_first is not None:
            table, first = table_and_first
            return nn.functional.embedding(positions + first, table)
        # Each distinct position is computed once: the rows of a batch repeat the same positions.
        distinct, row = torch.unique(positions, return_inverse=True)
        encodings = nn.functional.embedding(row, sinusoids(distinct, self.width, self.layout))
        return encodings.masked_fill((positions < 0)[..., None], 0.0)


def sinusoid_table(module: SinusoidalPositions, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return a table with the encodings of positions [...] int64, and its row of position 0.

    Returns:
        Table [P, D] float32 whose first row is zeros for padding, and the number 1 of the row of
        position 0. None where a position is too large for a table.
    """
    if not positions.numel():
        return None
    last = int(positions.max())
    if last >= _TABLE_ROWS:
        return None
    # Sizes are powers of two, so a search that grows makes the table anew only a few times.
    rows = 1 << max(last + 1, _FEWEST_ROWS).bit_length()
    return _sinusoid_table(module.width, module.layout, rows), 1


def encoding_table(module: nn.Module, positions: Tensor) -> tuple[Tensor, int] | None:
    """Return the table of the vectors of positions [...], and its row of position 0."""
    if not hasattr(module, "table"):
        return sinusoid_table(cast("SinusoidalPositions", module), positions)
    learned = cast("LearnedPositions | AxisPositions", module)
    return learned.table(), learned.unused_rows


@functools.lru_cache(maxsize=8)
def _sinusoid_table(width: int, layout: Literal["pairs", "halves"], rows: int) -> Tensor:
    """Return [rows + 1, D]: zeros for position −1, then encodings of positions 0 to rows − 1."""
    # A tensor made in inference mode could not be used by a later pass with gradients.
    with torch.inference_mode(False):
        encodings = sinusoids(torch.arange(rows), width, layout)
        return torch.cat([encodings.new_zeros(1, width), encodings])


def _processor_kernels() -> Mapping[str, Kernel]:
    # Imported with the first attention: an engine in C that computes whole stacks needs none.
    from heedful.engines.processor_kernels import PROCESSOR_TABLE

    return PROCESSOR_TABLE


PROCESSOR_KERNELS = KernelSet(_processor_kernels, readable=True)
"""Masks are `readable`: a processor reads their values without waiting, so a mask that hides
nothing is left out."""


class HostSelfAttention(SelfAttention):
    """Self-attention by the kernels for processors."""

    kernels = PROCESSOR_KERNELS


class HostCrossAttention(CrossAttention):
    """Cross-attention by the kernels for processors."""

    kernels = PROCESSOR_KERNELS


_BIASES, _RARE = "heedful.nn.attention.relative_positions", "heedful.engines.host_rare_parts"

HOST_KINDS: Kinds = {
    SinusoidalPositions: TabledSinusoids,
    SelfAttention: HostSelfAttention,
    CrossAttention: HostCrossAttention,
    # Rare parts are registered by name, so that their modules are not imported.
    f"{_BIASES}:RelativeKeys": f"{_RARE}:HostRelativeKeys",
    f"{_BIASES}:TransformerXL": f"{_RARE}:HostTransformerXL",
    "heedful.nn.attention.latent:LatentSelfAttention": f"{_RARE}:HostLatentAttention",
    "heedful.nn.mixers.scan_mixer:ScanMixer": f"{_RARE}:HostScanMixer",
}
"""Classes for inference and training on a processor, by the definition's classes."""
