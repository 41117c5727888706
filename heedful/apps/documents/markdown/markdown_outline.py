"""The outline of Markdown: its structure as parsers see it, without words.

A translation is parsed again, by the parser that found its passage and by a parser of GitHub's
Markdown. Blocks, links, code, marks and formulas must be the same as in the source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from heedful.apps.documents.markdown.markdown_syntax import (
    ENDS,
    PARAMETER,
    SOURCE,
    markdown_parser,
    masked,
    masked_marks,
)
from heedful.apps.documents.passage import PLACEHOLDERS, LeftOut, lines_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

Outline = tuple[tuple[tuple[str, ...], ...], Counter[tuple[str, ...]]]
"""Blocks in order, and the count of each inline construct, since word order may change."""

# A line of plain words is text in any block; half of all passages need not be parsed again.
_WORDS = re.compile(r"[^\W\d_][^\W_]*(?:[,.;!?]? [^\W_]+)*[,.;!?]?")


@dataclass(frozen=True)
class BlockReading:
    """A block of a document, which is compared with its translations.

    Args:
        text: the document.
        start, end: range of the lines of the block.
        head: lines that decide how the block is parsed, such as the head of a table.
        references: definitions of links in the document.
    """

    text: str
    start: int
    end: int
    head: str
    references: Mapping[str, Any]

    def checked(self, start: int, end: int, written: str) -> str:
        """Return a translation if it does not change the outline of the block.

        Args:
            start, end: range of a passage in the block.
            written: text in place of the passage.

        Raises:
            LeftOut: when the translation changes the outline.
        """
        before = self.text[start:end]
        # For a parser without footnotes, the word in "[^1]: word" is the address of a link.
        are_words = _WORDS.fullmatch(before) and _WORDS.fullmatch(written)
        if written == before or (are_words and "[^" not in self.text[self.start : start]):
            return written
        if self._outlines(self.text[self.start : start] + written + self.text[end : self.end]) != (
            self._source
        ):
            raise LeftOut("its translation would read as other markup")
        return written

    @cached_property
    def _source(self) -> tuple[Outline, ...]:
        return self._outlines(self.text[self.start : self.end])

    def _outlines(self, block: str) -> tuple[Outline, ...]:
        lines = [block[a:b] for a, b in lines_of(block)]
        # Without the preceding lines, an indented block of a list or quotation could be code.
        prefix = re.match(r"[ \t>]*", lines[0])
        depth = 0 if prefix is None else prefix.end()
        bare = [re.sub(rf"^[ \t>]{{0,{depth}}}", "", line) for line in lines]
        source = self.head + "\n".join(bare).replace("\0", "\ufffd")
        source = PARAMETER.sub(lambda match: match["name"], source)
        own, github = ({"references": dict(self.references)} for _ in range(2))
        tokens = markdown_parser().parse(masked(source), {SOURCE: source, ENDS: {}, **own})
        found = (match[0] for match in PLACEHOLDERS.finditer(source))
        placeholders = [each for each in found if not each.startswith("__")]  # strong words
        marks: Counter[tuple[str, ...]] = Counter(
            ("mark", mark) for mark in [*masked_marks(source), *placeholders]
        )
        plain = _github_parser().parse(source, github)
        defined: Counter[tuple[str, ...]] = Counter(
            ("definition", name, str(definition["href"]))
            for name, definition in github["references"].items()
            if name not in self.references
        )
        return _outline(tokens, marks), _outline(plain, defined)


@cache
def _github_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.gfm_autolink import gfm_autolink_plugin

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return parser.use(gfm_autolink_plugin)


def _outline(tokens: Sequence[Token], inline: Counter[tuple[str, ...]]) -> Outline:
    blocks = []
    for token in tokens:
        if token.type != "inline":
            blocks.append((token.type, token.tag, *map(str, token.attrs.values())))
        for child in token.children or ():
            if child.type not in ("text", "text_special", "softbreak"):
                content = "" if child.type == "image" else " ".join(child.content.split())
                inline[child.type, content, *map(str, child.attrs.values())] += 1
    return tuple(blocks), inline
