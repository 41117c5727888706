"""The batches of a run: an order that is a function of the epoch, each batch made when needed."""

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
        ...

    @property
    def indices(self) -> Tensor:
        """[B] numbers of the examples."""
        ...

    def to(self, device: Any) -> Self:
        """The batch on a device."""
        ...

    def part(self, start: int, stop: int) -> Self:
        """The examples from `start` until `stop`."""
        ...


def pinned(batch: Any) -> Any:
    """A batch in memory that a GPU copies from while the processor goes on.

    Args:
        batch: a dataclass of tensors; the numbers of its examples stay where they are.
    """
    tensors = {n: t.pin_memory() for n, t in tensors_of(batch) if n != "indices"}
    return replace(batch, **tensors)


class BatchCopies:
    """Copies batches to a GPU while it computes, on a stream of their own.

    Args:
        device: that computes on its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def copied(self, batch: Batch) -> Batch:
        """The batch on the device, for what is launched from now on.

        Args:
            batch: pinned, or the copy is begun only once the processor has read all of it.
        """
        with torch.cuda.stream(self._stream):
            moved: Any = batch.to(self.device)
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self._stream)
        for name, tensor in tensors_of(moved):
            if name != "indices":
                tensor.record_stream(now)  # its memory is not free before that
        result: Batch = moved
        return result


class DataPosition(NamedTuple):
    """A place in the data: an epoch, from 0, and a batch of it, from 0 on.

    Batches of an epoch ascend, but a source may leave numbers out.
    """

    epoch: int
    batch: int


class Source(Protocol):
    """The training batches of a run, each a function of its place alone."""

    def count(self, epoch: int) -> int:
        """Batches of an epoch, or an estimate where they are not known before they are read."""
        ...

    def batch(self, epoch: int, number: int) -> Batch:
        """The batch of a place."""
        ...

    def after(self, place: DataPosition) -> DataPosition:
        """The place after another, which may be the first of the next epoch."""
        ...

    def sample(self, count: int) -> Iterator[Batch]:
        """About so many batches of the first epoch, spread as evenly as is cheap."""
        ...

    def lines(self, indices: Sequence[int]) -> list[str]:
        """The places of examples, such as "file:line", by their numbers."""
        ...

    def close(self) -> None:
        """End what works ahead; the source can be used again."""
        ...


class EpochBatches(Generic[Item]):
    """Training batches: planned once an epoch, made one by one.

    Args:
        plan: an item for each batch of an epoch, in the order of training; a function of the epoch.
        make: a batch from its item and the epoch.
        line_of: the place of an example, such as "file:line", by its number.
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
        for item in self._planned(0)[:: max(1, self.count(0) // count)]:
            yield self.make(item, 0)

    def close(self) -> None:
        """Nothing works ahead."""

    def lines(self, indices: Sequence[int]) -> list[str]:
        return [self.line_of(index) for index in indices]

    def _planned(self, epoch: int) -> Sequence[Item]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self.plan(epoch))
        if not self._epoch[1]:
            raise nothing_shown()
        return self._epoch[1]


@dataclass(frozen=True)
class FixedBatches(Generic[Item]):
    """Validation batches: the same ones in the same order each time, whatever the run's seed.

    Args:
        items: one for each batch.
        make: a batch from its item.
    """

    items: Sequence[Item]
    make: Callable[[Item], Batch]

    def __iter__(self) -> Iterator[Batch]:
        return map(self.make, self.items)


class Prefetched(Generic[T]):
    """Results made of the data from a place on, started before they are needed.

    Args:
        make: what comes from a place on, and the place after it; it must depend on the place alone.
            It runs in one thread at a time.
        ends: whether nothing comes from a place on.
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
        """The result from a place on, and the place after it, from which the next is started.

        Raises:
            Exception: whatever kept it from being made.
        """
        begun, self._next = self._next, None
        if begun is not None and begun[0] == place:
            made = begun[1].result()
        else:
            if begun is not None:
                begun[1].exception()  # wait: not two at a time
            made = self._make(place)
        after = made[1]
        if not self._ends(after):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "batches")
            self._next = after, self._pool.submit(self._make, after)
        return made

    def close(self) -> None:
        """End the thread; what it was making is thrown away."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = self._next = None
