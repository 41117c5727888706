"""The memory of Transformer-XL: tokens before a segment of a text, as every layer read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from heedful.nn.positions import NOTHING_HERE, Positions


@dataclass(frozen=True, eq=False)
class SegmentMemory:
    """The last M tokens before the next segment of each of B texts: a value.

    A text that is shorter has places at the beginning that hold nothing.

    Args:
        inputs: of each self-attention, [B, M, D], without gradient.
        segments: [B, M] int64, the text that each token belongs to; −1 where there is nothing.
    """

    inputs: tuple[Tensor, ...]
    segments: Tensor

    @classmethod
    def empty(cls, rows: int, memory: int, width: int, layers: int, device: torch.device) -> Self:
        """The memory of no tokens: B rows of M places, of D numbers in each layer."""
        segments = torch.full((rows, memory), NOTHING_HERE, device=device)
        nothing = torch.zeros((rows, memory, width), device=device)
        return cls((nothing,) * layers, segments)

    def positions(self, segment: Tensor, segments: Tensor) -> Positions:
        """Positions of the next segment as queries, and of memory and segment as keys.

        They count from the first place of the memory: only distances matter.

        Args:
            segment: [B, L] int64, positions counted from 0 in the segment; −1 is padding.
            segments: [B, L] int64, the text that each token belongs to.
        """
        size = self.segments.shape[1]
        places = torch.arange(size, device=segment.device)
        before = torch.where(self.segments >= 0, places, NOTHING_HERE)
        here = torch.where(segment >= 0, segment + size, NOTHING_HERE)
        keys, texts = torch.cat([before, here], 1), torch.cat([self.segments, segments], 1)
        return Positions(here, keys, segments, texts)

    def after(self, inputs: tuple[Tensor, ...], segments: Tensor) -> Self:
        """The memory once a segment has been read.

        Args:
            inputs: of each self-attention, [B, M, D], of the last M tokens.
            segments: [B, L] int64, the text that each token of the segment belongs to; −1 for
                padding.
        """
        texts = torch.cat([self.segments, segments], 1)
        return replace(self, inputs=inputs, segments=texts[:, segments.shape[1] :])
