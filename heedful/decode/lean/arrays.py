"""Arrays as kernels in C read and write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_LINE = 64
"""Bytes that processors fetch at once."""


def empty(shape: tuple[int, ...], kind: Any = np.float32) -> npt.NDArray[Any]:
    """An array of unset numbers that begins where a line of memory does."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    held = np.empty(size + _LINE - 1, np.uint8)
    start = -held.ctypes.data % _LINE
    found: npt.NDArray[Any] = held[start : start + size].view(kind).reshape(shape)
    return found


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that begins where a line of memory does, its numbers side by side."""
    found = empty(array.shape, array.dtype)
    found[...] = array
    return found


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Where its numbers begin; None for none."""
    return None if array is None else array.ctypes.data


def workspace(size: int) -> npt.NDArray[Any]:
    """Memory of so many bytes for what passes."""
    return empty((size,), np.uint8)
