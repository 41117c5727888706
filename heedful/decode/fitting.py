"""What is done when memory runs out: batches are split, and no result changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from heedful.errors import RunError
from heedful.memory import ran_out, release

Result = TypeVar("Result")


def parts_of(
    batches: Sequence[Sequence[int]],
    work: Callable[[list[int]], Result],
    warn: Callable[[str], None] | None = None,
    place: Callable[[int], str] = lambda number: f"item {number + 1}",
) -> Iterator[tuple[list[int], Result]]:
    """What comes of batches, each with the numbers it is of; in parts where memory demands it.

    Args:
        batches: numbers of the items of each.
        work: computes some of them.
        warn: told in a sentence when a batch was split; Python's warnings if unset.
        place: what to call an item that memory does not suffice for.

    Raises:
        RunError: when there is not enough memory for one item.
    """
    splitting = Splitting(warn, place)
    for batch in batches:
        yield from splitting.run(batch, work)


class Splitting:
    """Runs batches, and the parts of those that memory runs out for; no result depends on it.

    Args:
        warn: told in a sentence when a batch was split; Python's warnings if unset.
        place: what to call an item.
    """

    def __init__(self, warn: Callable[[str], None] | None, place: Callable[[int], str]) -> None:
        self._warn = warn
        self._place = place
        self._parts = 1

    def run(
        self, numbers: Sequence[int], work: Callable[[list[int]], Result]
    ) -> Iterator[tuple[list[int], Result]]:
        """What comes of a batch, or of each of its parts in order.

        What was too much once is not tried again: later batches, which are about as large, are
        cut into as many parts at once.

        Args:
            numbers: of the items of the batch.
            work: computes some of them.

        Raises:
            RunError: when there is not enough memory for one item.
        """
        waiting = _cut(list(numbers), self._parts)
        while waiting:
            part = waiting.pop(0)
            done, result = self._attempt(part, work)
            if done:
                yield part, result[0]
                continue
            check_divisible(part, self._place)
            self._parts *= 2
            rest = [number for other in (part, *waiting) for number in other]
            waiting = _cut(rest, -(-2 * len(rest) // len(part)))
            say_split(len(part), self._warn)

    def _attempt(
        self, part: list[int], work: Callable[[list[int]], Result]
    ) -> tuple[bool, list[Result]]:
        """Whether there was enough memory. The error ends here: it holds the failed pass."""
        try:
            return True, [work(part)]
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            return False, []


def check_divisible(numbers: Sequence[int], place: Callable[[int], str]) -> None:
    """Give back what is unused, or give up where memory did not suffice for one item.

    Args:
        numbers: of the items that it did not suffice for.
        place: what to call an item.

    Raises:
        RunError: when there is but one.
    """
    release()
    if len(numbers) == 1:
        raise RunError(
            "There is not enough memory for one text by itself",
            where=place(numbers[0]),
            remedy="Give it in parts, or take a smaller beam or model",
        )


def say_split(size: int, warn: Callable[[str], None] | None) -> None:
    """Say that so many items were too many; by Python's warnings if nobody is to be told."""
    text = (
        f"Out of memory with {size} items at once: the batch was split, and later ones will "
        f"be; results stay the same. Lower the batch (--batch-tokens, --batch-size) to avoid it"
    )
    if warn is None:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    else:
        warn(text)


def _cut(numbers: list[int], parts: int) -> list[list[int]]:
    """At most so many consecutive parts of about the same size, none of them empty."""
    size = -(-len(numbers) // parts)
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
