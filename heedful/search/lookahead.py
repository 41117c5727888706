"""Numbers of a search that come to the host some steps after a device made them.

A host that asks a GPU after every step whether sentences are done waits for all that the GPU still
has to do, and the GPU then waits for the host. So each step's answer is copied beside the work, and
looked at when later steps are under way already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

STEPS_AHEAD = 2
"""Steps that a device has before it while the host waits for an answer. One is enough to keep it
busy; the second covers a host that is late. Each costs a batch one step after its end."""

Label = TypeVar("Label")


class _Copy(NamedTuple, Generic[Label]):
    label: Label
    values: Tensor
    arrived: torch.cuda.Event | None


class Lookahead(Generic[Label]):
    """Copies of small tensors, each read `steps` steps later.

    Args:
        steps: 0 reads each at once.
    """

    def __init__(self, steps: int = STEPS_AHEAD) -> None:
        self._steps = steps
        self._copies: deque[_Copy[Label]] = deque()

    def send(self, label: Label, values: Tensor) -> None:
        """Begin to copy a tensor, which may then be written to again.

        Args:
            label: comes back with it.
            values: of any shape, on any device.
        """
        if values.device.type != "cuda":
            self._copies.append(_Copy(label, values.to("cpu", copy=True), None))
            return
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(values.device))
        self._copies.append(_Copy(label, copy, arrived))

    def arrived(self, *, all_of_them: bool = False) -> Iterator[tuple[Label, list[int]]]:
        """Yield what was sent so many steps ago; wait for that alone.

        Args:
            all_of_them: what was sent later, too.
        """
        while len(self._copies) > (0 if all_of_them else self._steps):
            copy = self._copies.popleft()
            if copy.arrived is not None:
                copy.arrived.synchronize()
            yield copy.label, copy.values.tolist()


def index_on(numbers: list[int], device: torch.device) -> Tensor:
    """Numbers as an index on a device, brought there without waiting for it."""
    index = torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda":
        return index.to(device)
    return index.pin_memory().to(device, non_blocking=True)
