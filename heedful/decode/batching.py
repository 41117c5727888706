"""Which sentences are translated together: of like length, as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

# A step costs much the same for one word as for a few, and its logits take memory all the same.
_SHORTEST = 8


class BatchRoom(TypedDict):
    """How much a batch may hold; see `plan_batches`."""

    width: int
    batch_tokens: int
    batch_size: int | None


def plan_batches(
    lengths: Sequence[int], *, width: int, batch_tokens: int, batch_size: int | None
) -> list[list[int]]:
    """Sentence numbers in batches, longest first; results do not depend on how they are cut.

    Args:
        lengths: tokens of each sentence.
        width: hypotheses searched for a sentence at once.
        batch_tokens: most positions of a batch: sentences × longest × width, padding counted; a
            sentence that is longer forms a batch of its own.
        batch_size: sentences in a batch; then `batch_tokens` is not looked at.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    room = 0
    for number in order:
        if room == 0:
            room = room_of_batch(
                lengths[number], width=width, batch_tokens=batch_tokens, batch_size=batch_size
            )
            batches.append([])
        batches[-1].append(number)
        room -= 1
    return batches


def room_of_batch(longest: int, *, width: int, batch_tokens: int, batch_size: int | None) -> int:
    """How many sentences a batch has room for, at least one.

    Args:
        longest: tokens of its longest sentence.
        width, batch_tokens, batch_size: as for `plan_batches`.
    """
    return batch_size or max(1, batch_tokens // (max(longest, _SHORTEST) * width))
