"""Example pictures for a model of images, drawn here: white lines on black."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Line = Sequence[tuple[float, float]]

_THICK = 0.045
"""Half the width of a line, of a picture of width 1."""
_SOFT = 0.03
"""Width of its fading edge."""

# Corners of lines, from (0, 0) above left to (1, 1) below right.
_LINES: Mapping[str, Sequence[Line]] = {
    "zero": [
        [
            (0.5, 0.2), (0.63, 0.26), (0.69, 0.4), (0.69, 0.6), (0.63, 0.74), (0.5, 0.8),
            (0.37, 0.74), (0.31, 0.6), (0.31, 0.4), (0.37, 0.26), (0.5, 0.2),
        ]
    ],
    "one": [[(0.56, 0.2), (0.46, 0.8)]],
    "two": [
        [
            (0.34, 0.34), (0.4, 0.24), (0.52, 0.2), (0.64, 0.26), (0.66, 0.38), (0.58, 0.53),
            (0.44, 0.67), (0.32, 0.79), (0.5, 0.77), (0.7, 0.78),
        ]
    ],
    "three": [
        [
            (0.34, 0.26), (0.48, 0.2), (0.62, 0.26), (0.62, 0.39), (0.5, 0.47), (0.63, 0.54),
            (0.67, 0.67), (0.56, 0.78), (0.42, 0.8), (0.32, 0.73),
        ]
    ],
    "four": [[(0.38, 0.2), (0.31, 0.53), (0.68, 0.53)], [(0.63, 0.22), (0.56, 0.8)]],
    "seven": [[(0.31, 0.24), (0.69, 0.24), (0.55, 0.5), (0.45, 0.8)]],
    "house": [
        [(0.25, 0.5), (0.5, 0.22), (0.75, 0.5)],
        [(0.3, 0.47), (0.3, 0.8), (0.7, 0.8), (0.7, 0.47)],
        [(0.45, 0.8), (0.45, 0.62), (0.56, 0.62), (0.56, 0.8)],
    ],
}  # fmt: skip

EXAMPLES = tuple(_LINES)
"""Names of the pictures."""


def example_image(name: str, side: int) -> npt.NDArray[np.uint8]:
    """Draw the picture of a name.

    Args:
        name: one of `EXAMPLES`.
        side: height and width in pixels.

    Returns:
        [side, side], 0 to 255.
    """
    import numpy as np

    at = (np.arange(side) + 0.5) / side
    x, y = np.meshgrid(at, at)
    nearest = np.full((side, side), np.inf)
    for line in _LINES[name]:
        for start, end in itertools.pairwise(line):
            nearest = np.minimum(nearest, _distance(x, y, start, end))
    shade = np.clip((_THICK + _SOFT - nearest) / _SOFT, 0, 1)
    return np.round(255 * shade).astype(np.uint8)


def _distance(
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    start: tuple[float, float],
    end: tuple[float, float],
) -> npt.NDArray[np.float64]:
    """Compute the distance of each point from a straight line."""
    import numpy as np

    across, down = end[0] - start[0], end[1] - start[1]
    length = across**2 + down**2
    share = np.clip(((x - start[0]) * across + (y - start[1]) * down) / length, 0, 1)
    away: npt.NDArray[np.float64] = np.hypot(
        x - start[0] - share * across, y - start[1] - share * down
    )
    return away
