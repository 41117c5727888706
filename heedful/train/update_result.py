"""The result of an update, which may still be on the device when the next one is launched.

A loop that asks for each loss waits for the device, which then waits for the loop. So the numbers
of an update are copied to the processor while the device goes on, and looked at one update later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from heedful.train.objective import CarriedState
    from heedful.train.optimizers import DeviceStep


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Args:
        values: means over target tokens: `loss` and the objective's extras.
        tokens: target tokens it was computed from.
        grad_norm: length of the gradient before clipping.
        finite: whether loss and gradient were; if not, no weight was changed.
        too_large: of each batch or part that memory ran out for, positions and examples.
        carried_state: what the last batch hands to the next update.
    """

    values: dict[str, float]
    tokens: int
    grad_norm: float
    finite: bool
    too_large: tuple[tuple[int, int], ...] = ()
    carried_state: CarriedState = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchedUpdate:
    """An update whose result may not be known yet.

    Args:
        read: waits for the result and returns it. If it was not finite, updates launched since
            changed nothing either; those launched from now on do.
        carried_state: what the last batch hands to the next update.
        skipped: [] on the device, 1 if no weight was changed, 0 if they were; None where the result
            is known.
    """

    read: Callable[[], UpdateResult]
    carried_state: CarriedState
    skipped: Tensor | None = None


def read_later(
    sums: Mapping[str, Sequence[Tensor]],
    norm: Tensor,
    step: DeviceStep,
    tokens: int,
    carried_state: CarriedState,
    too_large: tuple[tuple[int, int], ...] = (),
) -> LaunchedUpdate:
    """An update whose step the device has been told to make.

    Args:
        sums: [] of each part, over its target tokens, by name.
        norm: [], the length of the gradient.
        step: that the device makes or leaves out.
        tokens: target tokens of the update.
        carried_state: as in `UpdateResult`.
        too_large: as in `UpdateResult`.
    """
    parts = [part for values in sums.values() for part in values]
    # In float64, where a few numbers of float32 have the same sum in any order.
    numbers = _on_its_way(torch.stack([*parts, norm, step.skipped]).double())

    def read() -> UpdateResult:
        *values, grad_norm, skipped = numbers()
        count = len(values) // len(sums)
        starts = range(0, len(values), count)
        totals = [sum(values[start : start + count]) for start in starts]
        means = {name: total / tokens for name, total in zip(sums, totals, strict=True)}
        if skipped:
            step.skipped.zero_()
        return UpdateResult(means, tokens, grad_norm, not skipped, too_large, carried_state)

    return LaunchedUpdate(read, carried_state, step.skipped)


def _on_its_way(numbers: Tensor) -> Callable[[], list[float]]:
    """Start to copy numbers [n] to the processor; what is returned waits for them."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(numbers.device))

    def wait() -> list[float]:
        arrived.synchronize()
        values: list[float] = here.tolist()
        return values

    return wait
