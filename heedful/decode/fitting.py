"""Batches that fit: how large they may be, and what is done when memory runs out all the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from heedful.decode.side_by_side import batches_at_once
from heedful.errors import RunError
from heedful.memory import available_bytes, ran_out, release
from heedful.models.cost import (
    BFLOAT16,
    FLOAT32,
    LARGEST_DECODING,
    decoding_peak,
    human_bytes,
    largest,
)

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.models.build import AnyModel

Result = TypeVar("Result")

MARGIN = 0.2
"""Share of the free memory that `auto` leaves to others, and to what was not foreseen."""

_SHORT = 8
"""Texts of so few tokens are the most in a batch, whose scores then take the most memory."""


@dataclass(frozen=True)
class Room:
    """How many positions a batch may have.

    Args:
        positions: the number picked.
        reason: why, a sentence.
    """

    positions: int
    reason: str


def room_for(
    models: Sequence[AnyModel],
    precision: Precision | None,
    *,
    beam: int = 1,
    available: int | None = None,
) -> Room:
    """The largest batch that decoding has room for beside what is loaded already.

    Args:
        models: loaded ones, of which each goes through every batch.
        precision: of the passes.
        beam: hypotheses of a text.
        available: bytes; those of the models' device if unset.

    Raises:
        RunError: when there is no room for a single position.
    """
    device = next(models[0].parameters()).device
    if available is None:
        available = available_bytes(device)
    name = "fp32" if precision is None else precision.name
    number_bytes = FLOAT32 if name == "fp32" else BFLOAT16
    at_once = batches_at_once(device, LARGEST_DECODING)
    usable = round(available * (1 - MARGIN) / at_once)

    def needed(positions: int) -> int:
        return sum(
            decoding_peak(
                model.spec,
                positions,
                length=_SHORT,
                parameters=_count(model),
                beam=beam,
                number_bytes=number_bytes,
                device=device.type,
            ).needed
            - _count(model) * FLOAT32  # which are there already
            for model in models
        )

    positions = largest(lambda count: needed(count) <= usable, LARGEST_DECODING)
    if positions == 0:
        raise RunError(
            f"There is no room for a batch: {human_bytes(available)} of memory are free",
            where="batch_tokens = auto",
            remedy="Free memory, or take a smaller beam or model",
        )
    most = " (the most that pays)" if positions == LARGEST_DECODING else ""
    return Room(
        positions,
        f"Batches of {positions:,} positions{most}: {human_bytes(needed(positions))} needed at "
        f"{name}, {human_bytes(available)} free on {device.type}",
    )


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


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
