"""Texts translated line by line, with the white space around lines kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heedful.pipelines.text_splitting import Translation


@dataclass(frozen=True)
class FramedLine:
    """A line of a text, with the surrounding white space, which the translation keeps.

    Args:
        text: text of the line, without white space around it.
        before, after: white space around the line; the line break is part of `after`.
    """

    text: str
    before: str
    after: str


def framed_lines(text: str, *, is_whole: bool = False) -> list[FramedLine]:
    """Split a text into lines; a text that ends in a line break has an empty last line.

    Args:
        text: text with line breaks of any kind.
        is_whole: true to treat the whole text as one line.
    """
    lines = [text] if is_whole else text.splitlines(keepends=True)
    if not is_whole and (not lines or lines[-1].splitlines() != lines[-1:]):
        lines.append("")
    bare = [line.strip() for line in lines]
    starts = [line.find(own) if own else len(line) for line, own in zip(lines, bare, strict=True)]
    return [
        FramedLine(own, line[:start], line[start + len(own) :])
        for line, own, start in zip(lines, bare, starts, strict=True)
    ]


@dataclass(frozen=True)
class TranslatedText:
    """A text and its translation, line by line.

    Args:
        lines: translations of the lines, including empty lines.
        sources: lines of the text.
    """

    lines: tuple[Translation, ...]
    sources: tuple[FramedLine, ...]

    @property
    def text(self) -> str:
        """The translation of the text."""
        return self.join(self.lines)

    def ranked(self, rank: int) -> list[Translation]:
        """Return the translation of a rank (0 is the best) of each line, or its last one."""
        return [line.n_best[min(rank, len(line.n_best) - 1)] for line in self.lines]

    def join(self, lines: Sequence[str]) -> str:
        """Join translations of the first lines of the text, with the white space around lines."""
        pairs = zip(self.sources, lines, strict=False)
        return "".join(f"{source.before}{line}{source.after}" for source, line in pairs)

    @property
    def ranks(self) -> int:
        """The number of next-best translations."""
        return max((len(line.others) for line in self.lines), default=0)
