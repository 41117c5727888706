"""Linear maps laid out for kernels in C, as `heedful.nn.native.linear` has them of tensors."""

from __future__ import annotations

import ctypes
from typing import Self

import numpy as np

from heedful.decode.lean.arrays import Floats, address, empty, workspace
from heedful.nn.native.library import kernels
from heedful.nn.native.structures import Linear

_LARGEST = np.float32(127)
_SMALLEST = np.float32(1e-30)
"""Keeps a row of zeros from being divided by 0."""


class LinearMap:
    """`x @ weight.T + bias`.

    Args:
        weight: [N, K].
        bias: [N] or None.
        int8: round both sides to 8 bits, symmetrically.
    """

    def __init__(self, weight: Floats, bias: Floats | None, *, int8: bool) -> None:
        self.out_width, in_width = weight.shape
        library = kernels()
        size = library.heedful_packed(in_width, self.out_width, int8)
        scale = correction = None
        if int8:
            largest = np.maximum(np.abs(weight).max(1, keepdims=True), _SMALLEST)
            # As PyTorch divides a number by an array: ties would fall to other integers else.
            rounded = np.rint(weight * (np.float32(1) / largest * _LARGEST)).astype(np.int8)
            scale = largest[:, 0] / np.float32(127**2)
            correction = rounded.sum(1, dtype=np.int32) * np.int32(128)
            panels = empty((size,), np.int8)
            pack, packed = library.heedful_pack_int8, rounded
        else:
            panels = empty((size,))
            pack, packed = library.heedful_pack_float, weight
        pack(address(packed), in_width, self.out_width, address(panels))
        parts = panels, bias, scale, correction
        self.held: object = parts
        self.described = Linear(*map(address, parts), in_width, self.out_width)

    @classmethod
    def sharing(cls, described: Linear, held: object) -> Self:
        """A map that is laid out already, and who holds its numbers."""
        made = cls.__new__(cls)
        made.held, made.described, made.out_width = held, described, described.out_width
        return made

    def __call__(self, x: Floats) -> Floats:
        """[R, K] to [R, N]."""
        library, layer, rows = kernels(), ctypes.byref(self.described), len(x)
        y = empty((rows, self.out_width))
        space = workspace(library.heedful_linear_room(layer, rows))
        library.heedful_linear(layer, address(x), rows, address(y), False, address(space))
        return y
