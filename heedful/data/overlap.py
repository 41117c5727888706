"""Long texts in windows that overlap, so that every piece is read among others on both sides."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Consecutive pieces of a text that are read together.

    Args:
        start: number of the first.
        end: number of the one after the last.
        own_start: first of the pieces that have no more context in another window.
        own_end: the one after the last of these.
    """

    start: int
    end: int
    own_start: int
    own_end: int


def overlapping(count: int, room: int | None, stride: int | None = None) -> list[Window]:
    """The windows of a text. Each piece is one window's own.

    Args:
        count: pieces of the text.
        room: most pieces of a window; None holds every text whole.
        stride: pieces from the beginning of one window to that of the next; half of the room if
            unset. The last window begins earlier where it would be shorter than the others.
    """
    if room is None or count <= room:
        return [Window(0, count, 0, count)]
    step = max(1, room // 2) if stride is None else min(stride, room)
    starts = [*range(0, count - room, step), count - room]
    cuts = [(start + room + after) // 2 for start, after in itertools.pairwise(starts)]
    bounds = [0, *cuts, count]
    return [Window(s, s + room, *bounds[i : i + 2]) for i, s in enumerate(starts)]
