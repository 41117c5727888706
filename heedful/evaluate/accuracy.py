"""How many outputs are right to the last character."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.evaluate.metrics import check_aligned


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of hypotheses that equal their reference, 0 to 1; nothing is folded or stripped.

    Raises:
        DataError: when the numbers of lines differ, or there are none.
    """
    (lines,) = check_aligned(hypotheses, references)
    return sum(ours == theirs for ours, theirs in zip(hypotheses, lines, strict=True)) / len(lines)
