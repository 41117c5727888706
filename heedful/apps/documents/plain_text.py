"""Reader of plain text: paragraphs, whose lines may be wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Passage,
    PassagePart,
    lines_of,
    make_passage,
)

_ITEM = re.compile(r"\s*(?:[-*+•–—]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s")
_GAP = re.compile(r" {3,}|\t+")
"""White space between the columns of a table."""

Line = tuple[int, int]


def read_plain_text(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of a text.

    A line counts as wrapped if, with the first word of the next line, it would be longer than the
    longest line of the paragraph. A list item begins a passage, and so does text after a tab or
    three spaces, as between table columns. See `Reader`.
    """
    paragraph: list[Line] = []
    for start, end in [*lines_of(text), (len(text), len(text))]:
        line = text[start:end]
        bare = start + len(line) - len(line.lstrip()), start + len(line.rstrip())
        is_table = _GAP.search(text, *bare) is not None
        alone = settings.split == "lines" or is_table
        if paragraph and (alone or not line.strip()):
            for lines in _wrapped(text, paragraph):
                yield from _passage(text, lines)
            paragraph = []
        if is_table:
            for cell in _cells(text, *bare):
                yield from _passage(text, [cell])
        elif alone and line.strip():
            yield from _passage(text, [bare])
        elif line.strip():
            paragraph.append(bare)


def _cells(text: str, start: int, end: int) -> Iterator[Line]:
    for gap in _GAP.finditer(text, start, end):
        yield start, gap.start()
        start = gap.end()
    yield start, end


def _passage(text: str, lines: list[Line]) -> Iterator[Passage]:
    item = _ITEM.match(text, *lines[0])
    if item is not None:
        lines[0] = (item.end(), lines[0][1])
    yield from make_passage(_wrapped_parts(text, lines), kept=PLACEHOLDERS)


def _wrapped_parts(text: str, lines: Sequence[Line]) -> Iterator[PassagePart]:
    """Yield the parts of wrapped lines, in which a line break stands for a space."""
    before: int | None = None
    for start, end in lines:
        if before is not None:
            yield PassagePart(before, start, "soft", " ")
        yield PassagePart(start, end, "text", text[start:end])
        before = end


def _wrapped(text: str, paragraph: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield groups of lines that are wrapped from one line of a paragraph."""
    width = max(end - start for start, end in paragraph)
    lines = [paragraph[0]]
    for line in paragraph[1:]:
        start, end = lines[-1]
        words = text[slice(*line)].split(maxsplit=1)
        runs_on = end - start + 1 + len(words[0]) > width
        if not runs_on or _ITEM.match(text, *line):
            yield lines
            lines = []
        lines.append(line)
    yield lines
