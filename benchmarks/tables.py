"""Tables of results as Markdown, and the figures in their cells."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.apps.evaluation.seed_intervals import student_interval


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head; all columns but the first are set to the right."""
    lines = [rows[0], [":--", *["--:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_cell(values: Sequence[float], digits: int) -> str:
    """The mean over seeds, and half of its 95 % interval where there are several."""
    mean = student_interval(values)
    spread = f" ± {(mean.high - mean.low) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{mean.score:.{digits}f}{spread}"
