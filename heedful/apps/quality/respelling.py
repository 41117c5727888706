"""Edits of a text, with the positions of its parts before and after them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

Span = tuple[int, int]
"""Index of the first character, and index after the last character."""

Edit = tuple[int, int, str]
"""Index of the first character, index after the last character, and replacement."""


@dataclass(frozen=True)
class Respelling:
    """A text with edits.

    Args:
        text: text before the edits.
        edits: edits from left to right, without overlaps.
    """

    text: str
    edits: tuple[Edit, ...]

    @classmethod
    def of(cls, text: str, edits: Iterable[Edit]) -> Respelling:
        """Make a respelling from unsorted edits; edits that change nothing are left out."""
        return cls(text, tuple(sorted(e for e in edits if text[e[0] : e[1]] != e[2])))

    @cached_property
    def result(self) -> str:
        """The text after the edits."""
        return "".join(
            [
                new if new is not None else self.text[a:b]
                for (a, b), _, new in self._chunks  # unchanged chunks have no replacement
            ]
        )

    def origin(self, span: Span) -> Span:
        """Return the span of the text that became a span of the result.

        A span that overlaps an edit includes all of it, since characters of an edit do not
        correspond.
        """
        places = [
            (max(a, a + span[0] - c), min(b, a + span[1] - c)) if new is None else (a, b)
            for (a, b), (c, d), new in self._chunks
            if c < span[1] and span[0] < d
        ]
        return (places[0][0], places[-1][1]) if places else (0, 0)

    @cached_property
    def _chunks(self) -> list[tuple[Span, Span, str | None]]:
        """Spans of the text, their spans in the result, and the replacement or None."""
        chunks: list[tuple[Span, Span, str | None]] = []
        done = length = 0
        # An empty edit at the end adds the rest of the text.
        for start, end, new in (*self.edits, (len(self.text), len(self.text), "")):
            assert done <= start <= end, "edits overlap"
            between = length + start - done
            chunks.append(((done, start), (length, between), None))
            chunks.append(((start, end), (between, between + len(new)), new))
            done, length = end, between + len(new)
        return chunks
