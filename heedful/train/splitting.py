"""Batches in parts: those of one process, and smaller ones where memory runs out.

When memory runs out, a batch is split and the update starts again. The loss is a sum over tokens
divided by their number in the whole update, so the gradients of parts add up to those of the batch.
What fails leaves nothing behind: gradients and sums start from nothing. A batch that was not split
draws the randomness of its place in the update; a part draws that of its place and its rows, so
that its dropout is another draw from the same distribution, and the same one whenever the batch is
split in the same way. Where the loss is no plain sum (the balance of experts is one of a batch),
parts count as batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.data.batches import positions_in
from heedful.memory import ran_out, release
from heedful.train.parallel.team import ALONE, ElsewhereFailed, Team

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.train.batch_source import Batch

_TRIED = 0.75
"""Share of the positions that memory ran out for that is tried again; a half is less."""


@dataclass(frozen=True)
class Part:
    """A batch of an update, or some of its examples.

    Args:
        batch: of them.
        place: numbers that its randomness depends on: its batch's in the update and, of a part,
            its first example and the one after its last.
        counts: False for a stand-in, of which nothing is learned.
    """

    batch: Batch
    place: tuple[int, ...]
    counts: bool = True

    @property
    def tokens(self) -> int:
        """Target tokens that are learned from."""
        return self.batch.target_tokens if self.counts else 0

    @property
    def positions(self) -> int:
        """On the longer side, padding counted."""
        whole: Any = self.batch
        return positions_in(whole)

    @property
    def examples(self) -> int:
        return len(self.batch.indices)

    def halves(self) -> list[Part]:
        micro, start, *_ = (*self.place, 0)
        middle, end = self.examples // 2, self.examples
        return [
            Part(self.batch.part(first, last), (micro, start + first, start + last), self.counts)
            for first, last in ((0, middle), (middle, end))
        ]


def parts_of(batches: Sequence[Batch | Part]) -> list[Part]:
    """Whole batches of an update as parts; parts as they are."""
    return [
        each if isinstance(each, Part) else Part(each, (micro,))
        for micro, each in enumerate(batches)
    ]


class ElsewhereFull(Exception):
    """Memory ran out for a part of another process."""


class OneTooLarge(Exception):
    """There is not enough memory for a single example.

    Args:
        index: [1], its number.
        positions: of it.
    """

    def __init__(self, index: Tensor, positions: int) -> None:
        super().__init__(f"{positions} positions")
        self.index = index
        self.positions = positions


class Splitting:
    """Runs batches, in parts where memory demands it.

    What is nearly as large as what failed is split without being tried, for as long as the process
    lives: batches fill the same budget, and each would be computed in vain first.

    Args:
        team: the processes, which start an update again together.

    Attributes:
        most: positions of the largest part that is tried; None for any.
    """

    def __init__(self, team: Team = ALONE) -> None:
        self.team = team
        self.most: int | None = None

    def run(
        self,
        parts: Sequence[Part],
        begin: Callable[[], None],
        learn: Callable[[Part, bool], bool],
    ) -> tuple[tuple[int, int], ...] | None:
        """Learn from all parts, in order.

        Args:
            parts: of one update.
            begin: forgets all that was learned from in this update.
            learn: learns from a part, which may be the last one; False to give up the update. With
                several processes it calls `agree` once, in the last part, before gradients travel.

        Returns:
            Positions and examples of each part that memory ran out for; None when given up.

        Raises:
            OneTooLarge: when a part of one example is too large.
            ElsewhereFailed: when that is so on another process.
        """
        failed: list[tuple[int, int]] = []
        while True:
            parts = [small for part in parts for small in self._small(part)]
            begin()
            self._agreed = False
            done, stuck = self._attempt(parts, learn)
            if stuck is None:
                return tuple(failed) if done else None
            begin()
            release()
            self._split(stuck, failed)

    def agree(self) -> None:
        """Go on if memory ran out for nobody.

        Raises:
            ElsewhereFull: if it did.
        """
        if not self.team.alone:
            self._agreed = True
            if self.team.any(False):
                raise ElsewhereFull

    def _split(self, stuck: Part | ElsewhereFull, failed: list[tuple[int, int]]) -> None:
        """Lower `most`, on all processes alike."""
        most = float("inf") if self.most is None else float(self.most)
        one = isinstance(stuck, Part) and stuck.examples == 1
        if self.team.any(one):
            if isinstance(stuck, Part) and one:
                raise OneTooLarge(stuck.batch.indices, stuck.positions)
            raise ElsewhereFailed
        if isinstance(stuck, Part):
            failed.append((stuck.positions, stuck.examples))
            most = round(_TRIED * stuck.positions)
        self.most = round(self.team.least(most))

    def _small(self, part: Part) -> list[Part]:
        if self.most is None or part.examples == 1 or part.positions <= self.most:
            return [part]
        return [small for half in part.halves() for small in self._small(half)]

    def _attempt(
        self, parts: Sequence[Part], learn: Callable[[Part, bool], bool]
    ) -> tuple[bool, Part | ElsewhereFull | None]:
        """Learn from all parts: True if done, and what was too large, if anything.

        The error ends here: it holds the tensors of the pass that failed.
        """
        for number, part in enumerate(parts):
            try:
                if not learn(part, number == len(parts) - 1):
                    return False, None
            except ElsewhereFull as elsewhere:
                return False, elsewhere
            except (MemoryError, RuntimeError) as error:
                if self._agreed or not ran_out(error):
                    raise  # past the agreement others wait for gradients of this very pass
                self.team.any(True)
                return False, part
        return True, None
