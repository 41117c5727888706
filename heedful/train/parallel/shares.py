"""The parts of an update's batches on which each process trains.

An update has the same batches for any number of processes. If the batches are as many as the
processes, or a multiple, each process takes whole ones; otherwise the examples of each batch are
divided into parts. Dropout is seeded by part, not by process, so a run can be resumed with another
number of processes and computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.train.batch_source import Batch, DataPosition, Prefetched, Source, pin_batch
from heedful.train.context_parallel import shard_batch
from heedful.train.splitting import BatchPart, stand_in


@dataclass(frozen=True)
class Share:
    """The share of one process in every update.

    Args:
        index: index of the process among those that train on different examples.
        learners: number of processes that train on different examples.
        parts: number of parts of every batch.
        context: index of the process among those that share each sequence, and their number.
    """

    index: int = 0
    learners: int = 1
    parts: int = 1
    context: tuple[int, int] = (0, 1)

    def numbers(self, batches: int) -> list[int]:
        """Return the indices of an update's batches of which this process has a part."""
        return [micro for micro in range(batches) if self._of(micro)]

    def cut(self, batch: Batch, micro: int) -> list[BatchPart]:
        """Return this process's parts of a batch; none where it has too few examples.

        Args:
            batch: whole batch.
            micro: index of the batch in the update.
        """
        return [
            replace(part, batch=shard_batch(part.batch, *self.context))
            for part in self._whole(batch, micro)
        ]

    def _whole(self, batch: Batch, micro: int) -> list[BatchPart]:
        if self.parts == 1:
            return [BatchPart(batch, (micro,))]
        count = len(batch.indices)
        # Integer bounds: parts differ by one example at most, the same on every process.
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
            # Round robin over all parts of the update, the order in which `PartialSums` adds them.
            if (micro * self.parts + part) % self.learners == self.index
        ]


class UpdateParts:
    """Makes this process's parts of each update, one update ahead.

    Args:
        source: source of the batches.
        share: share of this process.
        batches: number of batches of an update.
        max_epochs: epoch limit of the run, at which the last update may have fewer batches.
        pin: use of page-locked memory, from which a GPU copies asynchronously.
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
        """Return the parts of the update that starts at a position, and the next position."""
        return self._prefetched.take(place)

    def lines(self, indices: Sequence[int]) -> list[str]:
        """Return the origins of examples ("file:line") by number."""
        return self.source.lines(indices)

    def close(self) -> None:
        """Stop reading ahead."""
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
        # The last update of a run may have fewer batches than there are processes.
        if not parts:
            whole = shard_batch(self.source.batch(*places[0]), *self.share.context)
            # An example of weight 0: the process has to take part in the collectives.
            parts = [stand_in(whole)]
        if self.pin:
            parts = [replace(part, batch=pin_batch(part.batch)) for part in parts]
        return parts, place
