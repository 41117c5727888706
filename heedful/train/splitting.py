"""Batches in parts, and the randomness of each: smaller ones where memory runs out.

When memory runs out, a batch is split and the update starts again. The loss is a sum over tokens
divided by their number in the whole update, so the gradients of parts add up to those of the batch.
What fails leaves nothing behind: gradients and sums start from nothing. A batch that was not split
draws the randomness of its place in the update; a part draws that of its place and its rows, so
that its dropout is another draw from the same distribution, and the same one whenever the batch is
split in the same way. Where the loss is no plain sum (the balance of experts is one of a batch),
parts count as batches of their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.data.batches import numbers_in, positions_in
from heedful.memory import ran_out, release

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heedful.train.batch_source import Batch
    from heedful.train.parallel.team import Team


def derive_seed(*parts: int) -> int:
    """A random seed that depends on all parts and their order, in [0, 2**63).

    Seeds are a function of where a run is, so that no random state has to be kept.

    Args:
        parts: for instance the run's seed, the step and the micro-batch.
    """
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


_TRIED = 0.75
"""Share of the positions that memory ran out for that is tried again; a half is less."""


@dataclass(frozen=True)
class BatchPart:
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

    def numbers(self, rows: Sequence[int] = ()) -> Tensor:
        """Numbers [n] of the examples of some rows; of all if none are given."""
        indices = self.batch.indices
        return numbers_in(indices[list(rows)] if rows else indices)

    def halves(self) -> list[BatchPart]:
        micro, start, *_ = (*self.place, 0)
        middle, end = self.examples // 2, self.examples
        return [
            BatchPart(
                self.batch.part(first, last), (micro, start + first, start + last), self.counts
            )
            for first, last in ((0, middle), (middle, end))
        ]


def parts_of(batches: Sequence[Batch | BatchPart]) -> list[BatchPart]:
    """Whole batches of an update as parts; parts as they are."""
    return [
        each if isinstance(each, BatchPart) else BatchPart(each, (micro,))
        for micro, each in enumerate(batches)
    ]


def stand_in(batch: Batch) -> BatchPart:
    """A part for a process without any in an update: an example that does not count.

    It passes through the model for the sake of the others, who wait for its gradients.
    """
    return BatchPart(batch.part(0, 1), (0, 0, 1), counts=False)


class ElsewhereFull(Exception):
    """Memory ran out for a part of another process."""


class OneTooLarge(Exception):
    """There is not enough memory for a single example.

    Args:
        numbers: [1], its number; those of the pairs [P] of a packed row.
        positions: of it.
    """

    def __init__(self, numbers: Tensor, positions: int) -> None:
        super().__init__(f"{positions} positions")
        self.numbers = numbers
        self.positions = positions


class PartialSums:
    """Gradients of parts summed in an order that several processes can keep, too.

    Sums of floating-point numbers depend on their order. Part after part is added to one sum after
    the other, in turns; then the first half of the sums is added to the second, until one is left.
    A process whose parts are every second or every fourth has some of these sums, and an exchange
    in pairs of processes goes on with them as one process does with all.

    Args:
        parameters: that learn.
        most: of the sums, each of which takes the memory of a gradient; a power of two, 1 to add
            each part to those before it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], most: int) -> None:
        self.parameters = parameters
        self.most = most
        self.begin(1)

    def begin(self, parts: int) -> None:
        """Start an update of so many parts."""
        count = math.gcd(parts, self.most)
        if count == parts:  # of one part each: the first pairs are added at once
            count = max(1, count // 2)
        self._sums: list[list[Tensor | None]] = [[None] * len(self.parameters)] * count
        self._next = 0

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        """A context for the backward pass of the next part.

        Args:
            last: whether it is the update's last, after which parameters have the whole gradient.
        """
        if len(self._sums) == 1:
            yield
            return
        self._give(self._sums[self._next])
        yield
        self._sums[self._next] = [parameter.grad for parameter in self.parameters]
        self._next = (self._next + 1) % len(self._sums)
        if last:
            self._give(_in_pairs(self._sums))
            self.begin(1)

    def _give(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


def _in_pairs(sums: list[list[Tensor | None]]) -> list[Tensor | None]:
    """The sum of gradients, each the sum of the half before the middle and of the half after."""
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [
            [_sum(*each) for each in zip(first, second, strict=True)]
            for first, second in zip(sums[:half], sums[half:], strict=True)
        ]
    return sums[0]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:  # of what a part did not use, such as an expert
        return second if first is None else first
    return first.add_(second)


class Splitting:
    """Runs batches, in parts where memory demands it.

    What is nearly as large as what failed is split without being tried, for as long as the process
    lives: batches fill the same budget, and each would be computed in vain first.

    Args:
        team: the processes, which start an update again together; None where there is one.
        alone: whether a process passes a batch through the model without the others. If not, none
            can start again: the others wait for it within the pass.

    Attributes:
        most: positions of the largest part that is tried; None for any.
    """

    def __init__(self, team: Team | None = None, *, alone: bool = True) -> None:
        self.team = team
        self.alone = alone
        self.most: int | None = None

    def run(
        self,
        parts: Sequence[BatchPart],
        begin: Callable[[], None],
        learn: Callable[[BatchPart, bool], bool],
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
            RunError: when that is so on another process.
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
        if self.team is not None:
            self._agreed = True
            if self.team.any(False):
                raise ElsewhereFull

    def _split(self, stuck: BatchPart | ElsewhereFull, failed: list[tuple[int, int]]) -> None:
        """Lower `most`, on all processes alike."""
        too_large = None
        if isinstance(stuck, BatchPart):
            if stuck.examples == 1:
                too_large = OneTooLarge(stuck.numbers(), stuck.positions)
            failed.append((stuck.positions, stuck.examples))
            self.most = round(_TRIED * stuck.positions)
        if self.team is not None:
            self.team.check(too_large)
            most = float("inf") if self.most is None else float(self.most)
            self.most = round(self.team.least(most))
        elif too_large is not None:
            raise too_large

    def _small(self, part: BatchPart) -> list[BatchPart]:
        if self.most is None or part.examples == 1 or part.positions <= self.most:
            return [part]
        return [small for half in part.halves() for small in self._small(half)]

    def _attempt(
        self, parts: Sequence[BatchPart], learn: Callable[[BatchPart, bool], bool]
    ) -> tuple[bool, BatchPart | ElsewhereFull | None]:
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
                # past the agreement others wait for gradients of this very pass
                if self._agreed or not self.alone or not ran_out(error):
                    raise
                if self.team is not None:
                    self.team.any(True)
                return False, part
        return True, None
