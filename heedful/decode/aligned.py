"""Words of a source and of its translation, and which were made from which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Alignment:
    """Words and how much each target word attended to each source word.

    Args:
        source_words: words of the source.
        target_words: words of the translation.
        matrix: a row for each target word, a weight for each source word. A row sums to at most 1;
            the rest went to the end of the source.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    matrix: Matrix

    @property
    def links(self) -> tuple[tuple[int, int, float], ...]:
        """(source index, target index, weight) of each target word and its strongest source word.

        A target word that attended to no word at all has no link.
        """
        best = [max(range(len(row)), key=row.__getitem__, default=None) for row in self.matrix]
        return tuple(
            (source, target, self.matrix[target][source])
            for target, source in enumerate(best)
            if source is not None and self.matrix[target][source] > 0.0
        )


def join_alignments(parts: Sequence[Alignment]) -> Alignment:
    """The alignment of a text translated in parts: each part's words attend to that part alone."""
    if len(parts) == 1:
        return parts[0]
    source = tuple(word for part in parts for word in part.source_words)
    target = tuple(word for part in parts for word in part.target_words)
    rows: list[tuple[float, ...]] = []
    before = 0
    for part in parts:
        after = len(source) - before - len(part.source_words)
        rows += ((0.0,) * before + row + (0.0,) * after for row in part.matrix)
        before += len(part.source_words)
    return Alignment(source, target, tuple(rows))
