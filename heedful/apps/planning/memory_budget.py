"""Automatic batch sizes: the number of positions that fits into free memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from heedful.engines.cost_memory import LARGEST_DECODING, decoding_peak
from heedful.errors import RunError
from heedful.memory import available_bytes
from heedful.models.cost import human_bytes, largest
from heedful.nn.work import BFLOAT16, FLOAT32
from heedful.pipelines.batching import batches_at_once

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.models.build import AnyModel

MARGIN = 0.2
"""Share of the free memory that `auto` leaves for other processes and unforeseen needs."""

_SHORT = 8
"""Text length in tokens for the estimate: short texts are the worst case, since a batch then has
the most rows and logits take the most memory."""


@dataclass(frozen=True)
class FittingBatch:
    """A batch size that fits into memory.

    Args:
        positions: maximum number of positions of a batch.
        reason: sentence that explains the number.
    """

    positions: int
    reason: str


def fitting_batch(
    models: Sequence[AnyModel],
    precision: Precision | None,
    *,
    beam: int = 1,
    available: int | None = None,
) -> FittingBatch:
    """Return the largest batch size for decoding with loaded models.

    Args:
        models: a loaded model, or the members of an ensemble.
        precision: precision of the forward passes; None for float32.
        beam: number of hypotheses of a text.
        available: free memory in bytes; that of the models' device if unset.

    Raises:
        RunError: when there is not enough memory for a single position.
    """
    device = next(models[0].parameters()).device
    if available is None:
        available = available_bytes(device)
    name = "fp32" if precision is None else precision.name
    number_bytes = FLOAT32 if name == "fp32" else BFLOAT16
    # Each thread translates a batch at the same time, so the threads share the free memory.
    at_once = batches_at_once(device, LARGEST_DECODING)
    usable = round(available * (1 - MARGIN) / at_once)

    def needed(positions: int) -> int:
        return sum(
            decoding_peak(
                model.spec,
                positions,
                length=_SHORT,
                parameters=_count(model),
                beam=beam,
                number_bytes=number_bytes,
                device=device.type,
            ).needed
            - _count(model) * FLOAT32  # the parameters are in memory already
            for model in models
        )

    # Binary search: the memory needed grows with the number of positions.
    positions = largest(lambda count: needed(count) <= usable, LARGEST_DECODING)
    if positions == 0:
        raise RunError(
            f"There is no room for a batch: {human_bytes(available)} of memory are free",
            where="batch_tokens = auto",
            remedy="Free memory, or take a smaller beam or model",
        )
    most = " (the most that pays)" if positions == LARGEST_DECODING else ""
    return FittingBatch(
        positions,
        f"Batches of {positions:,} positions{most}: {human_bytes(needed(positions))} needed at "
        f"{name}, {human_bytes(available)} free on {device.type}",
    )


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
