"""Detection of shifted lines, whose targets fit the sources of neighbouring lines better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heedful.apps.cleaning.raw_pairs import RawPair
from heedful.apps.quality.wording_checks import length_deviation, text_length, word_keys

FARTHEST = 2
"""Maximum shift between sources and targets that is detected, in lines."""

_WINDOW = 40  # lines that are averaged: single lines say little
_FEWEST = 10
_OUT_OF_STEP = -0.3  # the minimum over the unchanged file of Tatoeba is -0.08
_SCALE = 10  # similarities are stored in tenths, in one byte
_ENDS = ".!?:。！？"


class _Side(NamedTuple):
    """Features that are compared: length, beginnings of words, and final punctuation."""

    length: float
    keys: frozenset[str]
    end: str


def _side(text: str) -> _Side:
    last = text.rstrip()[-1:]
    return _Side(text_length(text), word_keys(text), last if last in _ENDS else "")


def _likeness(source: _Side, target: _Side) -> float:
    """Return the similarity of two texts by length, shared words and final punctuation."""
    deviation = length_deviation(source.length, target.length)
    shared = len(source.keys & target.keys)
    same_end = 0.5 if source.end == target.end else -1.0
    return 3.0 * min(shared, 2) + same_end - min(deviation * deviation, 9.0) / 4


def likenesses(before: Sequence[RawPair], chunk: Sequence[RawPair]) -> list[int]:
    """Return by how much each pair is more similar than pairings with the lines before it.

    Args:
        before: pairs before the chunk.
        chunk: pairs to compare.

    Returns:
        Two differences in tenths for each pair and each distance up to `FARTHEST`: the similarity
        of the pair minus that of its source and the earlier target, and minus that of the earlier
        source and its target.
    """
    rows = [*before[-FARTHEST:], *chunk]
    sources = [_side(pair.source) for pair in rows]
    targets = [_side(pair.target) for pair in rows]
    found = []
    for n in range(len(rows) - len(chunk), len(rows)):
        own = _likeness(sources[n], targets[n])
        for distance in range(1, FARTHEST + 1):
            other = n - distance
            for a, b in ((n, other), (other, n)):
                gap = own - _likeness(sources[a], targets[b]) if other >= 0 else 0.0
                found.append(max(-127, min(127, math.trunc(gap * _SCALE))))
    return found


def shifted_rows(gaps: npt.NDArray[np.int8]) -> npt.NDArray[np.intp]:
    """Return the rows around which targets fit neighbouring sources better than their own.

    Args:
        gaps: differences [pairs, 2 * FARTHEST] from `likenesses`.
    """
    count = len(gaps)
    if count < _FEWEST:
        return np.empty(0, np.intp)
    half = min(_WINDOW, count) // 2
    found = np.zeros(count, bool)
    starts = np.maximum(np.arange(count) - half, 0)
    ends = np.minimum(np.arange(count) + half, count)
    for column in gaps.T:
        sums = np.concatenate([[0], np.cumsum(column, dtype=np.int64)])
        found |= (sums[ends] - sums[starts]) / (ends - starts) < _OUT_OF_STEP * _SCALE
    return np.flatnonzero(found)
