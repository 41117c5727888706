"""Convolutions over the pixels before a pixel, as in PixelCNN (van den Oord 2016).

The tokens of an image follow row by row. An output depends on the upper half of a square kernel
around its own token: on the rows above, and in its own row on the tokens to the left and itself.
Outside of the image are zeros, so a window does not go on at the other end of a row. PixelCNN masks
the lower half of a whole kernel; here it is never multiplied.

Shapes: as in `convolution`; C columns of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.nn.mixer_spec import ConvolutionSpec
from heedful.nn.mixers.convolution import Convolution


class Convolution2d(Convolution):
    """A gated convolution over the rows and columns of an image, without later tokens.

    One layer sees what `window_2d(C, h, h, first)` shows to a causal attention, with
    h = kernel_width // 2 + 1.

    Args:
        width: model width D.
        spec: kernel width, columns of the image, and position of its top left token.
    """

    def __init__(self, width: int, spec: ConvolutionSpec) -> None:
        super().__init__(width, spec)
        assert spec.columns is not None
        self.columns, self.first = spec.columns, spec.first
        self.shifts = tuple(column for _, column in _kernel(spec.kernel_width))

    @staticmethod
    def offsets_of(spec: ConvolutionSpec) -> tuple[int, ...]:
        """See `Convolution.offsets_of`: row by row, from above left to the token itself."""
        assert spec.columns is not None
        return tuple(row * spec.columns + column for row, column in _kernel(spec.kernel_width))

    def window(self, tokens: Sequence[Tensor], positions: Tensor) -> Tensor:
        """See `Convolution.window`; what lies outside of the image is 0."""
        place = positions - self.first
        column = place % self.columns
        parts = []
        for part, offset, shift in zip(tokens, self.offsets, self.shifts, strict=True):
            # Without the test of the column the kernel would wrap around into another row.
            inside = (column + shift >= 0) & (column + shift < self.columns)
            inside &= place + offset >= 0
            # A token before the image, such as a begin token, sees itself alone.
            parts.append(part * inside[..., None] if offset else part)
        return torch.cat(parts, -1)


def _kernel(width: int) -> list[tuple[int, int]]:
    """Return the rows and columns of the upper half of a square kernel, relative to its middle."""
    half = width // 2
    above = [(row, column) for row in range(-half, 0) for column in range(-half, half + 1)]
    return [*above, *((0, column) for column in range(-half, 1))]
