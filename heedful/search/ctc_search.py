"""Search and scores of CTC: a text's probability is a sum over its alignments (Graves 2006).

An alignment gives every frame a label or the blank, label 0. Its text is what is left when labels
that last for several frames are written once, and blanks not at all.

Shapes: T frames, V labels with the blank, W prefixes that are kept, N labels of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLANK = 0

Floats = npt.NDArray[np.float64]


class CTCText(NamedTuple):
    """A text of CTC and its log-probability."""

    labels: tuple[int, ...]
    score: float


def best_path(log_probs: Floats) -> tuple[int, ...]:
    """Return the text of the most probable alignment, which need not be the most probable text.

    Args:
        log_probs: log-probabilities [T, V].
    """
    path = log_probs.argmax(1)
    begins = np.append(True, path[1:] != path[:-1])
    return tuple(path[begins & (path != BLANK)].tolist())


def prefix_beam(log_probs: Floats, beam: int) -> list[CTCText]:
    """Search for the most probable texts, frame by frame (Hannun 2014, algorithm 1).

    Alignments of the same text so far are one prefix, whose probability is their sum.

    Args:
        log_probs: log-probabilities [T, V].
        beam: number of prefixes W that are kept after each frame.

    Returns:
        At most W texts, the most probable first. The probability of a text is the sum over those of
        its alignments whose prefixes were kept throughout, so all if none was dropped.
    """
    prefixes: list[tuple[int, ...]] = [()]
    # Of alignments that end in a blank, and in the prefix's last label [W].
    blank, label = np.zeros(1), np.full(1, -np.inf)
    for frame in log_probs:
        rows = np.arange(len(prefixes))
        last = np.array([prefix[-1] if prefix else BLANK for prefix in prefixes])
        whole = np.logaddexp(blank, label)
        longer = whole[:, None] + frame
        # A label that follows itself is a new one only after a blank.
        longer[rows, last] = blank + frame[last]
        longer[:, BLANK] = -np.inf
        # The empty prefix has no last label: its `label` is −inf, and stays so.
        blank, label = whole + frame[BLANK], label + frame[last]
        places = {prefix: row for row, prefix in enumerate(prefixes)}
        for row, prefix in enumerate(prefixes):
            parent = places.get(prefix[:-1]) if prefix else None
            if parent is not None:  # the same text by another way
                label[row] = np.logaddexp(label[row], longer[parent, prefix[-1]])
                longer[parent, prefix[-1]] = -np.inf
        scores = np.append(np.logaddexp(blank, label), longer)
        # Stable, so that equal scores have the same order everywhere.
        kept = np.argsort(-scores, kind="stable")[:beam]
        kept = kept[scores[kept] > -np.inf]
        stays = kept[kept < len(prefixes)]
        parents, added = np.divmod(kept[kept >= len(prefixes)] - len(prefixes), len(frame))
        longer = longer[parents, added]
        blank = np.append(blank[stays], np.full(len(longer), -np.inf))
        label = np.append(label[stays], longer)
        prefixes = [prefixes[row] for row in stays] + [
            (*prefixes[row], new) for row, new in zip(parents.tolist(), added.tolist(), strict=True)
        ]
    found = zip(prefixes, np.logaddexp(blank, label).tolist(), strict=True)
    return sorted((CTCText(*each) for each in found), key=lambda text: -text.score)


def label_scores(log_probs: Floats, labels: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probability of each label given those before it.

    That nothing follows counts with the last label, so the sum is the log-probability of the text.
    Of a text that frames do not permit it is −inf.

    Args:
        log_probs: log-probabilities [T, V].
        labels: labels of the text, N of them, at least one.
    """
    # Of alignments of the prefix that end in a blank and in a label, after each frame [T + 1].
    blank = np.append(0.0, np.cumsum(log_probs[:, BLANK]))
    label = np.full(len(blank), -np.inf)
    whole, scores = 0.0, []
    for number, each in enumerate(labels):
        is_repeat = number > 0 and labels[number - 1] == each
        # Of alignments in which the label begins at each frame [T].
        begins = (blank if is_repeat else np.logaddexp(blank, label))[:-1] + log_probs[:, each]
        before, whole = whole, float(np.logaddexp.reduce(begins))
        scores.append(whole - before if before > -np.inf else -np.inf)
        blank, label = np.full((2, len(blank)), -np.inf)
        for t, frame in enumerate(log_probs):
            label[t + 1] = np.logaddexp(begins[t], label[t] + frame[each])
            blank[t + 1] = np.logaddexp(blank[t], label[t]) + frame[BLANK]
    if whole > -np.inf:
        scores[-1] += float(np.logaddexp(blank[-1], label[-1])) - whole
    return tuple(scores)
