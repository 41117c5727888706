"""Losses and batches whose shapes do not depend on values on the device.

Reading a value waits for the device, and a CUDA graph cannot do it: all its tensors have the shapes
they were recorded with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.batches import tensors_of
from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.engines.training.masked_loss import MaskedLosses
from heedful.train.batch_source import Batch

# Lengths and rows of padded batches are rounded up to multiples of these. Lengths of 8 to 64 tokens
# then have 4 values a side, mostly equal on both, and batches of a token budget have few different
# numbers of rows.
_LENGTHS = 16
_ROWS = 8

_TOKENS = {"source", "target_input", "target_output"}  # ids, padded by 0; others by −1

B = TypeVar("B", bound="Batch")

shapes_are_static: ContextVar[bool] = ContextVar("shapes are static", default=False)
"""True while losses are computed at all positions of a batch, padding included, so that the number
of real ones is not read from the device."""


@contextmanager
def static_shapes() -> Iterator[None]:
    """A context in which losses run the same kernels for all batches of a shape."""
    token = shapes_are_static.set(True)
    try:
        yield
    finally:
        shapes_are_static.reset(token)


class OutputProjection(NamedTuple):
    """The output projection: weight [V, D], bias [V] and soft cap of the logits."""

    weight: Tensor
    bias: Tensor | None
    softcap: float | None = None


def of_one_shape(losses: ChunkedLosses) -> ChunkedLosses:
    """Return losses that take padding: the given ones, or masked ones in their place."""
    return losses if losses.takes_padding else MaskedLosses(compiled=False)


def real_places(real: Tensor, count: int) -> Tensor:
    """Return the flat indices [count] int64 of true elements, without waiting for the device.

    Args:
        real: bool tensor of any shape with `count` true elements; indices are in row-major order.
        count: number of true elements.
    """
    # `nonzero` would wait for the device to know the size of its result.
    return real.flatten().int().argsort(descending=True, stable=True)[:count]


def rounded_up(batch: B) -> B:
    """Pad a batch of pairs further, so that few shapes of batches occur.

    Args:
        batch: `PairBatch`; its `indices` are not padded.
    """
    source: Any = batch
    padded = {
        name: _padded(tensor, 0 if name in _TOKENS else -1)
        for name, tensor in tensors_of(source)
        if name != "indices"
    }
    result: B = replace(source, **padded)
    return result


def _padded(table: Tensor, filler: int) -> Tensor:
    rows, length = table.shape
    # Positions of −1 mark the new slots and rows, so no loss or query sees them.
    return F.pad(table, (0, -length % _LENGTHS, 0, -rows % _ROWS), value=filler)


def static_key(batch: Batch) -> tuple[Any, ...]:
    """Return everything about a batch that a recorded update depends on, except tensor values.

    Args:
        batch: batch, a dataclass.
    """
    source: Any = batch
    values = {f.name: getattr(source, f.name) for f in fields(source)}
    # The number of target tokens is a divisor that is read from the device, not recorded.
    skipped = {"indices", "target_tokens"}
    return type(batch), *(
        (name, (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value)
        for name, value in values.items()
        if name not in skipped
    )
