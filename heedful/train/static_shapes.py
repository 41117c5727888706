"""Losses and batches whose shapes are known without a look at numbers on a device.

A look waits for the device, and a CUDA graph cannot have one: whatever it computes has the shapes
it was recorded with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.engines.training.chunked_loss import ChunkedLosses
from heedful.engines.training.masked_loss import MaskedLosses

if TYPE_CHECKING:
    from heedful.train.batch_source import Batch

_LENGTHS = 16
_ROWS = 8
"""Multiples that lengths and rows of padded batches are rounded up to. Lengths of 8 to 64 tokens
then have 4 values a side, mostly equal on both, and batches of a budget few numbers of rows."""

_TOKENS = {"source", "target_input", "target_output"}

B = TypeVar("B", bound="Batch")

shapes_are_static: ContextVar[bool] = ContextVar("shapes are static", default=False)
"""True while losses are computed at all positions of a batch, so that how many of them count is not
asked."""


@contextmanager
def static_shapes() -> Iterator[None]:
    """A context in which a loss does the same for all batches of a shape."""
    token = shapes_are_static.set(True)
    try:
        yield
    finally:
        shapes_are_static.reset(token)


class OutputProjection(NamedTuple):
    """The output projection: weight [V, D], bias [V], the soft cap of its logits."""

    weight: Tensor
    bias: Tensor | None
    softcap: float | None = None


def of_one_shape(losses: ChunkedLosses) -> ChunkedLosses:
    """Return losses that do the same for all batches of a shape: these, if they do."""
    return losses if losses.takes_padding else MaskedLosses(compiled=False)


def real_places(real: Tensor, count: int) -> Tensor:
    """The places [count] int64 of what is true, ascending, found without waiting for the device.

    Args:
        real: bool of any shape, true so many times; places are counted in it row by row.
        count: of them.
    """
    return real.flatten().int().argsort(descending=True, stable=True)[:count]


def rounded_up(batch: B) -> B:
    """A batch of padded pairs with more padding, so that few shapes of batches come up.

    Args:
        batch: a `PairBatch`; the numbers of its examples stay as many as they are.
    """
    source: Any = batch
    values = {field.name: getattr(source, field.name) for field in fields(source)}
    padded = {
        name: _padded(tensor, 0 if name in _TOKENS else -1)
        for name, tensor in values.items()
        if isinstance(tensor, Tensor) and name != "indices"
    }
    result: B = replace(source, **padded)
    return result


def _padded(table: Tensor, filler: int) -> Tensor:
    rows, length = table.shape
    return F.pad(table, (0, -length % _LENGTHS, 0, -rows % _ROWS), value=filler)


def static_key(batch: Batch) -> tuple[Any, ...]:
    """All that a recorded update depends on in a batch, beside the numbers in its tensors.

    Args:
        batch: a dataclass; how many target tokens it has is such a number.
    """
    source: Any = batch
    values = {f.name: getattr(source, f.name) for f in fields(source)}
    skipped = {"indices", "target_tokens"}
    return type(batch), *(
        (name, (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value)
        for name, value in values.items()
        if name not in skipped
    )
