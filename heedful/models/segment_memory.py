"""The memory of Transformer-XL: inputs of every layer for the tokens before a segment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from heedful.nn.positions import NOTHING_HERE, Positions


@dataclass(frozen=True, eq=False)
class SegmentMemory:
    """The last M tokens before the next segment of each of B texts, as an immutable value.

    Where fewer tokens came before, the first places are empty.

    Args:
        inputs: input of each self-attention, [B, M, D], without gradient.
        segments: [B, M] int64, number of the text of each token; −1 in empty places.
    """

    inputs: tuple[Tensor, ...]
    segments: Tensor

    @classmethod
    def empty(cls, rows: int, memory: int, width: int, layers: int, device: torch.device) -> Self:
        """Return a memory of empty places: B rows of M for each layer, of width D."""
        segments = torch.full((rows, memory), NOTHING_HERE, device=device)
        nothing = torch.zeros((rows, memory, width), device=device)
        # All layers may share one tensor, since a memory is never written to.
        return cls((nothing,) * layers, segments)

    def positions(self, segment: Tensor, segments: Tensor) -> Positions:
        """Return the positions of a segment as queries, and of memory and segment as keys.

        They count from the first place of the memory, as attention depends on distances alone.

        Args:
            segment: [B, L] int64, positions counted from 0 in the segment; −1 is padding.
            segments: [B, L] int64, number of the text of each token.
        """
        size = self.segments.shape[1]
        places = torch.arange(size, device=segment.device)
        # [B, M]: empty places count as padding, which no query sees.
        before = torch.where(self.segments >= 0, places, NOTHING_HERE)
        here = torch.where(segment >= 0, segment + size, NOTHING_HERE)
        keys, texts = torch.cat([before, here], 1), torch.cat([self.segments, segments], 1)
        return Positions(here, keys, segments, texts)

    def after(self, inputs: tuple[Tensor, ...], segments: Tensor) -> Self:
        """Return the memory for the next segment.

        Args:
            inputs: input of each self-attention for the last M tokens, [B, M, D].
            segments: [B, L] int64, number of the text of each token of the segment; −1 for padding.
        """
        texts = torch.cat([self.segments, segments], 1)
        # The last M of M + L, as `Stack.read_segment` keeps of the inputs.
        return replace(self, inputs=inputs, segments=texts[:, segments.shape[1] :])
