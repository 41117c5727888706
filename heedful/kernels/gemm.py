"""Matmuls of training by kernels in C: float32, or bfloat16 with float32 accumulation.

The order of summation depends on sizes alone, not on threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.kernels.library import ACTIVATIONS, KernelActivation, address, array_args, kernels


class PackedB:
    """The right operand B [K, N] of matmuls, packed for the kernels.

    Args:
        matrix: float32 or bfloat16, whose rows or columns are contiguous.
        dtype: dtype of the operands, float32 or bfloat16; float32 needs a float32 matrix.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.depth, self.width = matrix.shape
        self.dtype = dtype
        # The kernel takes strides, so that a weight and its transpose are packed without a copy in
        # between.
        row, column = matrix.stride()
        assert row == 1 or column == 1 or not matrix.numel(), (row, column)
        is_bf16, library = dtype == torch.bfloat16, kernels()
        size = library.heedful_packed_b_size(self.depth, self.width, is_bf16)
        # Opaque words: the layout follows from the instruction set, and C alone knows it.
        self.packed = torch.empty(size, dtype=torch.int32)
        library.heedful_pack_b(
            *(*array_args(matrix), row, column),
            *(self.depth, self.width, is_bf16, self.packed.data_ptr()),
        )

    def multiply(
        self,
        a: Tensor,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        activation: KernelActivation | None = None,
        slopes: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(a @ B + bias)` into `out`.

        Args:
            a: [M, K] in the dtype of the operands; K is even in bfloat16.
            out: [M, N] float32 or bfloat16.
            bias: [N] float32.
            activation: activation of the sum; none if unset.
            slopes: [M, N] float32 or bfloat16, output for the derivative of an activation other
                than `relu`; without an activation it is a factor on the result.
            gate: [M, N], mask of the result, which becomes 0 where the gate is not positive.
        """
        depth, is_bf16 = self.depth, self.dtype == torch.bfloat16
        assert a.dtype == self.dtype and a.shape[1] == depth > 0
        # The kernels have no arguments for strides of these two.
        assert a.is_contiguous() and out.is_contiguous()
        # bfloat16 instructions multiply pairs of neighbours in K.
        assert not is_bf16 or depth % 2 == 0
        if not out.numel():
            return out
        shape = (a.shape[0], depth, self.width, is_bf16)
        written = array_args(out)
        # Allocated by PyTorch, whose allocator keeps it for the next call.
        workspace = _workspace(*shape, written[1], transpose_a=False)
        kernels().heedful_gemm(
            *(*written, a.data_ptr(), self.packed.data_ptr(), *shape, address(bias)),
            # No activation is the last value of the enumeration in C.
            ACTIVATIONS.index(activation) if activation else len(ACTIVATIONS),
            *(*array_args(slopes), *array_args(gate), workspace.data_ptr()),
        )
        return out


def gemm_transposed(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    column_sums: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """Compute `a.T @ b` into `out`.

    Args:
        a: [K, M] float32 or bfloat16.
        b: [K, N] of the same type.
        out: [M, N] float32.
        column_sums: [M] float32, output for the sums of a's columns.
        accumulate: flag that adds to `out`; `column_sums` are those of this matmul alone.
    """
    assert a.dtype == b.dtype and out.dtype == torch.float32
    assert a.is_contiguous() and b.is_contiguous() and out.is_contiguous()
    # In the gradient of a weight, K are the tokens: `a` is the gradient of the output, `b` the
    # input.
    depth, rows = a.shape
    # A sum over no rows is 0, as for a batch without real tokens.
    if not depth:
        if column_sums is not None:
            column_sums.zero_()
        return out if accumulate else out.zero_()
    shape = (rows, depth, b.shape[1], a.dtype == torch.bfloat16)
    workspace = _workspace(*shape, False, transpose_a=True)
    kernels().heedful_gemm_transposed(
        *(out.data_ptr(), a.data_ptr(), b.data_ptr(), *shape, accumulate),
        *(address(column_sums), workspace.data_ptr()),
    )
    return out


def _workspace(
    rows: int, depth: int, width: int, is_bf16: bool, out_is_bf16: bool, *, transpose_a: bool
) -> Tensor:
    library = kernels()
    return torch.empty(
        library.heedful_gemm_workspace(rows, depth, width, is_bf16, out_is_bf16, transpose_a)
    )
