"""The batches of a run, in an order that is a function of the epoch; each is made when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from heedful.data.batch_plan import nothing_shown
from heedful.data.batches import tensors_of

T = TypeVar("T")
Item = TypeVar("Item")


class Batch(Protocol):
    """The interface of a batch that the trainer uses."""

    @property
    def target_tokens(self) -> int:
        """Real target tokens; the loss is a sum over exactly these."""

    @property
    def indices(self) -> Tensor:
        """[B] numbers of the examples."""

    def to(self, device: Any) -> Self:
        """Return the batch on a device."""

    def part(self, start: int, stop: int) -> Self:
        """Return the examples from `start` until `stop`."""


def pin_batch(batch: Any) -> Any:
    """Copy a batch into page-locked memory, from which a GPU copies asynchronously.

    Args:
        batch: dataclass of tensors; its `indices` stay in ordinary memory.
    """
    # `indices` stay on the host, which reads them to name lines in messages.
    tensors = {n: t.pin_memory() for n, t in tensors_of(batch) if n != "indices"}
    return replace(batch, **tensors)


class BatchCopies:
    """Copies batches to a GPU on a side stream, while the GPU computes.

    Args:
        device: GPU whose current stream computes the updates.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, batch: Batch) -> Batch:
        """Copy a batch to the device; kernels launched afterwards wait for the copy.

        Args:
            batch: batch in page-locked memory; from pageable memory the copy blocks the host.
        """
        with torch.cuda.stream(self._stream):
            moved: Any = batch.to(self.device)
        now = torch.cuda.current_stream(self.device)
        # The wait is queued on the device and does not block the host.
        now.wait_stream(self._stream)
        for name, tensor in tensors_of(moved):
            if name != "indices":
                # Allocated on the side stream: without this mark the allocator could reuse
                # the memory while the computing stream still reads it.
                tensor.record_stream(now)
        result: Batch = moved
        return result


class DataPosition(NamedTuple):
    """A position in the training data: epoch and batch of that epoch, both counted from 0.

    Batch numbers of an epoch ascend; a source may skip some of them (`StreamedBatches` does).
    """

    epoch: int
    batch: int


class Source(Protocol):
    """The training batches of a run; each depends on its position alone."""

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch, which is an estimate for a stream."""

    def batch(self, epoch: int, number: int) -> Batch:
        """Return the batch at a position."""

    def after(self, place: DataPosition) -> DataPosition:
        """Return the position of the next batch, which may be the first of the next epoch."""

    def sample(self, count: int) -> Iterator[Batch]:
        """Return roughly `count` batches of the first epoch, spread evenly where that is cheap."""

    def lines(self, indices: Sequence[int]) -> list[str]:
        """Return the origins of examples ("file:line"), by example number."""

    def close(self) -> None:
        """Stop reading ahead; the source can be used again afterwards."""


class EpochBatches(Generic[Item]):
    """Training batches: planned once an epoch, made one by one.

    Args:
        plan: items of an epoch, one a batch, in the order of training; a function of the epoch.
        make: function from an item and the epoch to a batch.
        line_of: function from an example's number to its origin, such as "file:line".
    """

    def __init__(
        self,
        plan: Callable[[int], Sequence[Item]],
        make: Callable[[Item, int], Batch],
        line_of: Callable[[int], str],
    ) -> None:
        self.plan = plan
        self.make = make
        self.line_of = line_of
        # The plan of one epoch is kept: planning sorts and shuffles the whole corpus.
        self._epoch: tuple[int, Sequence[Item]] | None = None

    def count(self, epoch: int) -> int:
        return len(self._planned(epoch))

    def batch(self, epoch: int, number: int) -> Batch:
        return self.make(self._planned(epoch)[number], epoch)

    def after(self, place: DataPosition) -> DataPosition:
        epoch, number = place
        return (
            DataPosition(epoch, number + 1)
            if number + 1 < self.count(epoch)
            else DataPosition(epoch + 1, 0)
        )

    def sample(self, count: int) -> Iterator[Batch]:
        # A stride instead of the first batches, so that the sample covers the whole epoch.
        for item in self._planned(0)[:: max(1, self.count(0) // count)]:
            yield self.make(item, 0)

    def close(self) -> None:
        """Do nothing: batches are made on demand."""

    def lines(self, indices: Sequence[int]) -> list[str]:
        return [self.line_of(index) for index in indices]

    def _planned(self, epoch: int) -> Sequence[Item]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self.plan(epoch))
        # An epoch without batches would make `after` count epochs for ever.
        if not self._epoch[1]:
            raise nothing_shown()
        return self._epoch[1]


@dataclass(frozen=True)
class FixedBatches(Generic[Item]):
    """Validation batches: the same ones in the same order each time, whatever the run's seed.

    Args:
        items: descriptions of the batches, one each.
        make: function from an item to a batch.
    """

    items: Sequence[Item]
    make: Callable[[Item], Batch]

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, self.items)


class Prefetched(Generic[T]):
    """A one-step pipeline: while one result is used, a thread computes the next.

    Args:
        make: function from a position to a result and the next position, of the position alone.
            It runs in one thread at a time.
        ends: predicate of positions after which there is no more data.
    """

    def __init__(
        self,
        make: Callable[[DataPosition], tuple[T, DataPosition]],
        ends: Callable[[DataPosition], bool],
    ) -> None:
        self._make = make
        self._ends = ends
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[DataPosition, Future[tuple[T, DataPosition]]] | None = None

    def take(self, place: DataPosition) -> tuple[T, DataPosition]:
        """Return the result at a position and the next position, and start computing that one.

        Raises:
            Exception: the error of `make`, in the caller's thread.
        """
        # A rollback or a resumed run asks for another position than the prefetched one.
        begun, self._next = self._next, None
        if begun is not None and begun[0] == place:
            made = begun[1].result()
        else:
            if begun is not None:
                begun[1].exception()  # `make` runs in one thread at a time, so this waits for it
            made = self._make(place)
        after = made[1]
        if not self._ends(after):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "batches")
            self._next = after, self._pool.submit(self._make, after)
        return made

    def close(self) -> None:
        """End the thread and discard the result it was computing."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._next = None
