"""Results of a search that reach the host some steps after the device computed them.

A host that asks a GPU after every step which sentences are done waits until the GPU has finished,
and the GPU then waits for the host. So the result of each step is copied asynchronously, and read
when later steps are already running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

STEPS_AHEAD = 2
"""Steps that a device has queued while the host waits for a result. One keeps it busy; the second
covers a host that is late. Each costs one step in vain after the end of a batch."""

Label = TypeVar("Label")


class _Copy(NamedTuple, Generic[Label]):
    label: Label
    values: Tensor
    arrived: torch.cuda.Event | None


class Lookahead(Generic[Label]):
    """A queue of small tensors on their way to the host, each read `steps` steps later.

    Args:
        steps: delay in steps; 0 waits for each tensor.
    """

    def __init__(self, steps: int = STEPS_AHEAD) -> None:
        self._steps = steps
        self._copies: deque[_Copy[Label]] = deque()

    def send(self, label: Label, values: Tensor) -> None:
        """Start the copy of a tensor, which may be overwritten at once.

        Args:
            label: value that `arrived` returns with the tensor.
            values: tensor of any shape, on any device.
        """
        if values.device.type != "cuda":
            # A copy on a processor, too, where the caller overwrites the tensor in place.
            self._copies.append(_Copy(label, values.to("cpu", copy=True), None))
            return
        # Only pinned memory is copied without waiting; pageable memory is staged by the driver.
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        copy.copy_(values, non_blocking=True)
        # An event of this copy: to synchronise the stream would wait for later steps as well.
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(values.device))
        self._copies.append(_Copy(label, copy, arrived))

    def arrived(self, *, all_of_them: bool = False) -> Iterator[tuple[Label, list[int]]]:
        """Yield the tensors of `steps` steps ago, waiting for these alone.

        Args:
            all_of_them: request for all tensors, also of the latest steps.
        """
        while len(self._copies) > (0 if all_of_them else self._steps):
            copy = self._copies.popleft()
            if copy.arrived is not None:
                copy.arrived.synchronize()
            yield copy.label, copy.values.tolist()
