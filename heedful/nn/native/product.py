"""Matrix products of training by kernels in C, in float32 or of bfloat16 numbers.

Sums are float32 in both. The order they are taken in depends on no thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.native.library import ACTIVATIONS, address, kernels, numbers


class RightSide:
    """A matrix [K, N] laid out to be the right side of products.

    Args:
        matrix: float32 or bfloat16, with rows or columns side by side.
        dtype: what is multiplied, float32 or bfloat16; the first only of float32.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.depth, self.width = matrix.shape
        self.dtype = dtype
        row, column = matrix.stride()
        assert row == 1 or column == 1 or not matrix.numel(), (row, column)
        half, library = dtype == torch.bfloat16, kernels()
        size = library.heedful_right_units(self.depth, self.width, half)
        self.panels = torch.empty(size, dtype=torch.int32)
        library.heedful_lay_right(
            *numbers(matrix), row, column, self.depth, self.width, half, self.panels.data_ptr()
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
            left: [M, K] of the type that is multiplied; in bfloat16 K is even.
            out: [M, N] float32 or bfloat16, which is written.
            bias: [N] float32, added.
            activation: of the result: `relu`, `silu`, `gelu` or `gelu_tanh`.
            slopes: [M, N] float32 or bfloat16: of an activation that is no rectifier, to be filled
                with its slopes; without an activation, what the result is multiplied by.
            gate: [M, N]: the result is zero where it is zero or less.
        """
        depth, half = self.depth, self.dtype == torch.bfloat16
        assert left.dtype == self.dtype and left.shape[1] == depth > 0
        assert left.is_contiguous() and out.is_contiguous()
        assert not half or depth % 2 == 0
        if not out.numel():
            return out
        shape = (left.shape[0], depth, self.width, half)
        kind = ACTIVATIONS.index(activation) if activation else len(ACTIVATIONS)
        written = numbers(out)
        room = _room(*shape, written[1], turned=False)
        kernels().heedful_product(
            *written,
            left.data_ptr(),
            self.panels.data_ptr(),
            *shape,
            address(bias),
            kind,
            *numbers(slopes),
            *numbers(gate),
            room.data_ptr(),
        )
        return out


def turned_product(
    left: Tensor, right: Tensor, out: Tensor, *, sums: Tensor | None = None, adds: bool = False
) -> Tensor:
    """`left.T @ right`.

    Args:
        left: [K, M] float32 or bfloat16.
        right: [K, N] of the same type.
        out: [M, N] float32, which is written.
        sums: [M] float32, to be filled with the sums of left's columns.
        adds: whether to add to what `out` holds; `sums` are of this product alone.
    """
    assert left.dtype == right.dtype and out.dtype == torch.float32
    assert left.is_contiguous() and right.is_contiguous() and out.is_contiguous()
    depth, rows = left.shape
    if not depth:
        if sums is not None:
            sums.zero_()
        return out if adds else out.zero_()
    shape = (rows, depth, right.shape[1], left.dtype == torch.bfloat16)
    room = _room(*shape, False, turned=True)
    kernels().heedful_turned_product(
        out.data_ptr(),
        left.data_ptr(),
        right.data_ptr(),
        *shape,
        adds,
        address(sums),
        room.data_ptr(),
    )
    return out


def _room(rows: int, depth: int, width: int, half: bool, half_out: bool, *, turned: bool) -> Tensor:
    return torch.empty(kernels().heedful_product_room(rows, depth, width, half, half_out, turned))
