"""How well labels are given."""

from __future__ import annotations

from collections.abc import Sequence


def accuracy(given: Sequence[int], right: Sequence[int]) -> float:
    """The share of texts with the right label, 0 to 1.

    Args:
        given: the label of each text by the model; at least one.
        right: the label it should have.
    """
    return sum(ours == theirs for ours, theirs in zip(given, right, strict=True)) / len(right)


def macro_f1(given: Sequence[int], right: Sequence[int]) -> float:
    """The mean over labels of F1, the harmonic mean of precision and recall, 0 to 1.

    Every label counts alike, however rare. A label that is neither given nor right anywhere has no
    F1 and does not count.

    Args:
        given: the label of each text by the model; at least one.
        right: the label it should have.
    """
    scores = []
    for label in sorted({*given, *right}):
        both = sum(ours == theirs == label for ours, theirs in zip(given, right, strict=True))
        scores.append(2 * both / (given.count(label) + right.count(label)))
    return sum(scores) / len(scores)
