"""Kernels of attention for processors, beside those of the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.engines.training import native_attention
from heedful.engines.training.residual_norm import cheap_dropout
from heedful.kernels.library import emulates_bf16
from heedful.nn.attention.attend import KernelSet
from heedful.nn.attention.kernels import KERNELS
from heedful.nn.attention.kernels.decode import Decode
from heedful.nn.attention.kernels.matmul import Matmul

_LANES = 16
"""Float32 numbers in the widest register. Shorter rows leave PyTorch's softmax unvectorised: 4.2 ms
instead of 0.3 for 16,384 rows of 15 (torch 2.13)."""


class ProcessorMatmul(Matmul):
    """Batched products as processors compute them fast."""

    def operand(self, x: Tensor) -> Tensor:
        """See `Matmul`; in float32 where PyTorch is slow with products of bfloat16."""
        return x.float() if x.dtype == torch.bfloat16 and emulates_bf16() else x

    def softmax(self, scores: Tensor) -> Tensor:
        """See `Matmul`; rows shorter than a register are filled up for the time being."""
        length = scores.shape[-1]
        if length >= _LANES:
            return torch.softmax(scores, dim=-1)
        filled = torch.nn.functional.pad(scores, (0, _LANES - length), value=-torch.inf)
        return torch.softmax(filled, dim=-1)[..., :length]

    def dropout(self, weights: Tensor, probability: float) -> Tensor:
        """See `Matmul`."""
        return cheap_dropout(weights, probability)


_MATMUL = ProcessorMatmul()

PROCESSOR_KERNELS = KernelSet(
    {
        native_attention.name: native_attention,
        **KERNELS,
        _MATMUL.name: _MATMUL,
        Decode.name: Decode(_MATMUL),
    },
    readable=True,
)
"""What is visible can be looked up on a processor, so that masks without effect cost nothing."""
