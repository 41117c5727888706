"""Cosines and sines of rotary positions by kernels in C, against NumPy's of 64 bits."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from heedful.engines.inference.lowering import RotaryAngles
from heedful.errors import ConfigError
from heedful.kernels.library import kernels
from heedful.nn.spec import RotarySpec

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")

POSITIONS = np.array([0, 3, 1, -1, 511, 40_000, 7], np.int64)


def found(head_width: int, **spec: Any) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Cosines and sines at those positions, how many pairs, whether they are neighbours."""
    turning = RotaryAngles(head_width, RotarySpec(**spec))
    turns = turning.at(POSITIONS.ctypes.data, len(POSITIONS))
    del turning
    shape = (len(POSITIONS), turns.num_pairs)
    numbers = ctypes.c_float * (shape[0] * shape[1])
    cosine, sine = (
        np.array(numbers.from_address(at)).reshape(shape) for at in (turns.cos, turns.sin)
    )
    return cosine, sine, turns.num_pairs, turns.interleaved


def check(cosine: np.ndarray, sine: np.ndarray, speeds: list[float], gain: float = 1.0) -> None:
    # Angles are float32, so those of far positions are known less exactly.
    angles = POSITIONS[:, None] * np.array(speeds)
    inexact = 2e-7 * (1 + np.abs(angles))
    assert (np.abs(cosine - gain * np.cos(angles)) <= gain * inexact).all()
    assert (np.abs(sine - gain * np.sin(angles)) <= gain * inexact).all()


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_angles_are_position_times_frequency(layout: Any) -> None:
    cosine, sine, pairs, neighbours = found(16, layout=layout)
    assert (pairs, bool(neighbours)) == (8, layout == "pairs")
    check(cosine, sine, [10_000 ** (-i / 8) for i in range(8)])


def test_a_part_of_a_head() -> None:
    cosine, sine, pairs, _ = found(48, width=6, base=100.0)
    assert pairs == 3
    check(cosine, sine, [100 ** (-i / 3) for i in range(3)])


def test_divided_positions_and_a_temperature() -> None:
    cosine, sine, *_ = found(8, scaling="linear", factor=4.0, temperature=1.25)
    check(cosine, sine, [10_000 ** (-i / 4) / 4 for i in range(4)], 1.25)


def test_widths_that_cannot_be_paired() -> None:
    with pytest.raises(ConfigError, match="cannot be rotated in 5"):
        RotaryAngles(16, RotarySpec(width=5))
