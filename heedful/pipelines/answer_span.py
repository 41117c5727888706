"""From an encoder's scores of where an answer starts and ends to the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from heedful.pipelines.long_texts import Part
from heedful.pipelines.predictions import Answer, best_span, cut


@dataclass(frozen=True)
class Reading:
    """The best answer of one window of a context.

    Args:
        first: number of the answer's first piece in the context.
        last: number of its last.
        score: natural logarithm of its probability among all that the model read.
        none: that of there being no answer in the window.
    """

    first: int
    last: int
    score: float
    none: float


def read_answer(logits: Tensor, part: Part, longest: int) -> Reading:
    """The best answer of a window.

    Args:
        logits: [L, 2] float32, of starting and ending at each token; L may include padding.
        part: the window.
        longest: most tokens of an answer.
    """
    logs = logits[: len(part.input.ids)].log_softmax(0)
    low, high = (place + part.shift for place in (part.window.start, part.window.end))
    starts, ends = logs[low:high].unbind(1)
    first, last = best_span(starts, ends, longest)
    return Reading(
        first + part.window.start,
        last + part.window.start,
        float(starts[first] + ends[last]),
        float(logs[0].sum()),
    )


def choose(
    readings: Sequence[Reading],
    context: str,
    spans: Sequence[tuple[int, int]],
    *,
    unanswerable: bool,
) -> Answer:
    """The best answer of all windows of a context.

    Args:
        readings: of the windows, at least one.
        context: what was read.
        spans: of its pieces: index of the first character and of the one after the last.
        unanswerable: whether the answer may be that there is none, which no window may contradict.
    """
    best = max(readings, key=lambda reading: reading.score)
    none = min(reading.none for reading in readings)
    if unanswerable and none > best.score:
        return Answer("", 0, 0, math.exp(none))
    start, end = spans[best.first][0], spans[best.last][1]
    return cut(context, start, end, math.exp(best.score))
