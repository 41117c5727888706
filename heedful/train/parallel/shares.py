"""The parts of an update's batches that each process learns from.

An update is made of the same batches whatever the number of processes. Where there are as many
batches as processes, or a multiple, each process takes whole ones; else the examples of each batch
are cut into parts. Random numbers (dropout) belong to a part, not to a process, so that a run goes
on with another number of processes as if nothing had changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.train.batch_source import Batch, DataPosition, Prefetched, Source, pinned
from heedful.train.context_parallel import shard_batch
from heedful.train.splitting import BatchPart, stand_in


@dataclass(frozen=True)
class Share:
    """The share of one process in every update.

    Args:
        index: its number among those that learn from different examples.
        learners: how many these are.
        parts: that the examples of every batch are cut into.
        context: its number among those that have a part of each text, and how many these are.
    """

    index: int = 0
    learners: int = 1
    parts: int = 1
    context: tuple[int, int] = (0, 1)

    def numbers(self, batches: int) -> list[int]:
        """The batches of an update, counted from 0, of which this process needs to have some."""
        return [micro for micro in range(batches) if self._of(micro)]

    def cut(self, batch: Batch, micro: int) -> list[BatchPart]:
        """The parts of a batch that are this process's; none where it has too few examples.

        Args:
            batch: the whole one.
            micro: its number in the update.
        """
        return [
            replace(part, batch=shard_batch(part.batch, *self.context))
            for part in self._whole(batch, micro)
        ]

    def _whole(self, batch: Batch, micro: int) -> list[BatchPart]:
        if self.parts == 1:
            return [BatchPart(batch, (micro,))]
        count = len(batch.indices)
        bounds = [count * part // self.parts for part in range(self.parts + 1)]
        return [
            BatchPart(batch.part(start, stop), (micro, start, stop))
            for start, stop in (bounds[part : part + 2] for part in self._of(micro))
            if stop > start
        ]

    def _of(self, micro: int) -> list[int]:
        return [
            part
            for part in range(self.parts)
            if (micro * self.parts + part) % self.learners == self.index
        ]


class UpdateParts:
    """The parts of updates that a process learns from, made one update ahead.

    Args:
        source: of the batches.
        share: of this process.
        batches: of an update.
        max_epochs: after which the last update ends, with fewer batches if need be.
        pin: put batches into memory that a GPU copies from while the processor goes on.
    """

    def __init__(
        self,
        source: Source,
        share: Share,
        batches: int,
        max_epochs: int | None,
        *,
        pin: bool = False,
    ) -> None:
        self.pin = pin
        self.source = source
        self.share = share
        self.batches = batches
        self.max_epochs = max_epochs
        self._prefetched = Prefetched(self._from, lambda place: place.epoch == max_epochs)

    def take(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        """The parts of the update whose batches begin at a place, and the place after them."""
        return self._prefetched.take(place)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """The places of examples in their files, by their numbers."""
        return self.source.lines(indices)

    def close(self) -> None:
        """End what works ahead."""
        self._prefetched.close()
        self.source.close()

    def _from(self, place: DataPosition) -> tuple[list[BatchPart], DataPosition]:
        places: list[DataPosition] = []
        while len(places) < self.batches:
            places.append(place)
            place = self.source.after(place)
            if place.epoch == self.max_epochs:
                break
        parts = [
            part
            for micro in self.share.numbers(len(places))
            for part in self.share.cut(self.source.batch(*places[micro]), micro)
        ]
        if not parts:
            whole = shard_batch(self.source.batch(*places[0]), *self.share.context)
            parts = [stand_in(whole)]
        if self.pin:
            parts = [replace(part, batch=pinned(part.batch)) for part in parts]
        return parts, place
