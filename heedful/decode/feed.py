"""What waits to be decoded, and searches that are fed with it.

A search begins with as many items as there is room for. Where others may join, those that come next
take the places of the ones that are done. They do so several at a time: each joining is a pass of
the encoder and a copy of what those that are searched have read. Where none may, the search takes
the next ones when the last of the batch is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from heedful.decode.fitting import check_divisible, say_split
from heedful.memory import ran_out

Result = TypeVar("Result")

FREE = 0.25
"""Share of the places that must be free before others join."""


class Decoder(Protocol[Result]):
    """Works on items until they are done, a step at a time."""

    @property
    def alive(self) -> int:
        """How many items it works on."""

    def add(self, numbers: list[int]) -> None:
        """Begin to work on items."""

    def step(self) -> list[tuple[list[int], Result]]:
        """What is done now: items that were added together, with what comes of them."""


class Feed:
    """Numbers of items that wait; several threads may take some.

    Args:
        numbers: in the order in which they are to be begun, the longest first.
        room: how many there is room for where the longest of them is the given one.
        joins: whether items may join those that others work on.
        warn: told in a sentence when memory ran out; Python's warnings if unset.
        place: what to call an item that memory does not suffice for.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        room: Callable[[int], int],
        *,
        joins: bool = False,
        warn: Callable[[str], None] | None = None,
        place: Callable[[int], str] = lambda number: f"item {number + 1}",
    ) -> None:
        self._waiting = list(reversed(numbers))
        self._room = room
        self._joins = joins
        self._warn = warn
        self._place = place
        self._share = 1.0
        self._lock = threading.Lock()

    def take(self, alive: int = 0, among: Sequence[int] = ()) -> list[int]:
        """The next items, as many as are to begin now.

        Args:
            alive: items that are worked on already.
            among: some, which the longest of those is among.
        """
        if alive and not self._joins:
            return []
        with self._lock:
            if not self._waiting:
                return []
            room = min(self._room(number) for number in (self._waiting[-1], *among))
            room = max(1, int(room * self._share))
            if alive and room - alive < FREE * room:
                return []
            return [self._waiting.pop() for _ in range(min(room - alive, len(self._waiting)))]

    def give_back(self, numbers: Sequence[int]) -> None:
        """Let items wait again that memory did not suffice for; fewer are taken at once from now.

        Args:
            numbers: the longest first.

        Raises:
            RunError: when it is but one.
        """
        check_divisible(numbers, self._place)
        with self._lock:
            self._waiting += reversed(numbers)
            half = -(-len(numbers) // 2) + 0.5  # rounding must not lose one
            self._share = min(self._share, half / self._room(numbers[0]))
        say_split(len(numbers), self._warn)


def decoded(feed: Feed, begin: Callable[[], Decoder[Result]]) -> Iterator[tuple[list[int], Result]]:
    """What comes of the items of a feed, in the order in which they are done.

    Where memory runs out, what is not done begins anew, fewer at a time; no result depends on it.

    Args:
        feed: from which other threads may take, too.
        begin: makes a decoder that works on nothing yet.

    Raises:
        RunError: when there is not enough memory for one item.
    """
    decoder, begun = begin(), list[list[int]]()
    while True:
        done = _fed(feed, decoder, begun)
        if done is None:
            decoder = begin()
            feed.give_back([number for numbers in begun for number in numbers])
            begun.clear()
            continue
        for numbers, _ in done:
            begun.remove(numbers)
        yield from done
        if not begun and not done:
            return


def _fed(
    feed: Feed, decoder: Decoder[Result], begun: list[list[int]]
) -> list[tuple[list[int], Result]] | None:
    """A step, perhaps with more items; None where memory ran out.

    The error ends here: it holds the failed pass.
    """
    try:
        more = feed.take(decoder.alive, [numbers[0] for numbers in begun])
        if more:
            begun.append(more)
            decoder.add(more)
        return decoder.step()
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        return None
