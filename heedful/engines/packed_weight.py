"""Weights packed for kernels in C, as NumPy arrays; no PyTorch here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.kernels.library import kernels
from heedful.kernels.structs import Linear

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_CACHE_LINE = 64
_LARGEST = np.float32(127)
_SMALLEST = np.float32(1e-30)
"""Keeps a row of zeros from being divided by 0."""


class PackedWeight:
    """The weight and bias of `x @ weight.T + bias`, packed for kernels in C.

    Args:
        weight: [N, K].
        bias: [N] or None.
        int8: round the weight and each input row to 8 bits, symmetrically.
        quantize: rounds a weight; PyTorch's own does it on all cores, to the same bits.

    Attributes:
        struct: as kernels take it; its addresses are those of the arrays here.
    """

    def __init__(
        self,
        weight: Floats,
        bias: Floats | None,
        *,
        int8: bool = False,
        quantize: Callable[[Floats], tuple[npt.NDArray[np.int8], Floats]] | None = None,
    ) -> None:
        library = kernels()
        out_width, in_width = weight.shape
        size = library.heedful_packed_size(in_width, out_width, int8)
        self.bias = bias
        self.scale: Floats | None = None
        self.correction: npt.NDArray[np.int32] | None = None
        if int8:
            rounded, self.scale = (quantize or quantize_rows)(weight)
            self.correction = rounded.sum(1, dtype=np.int32) * np.int32(128)
            self.panels = empty((size,), np.int8)
            library.heedful_pack_int8(address(rounded), in_width, out_width, address(self.panels))
        else:
            self.panels = empty((size,))
            library.heedful_pack_f32(address(weight), in_width, out_width, address(self.panels))
        parts = self.panels, bias, self.scale, self.correction
        self.struct = Linear(*map(address, parts), in_width, out_width)


def quantize_rows(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Round a weight to 8 bits, each row by its largest magnitude.

    Args:
        weight: [N, K].

    Returns:
        [N, K]; and the scale of each row's products, [N] (the other factor is the largest
        magnitude of the input row).
    """
    largest = np.maximum(np.abs(weight).max(1, keepdims=True), _SMALLEST)
    # PyTorch divides a number by an array so; in another order ties would round differently.
    rounded = np.rint(weight * (np.float32(1) / largest * _LARGEST)).astype(np.int8)
    return rounded, largest[:, 0] / np.float32(127**2)


def multiply(layer: Linear, x: Floats) -> Floats:
    """x [R, K] through a packed layer: [R, N]."""
    library, rows = kernels(), len(x)
    y = empty((rows, layer.out_width))
    space = workspace(library.heedful_linear_workspace(layer, rows))
    library.heedful_linear(layer, address(x), rows, address(y), False, address(space))
    return y


def empty(shape: tuple[int, ...], kind: Any = np.float32) -> npt.NDArray[Any]:
    """An uninitialized array that begins at a cache line."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.empty(size + _CACHE_LINE - 1, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    array: npt.NDArray[Any] = memory[start : start + size].view(kind).reshape(shape)
    return array


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A contiguous copy that begins at a cache line."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def address(array: npt.NDArray[Any] | None) -> int | None:
    """The address of an array's first number; None for none."""
    return None if array is None else array.ctypes.data


def workspace(size: int) -> npt.NDArray[Any]:
    """Uninitialized memory of so many bytes for a kernel's intermediate results."""
    return empty((size,), np.uint8)
