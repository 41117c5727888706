"""The parts of an update's batches that each process learns from.

An update is made of the same batches whatever the number of processes. Where there are as many
batches as processes, or a multiple, each process takes whole ones; else the examples of each batch
are cut into parts. Random numbers (dropout) belong to a part, not to a process, so that a run goes
on with another number of processes as if nothing had changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heedful.train.batch_source import Batch
from heedful.train.splitting import Part


def parts_needed(batches: int, learners: int) -> int:
    """The smallest number of parts of each batch with which all have equally much to do.

    Args:
        batches: of an update.
        learners: processes that learn from different examples.
    """
    return learners // math.gcd(batches, learners)


@dataclass(frozen=True)
class Share:
    """The share of one process in every update.

    Args:
        index: its number among those that learn from different examples.
        learners: how many these are.
        parts: that the examples of every batch are cut into.
    """

    index: int = 0
    learners: int = 1
    parts: int = 1

    def numbers(self, batches: int) -> list[int]:
        """The batches of an update, counted from 0, of which this process needs to have some."""
        return sorted({micro for micro in range(batches) if self._of(micro)})

    def cut(self, batch: Batch, micro: int) -> list[Part]:
        """The parts of a batch that are this process's; none where it has too few examples.

        Args:
            batch: the whole one.
            micro: its number in the update.
        """
        if self.parts == 1:
            return [Part(batch, (micro,))]
        count = len(batch.indices)
        bounds = [count * part // self.parts for part in range(self.parts + 1)]
        return [
            Part(batch.part(start, stop), (micro, start, stop))
            for start, stop in ((bounds[part], bounds[part + 1]) for part in self._of(micro))
            if stop > start
        ]

    def _of(self, micro: int) -> Sequence[int]:
        return [
            part
            for part in range(self.parts)
            if (micro * self.parts + part) % self.learners == self.index
        ]


def stand_in(batch: Batch, micro: int) -> Part:
    """A part for a process without any in an update: an example that does not count.

    It passes through the model for the sake of the others, who wait for its gradients.
    """
    return Part(batch.part(0, 1), (micro, 0, 1), counts=False)
