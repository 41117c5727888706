"""Sums and largest ones of long rows of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.nn.native.library import kernels


def serves(scores: Tensor) -> bool:
    """Whether there are kernels for such scores."""
    return (
        scores.dtype == torch.float32
        and scores.device.type == "cpu"
        and scores.is_contiguous()
        and kernels() is not None
    )


def log_totals(scores: Tensor) -> Tensor:
    """log Σ exp of each row of scores [..., V], float64: [...]."""
    totals = torch.empty(scores.shape[:-1], dtype=torch.float64)
    size = scores.shape[-1]
    kernels().heedful_totals(scores.data_ptr(), totals.numel(), size, totals.data_ptr())
    return totals


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row [..., V], largest first, and their indices.

    Args:
        scores: [..., V].
        count: at most V.
    """
    values = scores.new_empty((*scores.shape[:-1], count))
    places = torch.empty(values.shape, dtype=torch.int64)
    size = scores.shape[-1]
    kernels().heedful_best(
        scores.data_ptr(), scores.numel() // size, size, count, values.data_ptr(), places.data_ptr()
    )
    return values, places
