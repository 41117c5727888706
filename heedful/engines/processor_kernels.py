"""Kernels of attention for processors, beside those of the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.engines.training import native_attention
from heedful.engines.training.residual_norm import cheap_dropout
from heedful.kernels.library import emulates_bf16
from heedful.nn.attention.kernels.decode import Decode
from heedful.nn.attention.kernels.matmul import Matmul
from heedful.nn.attention.kernels.request import Kernel
from heedful.nn.attention.kernels.table import KERNELS

_LANES = 16
"""Float32 elements of the widest register. Shorter rows leave PyTorch's softmax unvectorised:
4.2 ms instead of 0.3 for 16,384 rows of 15 (torch 2.13, one thread)."""


class ProcessorMatmul(Matmul):
    """Attention by batched matmuls, in the forms that are fast on a processor."""

    def operand(self, x: Tensor) -> Tensor:
        """See `Matmul`; in float32 where PyTorch emulates bfloat16."""
        # Without bfloat16 instructions PyTorch takes ten times as long as in float32.
        return x.float() if x.dtype == torch.bfloat16 and emulates_bf16() else x

    def softmax(self, scores: Tensor) -> Tensor:
        """See `Matmul`; rows shorter than a register are padded for the softmax."""
        length = scores.shape[-1]
        if length >= _LANES:
            return torch.softmax(scores, dim=-1)
        # exp(−inf) = 0, so the added elements do not change the others.
        padded = torch.nn.functional.pad(scores, (0, _LANES - length), value=-torch.inf)
        return torch.softmax(padded, dim=-1)[..., :length]

    def dropout(self, weights: Tensor, probability: float) -> Tensor:
        return cheap_dropout(weights, probability)


_MATMUL = ProcessorMatmul()

PROCESSOR_TABLE: dict[str, Kernel] = {
    native_attention.name: native_attention,
    **KERNELS,
    # These take the places of the definition's kernels of the same names.
    _MATMUL.name: _MATMUL,
    Decode.name: Decode(_MATMUL),
}
