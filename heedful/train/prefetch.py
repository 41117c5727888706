"""Batches made by a thread while the update before them runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """A place in the data: an epoch and a batch of it, both counted from 0."""

    epoch: int
    batch: int


class Prefetched(Generic[T]):
    """Results made of the data from a place on, started before they are needed.

    Args:
        make: what comes from a place on, and the place after it; it must depend on the place alone.
            It runs in one thread at a time.
        ends: whether nothing comes from a place on.
    """

    def __init__(
        self, make: Callable[[Place], tuple[T, Place]], ends: Callable[[Place], bool]
    ) -> None:
        self._make = make
        self._ends = ends
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[Place, Future[tuple[T, Place]]] | None = None

    def take(self, place: Place) -> tuple[T, Place]:
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
