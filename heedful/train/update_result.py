"""The result of an update, which may still be on the device when the next one is launched.

A loop that reads each loss at once waits for the device, and the device then waits for the loop. So
the results of an update are copied asynchronously and read one update later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.train.batch_source import DataPosition
from heedful.train.objective import CarriedState
from heedful.train.optimizers import DeviceStep
from heedful.train.splitting import BatchPart


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Args:
        values: means over target tokens, by name: `loss` and the objective's extras.
        tokens: number of target tokens.
        grad_norm: L2 norm of the gradient before clipping.
        finite: true if loss and gradient are finite; otherwise no weight changed.
        too_large: (positions, examples) of each batch or part that ran out of memory.
        carried_state: carried state of the last batch.
    """

    values: dict[str, float]
    tokens: int
    grad_norm: float
    finite: bool
    too_large: tuple[tuple[int, int], ...] = ()
    carried_state: CarriedState = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchedUpdate:
    """A launched update whose result may be unknown yet.

    Args:
        read: function that waits for the result. If it is not finite, updates launched since then
            changed no weight either; after reading, updates change weights again.
        carried_state: carried state of the last batch.
        skipped: [] on the device, 1 if the step was skipped, else 0; None where the result is known
            already.
    """

    read: Callable[[], UpdateResult]
    carried_state: CarriedState
    skipped: Tensor | None = None


@dataclass(frozen=True)
class Launch:
    """An update that was launched.

    Args:
        update: handle of the result.
        step: number of the update.
        rate: learning rate of the update.
        parts: batch parts that it is computed from.
        place: position of these parts in the data.
        after: position of the next update's parts.
        before: carried state of the batch before the first.
        started: time of the launch, in seconds of the monotonic clock.
    """

    update: LaunchedUpdate
    step: int
    rate: float
    parts: list[BatchPart]
    place: DataPosition
    after: DataPosition
    before: CarriedState
    started: float


def read_later(
    sums: Mapping[str, Sequence[Tensor]],
    norm: Tensor,
    step: DeviceStep,
    tokens: int,
    carried_state: CarriedState,
    too_large: tuple[tuple[int, int], ...] = (),
) -> LaunchedUpdate:
    """Wrap an update whose step was queued on the device.

    Args:
        sums: sums [] over target tokens, one for each part, by name.
        norm: [], L2 norm of the gradient.
        step: step that the device makes or skips.
        tokens: number of target tokens of the update.
        carried_state: see `UpdateResult`.
        too_large: see `UpdateResult`.
    """
    parts = [part for values in sums.values() for part in values]
    # In float64 a few float32 numbers have the same sum in any order. One tensor, one transfer.
    numbers = _copy_async(torch.stack([*parts, norm, step.skipped]).double())

    def read() -> UpdateResult:
        *values, grad_norm, skipped = numbers()
        count = len(values) // len(sums)
        starts = range(0, len(values), count)
        totals = [sum(values[start : start + count]) for start in starts]
        means = {name: total / tokens for name, total in zip(sums, totals, strict=True)}
        # Reset only after reading, so that everything launched in between was skipped as well.
        if skipped:
            step.skipped.zero_()
        return UpdateResult(means, tokens, grad_norm, not skipped, too_large, carried_state)

    return LaunchedUpdate(read, carried_state, step.skipped)


def _copy_async(numbers: Tensor) -> Callable[[], list[float]]:
    """Start copying numbers [n] to the host; return a function that waits for them."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    # Pinned: a copy to pageable memory would block the host until the device is done.
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(numbers.device))

    def wait() -> list[float]:
        arrived.synchronize()
        values: list[float] = here.tolist()
        return values

    return wait
