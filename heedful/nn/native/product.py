"""Matrix products of training by kernels in C, in float32 or of bfloat16 numbers.

Sums are float32 in both. The order they are taken in depends on no thread.
"""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from heedful.nn.native.library import ACTIVATIONS, Matrix, Production, address, kernels, numbers


class RightSide:
    """A matrix [K, N] laid out to be the right side of products.

    Args:
        matrix: float32 or bfloat16, with rows or columns side by side.
        dtype: what is multiplied, float32 or bfloat16; the first only of float32.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.depth, self.width = matrix.shape
        self.dtype = dtype
        half, library = dtype == torch.bfloat16, kernels()
        size = library.heedful_right_units(self.depth, self.width, half)
        self.panels = torch.empty(size, dtype=torch.int32)
        library.heedful_lay_right(
            byref(_matrix(matrix)), self.depth, self.width, half, self.panels.data_ptr()
        )

    def multiplied(
        self,
        left: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        activation: str | None = None,
        slopes: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """`left @ matrix`, with what follows it.

        Args:
            left: [M, K] of the type that is multiplied, rows side by side; in bfloat16 K is even.
            out: [M, N] float32 or bfloat16, which is written.
            bias: [N] float32, added.
            activation: of the result: `relu`, `silu`, `gelu` or `gelu_tanh`.
            slopes: [M, N] float32 or bfloat16: of an activation that is no rectifier, to be filled
                with its slopes; without an activation, what the result is multiplied by.
            gate: [M, N]: the result is zero where it is zero or less.
        """
        assert left.dtype == self.dtype and left.shape[1] == self.depth > 0
        assert self.dtype == torch.float32 or self.depth % 2 == 0
        if not out.numel():
            return out
        given = _production(out, self.depth, self.dtype)
        given.bias = address(bias)
        given.activation = ACTIVATIONS.index(activation) if activation else len(ACTIVATIONS)
        given.slopes, given.slopes_are_half = numbers(slopes)
        given.gate, given.gate_is_half = numbers(gate)
        room = _room(given, turned=False)
        kernels().heedful_product(
            byref(given), byref(_matrix(left)), self.panels.data_ptr(), room.data_ptr()
        )
        return out


def turned_product(
    left: Tensor, right: Tensor, out: Tensor, *, sums: Tensor | None = None, adds: bool = False
) -> Tensor:
    """`left.T @ right`.

    Args:
        left: [K, M] float32 or bfloat16, rows side by side.
        right: [K, N] likewise, of the same type.
        out: [M, N] float32, which is written.
        sums: [M] float32, to be filled with the sums of left's columns.
        adds: whether to add to what `out` holds; `sums` are of this product alone.
    """
    assert left.dtype == right.dtype and out.dtype == torch.float32
    if not left.shape[0]:
        if sums is not None:
            sums.zero_()
        return out if adds else out.zero_()
    given = _production(out, left.shape[0], left.dtype)
    given.adds = adds
    room = _room(given, turned=True)
    kernels().heedful_turned_product(
        byref(given), byref(_matrix(left)), byref(_matrix(right)), address(sums), room.data_ptr()
    )
    return out


def _matrix(matrix: Tensor) -> Matrix:
    assert 1 in matrix.stride() or not matrix.numel(), matrix.stride()
    return Matrix(*numbers(matrix), *matrix.stride())


def _production(out: Tensor, depth: int, dtype: torch.dtype) -> Production:
    assert out.is_contiguous()
    rows, width = out.shape
    return Production(
        *numbers(out),
        *(None, 0, None, 0, None),
        *(rows, depth, width, dtype == torch.bfloat16, len(ACTIVATIONS), 0),
    )


def _room(given: Production, *, turned: bool) -> Tensor:
    return torch.empty(kernels().heedful_product_room(byref(given), turned))
