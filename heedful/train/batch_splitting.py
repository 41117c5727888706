"""Split a batch when memory runs out in an update, and start the update again.

The loss is a sum over tokens divided by their number in the whole update, so the gradients of
parts add up to those of the batch. What fails leaves nothing behind: gradients and sums start from
nothing. A batch that was not split draws the randomness of its place in the update, as ever; a
part draws that of its place and its rows, so that its dropout is another draw from the same
distribution, and the same one whenever the batch is split in the same way. Where the loss is no
plain sum (the balance of experts is one of a batch), parts count as batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from heedful.data.batches import positions_in
from heedful.memory import ran_out, release

if TYPE_CHECKING:
    from heedful.train.update import Batch


_TRIED = 0.75
"""Share of the positions that memory ran out for that is tried again; a half is less."""


@dataclass(frozen=True)
class Part:
    """A batch of an update, or some of its examples.

    Args:
        batch: of them.
        place: numbers that its randomness depends on: its batch's in the update and, of a part,
            its first example and the one after its last.
    """

    batch: Batch
    place: tuple[int, ...]

    @property
    def positions(self) -> int:
        """On the longer side, padding counted."""
        whole: Any = self.batch
        return positions_in(whole)

    @property
    def examples(self) -> int:
        """B."""
        return len(self.batch.indices)

    def halves(self) -> list[Part]:
        """The first and the second half of the examples."""
        micro, start, *_ = (*self.place, 0)
        middle, end = self.examples // 2, self.examples
        return [
            Part(self.batch.part(first, last), (micro, start + first, start + last))
            for first, last in ((0, middle), (middle, end))
        ]


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

    Attributes:
        most: positions of the largest part that is tried; None for any.
    """

    def __init__(self) -> None:
        self.most: int | None = None

    def run(
        self,
        batches: Sequence[Batch],
        begin: Callable[[], None],
        learn: Callable[[Part], bool],
    ) -> tuple[tuple[int, int], ...] | None:
        """Learn from all batches, in order.

        Args:
            batches: of one update.
            begin: forgets all that was learned from in this update.
            learn: learns from a batch or a part of one; False to give up the update.

        Returns:
            Positions and examples of each part that memory ran out for; None when given up.

        Raises:
            OneTooLarge: when a part of one example is too large.
        """
        failed: list[tuple[int, int]] = []
        parts = [Part(batch, (micro,)) for micro, batch in enumerate(batches)]
        while True:
            parts = [small for part in parts for small in self._small(part)]
            begin()
            done, stuck = self._attempt(parts, learn)
            if stuck is None:
                return tuple(failed) if done else None
            begin()
            release()
            if stuck.examples == 1:
                raise OneTooLarge(stuck.batch.indices, stuck.positions)
            failed.append((stuck.positions, stuck.examples))
            self.most = round(_TRIED * stuck.positions)

    def _small(self, part: Part) -> list[Part]:
        if self.most is None or part.examples == 1 or part.positions <= self.most:
            return [part]
        return [small for half in part.halves() for small in self._small(half)]

    def _attempt(
        self, parts: Sequence[Part], learn: Callable[[Part], bool]
    ) -> tuple[bool, Part | None]:
        """True if all was learned from, and the part that was too large if there was one.

        The error ends here: it holds the tensors of the pass that failed.
        """
        for part in parts:
            try:
                if not learn(part):
                    return False, None
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error):
                    raise
                return False, part
        return True, None
