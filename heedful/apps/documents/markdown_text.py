"""Markdown (CommonMark, with tables and strikethrough): its prose, but not its code.

markdown-it-py finds the blocks and their lines; each inline construct is then located in these
lines, character by character. A block with a construct that cannot be located stays as it is.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.html_text import html_passages, inline_kind
from heedful.apps.documents.passage import (
    Encode,
    Passage,
    PassagePart,
    Surroundings,
    cut,
    lines_of,
    make_passage,
    text_parts,
)
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?:.*\r?\n)*?\1[ \t]*(?:\r?\n|\Z)")
_CLOSING_MARKS = re.compile(r"[ \t]+#+$")
_SOFT_BREAK = re.compile(r" *\n *")
_HARD_BREAK = re.compile(r"(?: {2,}|\\)\n *")
_SPECIAL = re.compile(r"[\\`*_~\[\]<]|&(?=#?\w+;)|!(?=\[)")
_BAR = re.compile(r"\\\|")
_QUOTE = re.compile(r"\s*>|\s*(?:[-+*]|\d+[.)])\s+>")
_TASK = re.compile(r"\[[ xX]\]\s")
_NUMBERED = re.compile(r"\d{1,9}(?=[.)](?:\s|$))")


def read_markdown(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of a Markdown document.

    Args:
        text: text of the document.
        settings: settings of the document.
        name: name of the document, for messages.

    Raises:
        ConfigError: when markdown-it-py is not installed.
    """
    if importlib.util.find_spec("markdown_it") is None:
        raise ConfigError(
            "Markdown needs the package markdown-it-py",
            where=name,
            remedy="Install it with: pip install 'heedful[documents]'",
        )
    front = _FRONT_MATTER.match(text)
    start = 0 if front is None else front.end()
    lines = [(start + a, start + b) for a, b in lines_of(text[start:])]
    # The same lines, ended by the only line break that the parser knows.
    source = "\n".join(text[a:b].replace("\0", "\ufffd") for a, b in lines)
    ends: Ends = {}
    columns: dict[int, int] = {}
    is_cell = False
    for token in _parser().parse(source, {_ENDS: ends}):
        if token.type == "inline" and token.map is not None:
            offsets = (
                _locate_cell(text, lines[token.map[0]], token, columns)
                if is_cell
                else _locate(text, lines, token)
            )
            if offsets is not None:
                encode = partial(_encode, is_cell=is_cell)
                yield from _Inline(text, token.content, offsets, ends, encode).passages(token)
        elif token.type == "html_block" and token.map is not None:
            block = lines[slice(*token.map)]
            # The marks of a quotation in front of its lines are not part of the HTML.
            if block and not any(_QUOTE.match(text, *line) for line in block):
                yield from html_passages(text, block[0][0], block[-1][1])
        is_cell = token.type in ("th_open", "td_open")


Ends = dict[tuple[str, str, int], int]
"""Ends of links and pictures, by the text that contains them, their kind and their start."""

_ENDS = "ends of links"


def _parser() -> MarkdownIt:
    """Return a parser that keeps escapes apart from text, and records the ends of links."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import image, link

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")
    parser.inline.ruler.at("link", partial(_noting, "link", link))
    parser.inline.ruler.at("image", partial(_noting, "image", image))
    return parser


def _noting(kind: str, rule: Any, state: StateInline, silent: bool) -> bool:
    start = state.pos
    matched: bool = rule(state, silent)
    if matched and not silent:
        state.env[_ENDS][state.src, kind, start] = state.pos
    return matched


def _locate(text: str, lines: Sequence[tuple[int, int]], token: Token) -> list[int] | None:
    """Return the offset in the document of each character of a block's content.

    Args:
        text: the document.
        lines: ranges of its lines.
        token: token with the content and its lines.

    Returns:
        The offsets, with the one of the end; None if the lines differ from the content.
    """
    assert token.map is not None
    offsets: list[int] = []
    for number, piece in enumerate(token.content.split("\n"), start=token.map[0]):
        start, end = lines[number]
        bare = piece.lstrip()
        line = text[start:end].rstrip()
        if not line.endswith(bare):
            line = _CLOSING_MARKS.sub("", line).rstrip()
        if not line.endswith(bare):
            return None
        place = start + len(line) - len(bare)
        offsets += [place] * (len(piece) - len(bare))
        offsets += range(place, place + len(bare) + 1)  # one more for the line break, or the end
    return offsets


def _locate_cell(
    text: str, line: tuple[int, int], token: Token, columns: dict[int, int]
) -> list[int] | None:
    """Return the same as `_locate` for a cell of a table, in which vertical bars are escaped.

    Args:
        text: the document.
        line: range of the row.
        token: token with the content.
        columns: earliest start of the next cell, by row.
    """
    written = token.content.replace("|", "\\|")
    place = text.find(written, columns.get(line[0], line[0]), line[1])
    if place < 0:
        return None
    columns[line[0]] = place + len(written)
    offsets: list[int] = []
    for character in token.content:
        offsets.append(place)
        place += 1 + (character == "|")
    return [*offsets, place]


@dataclass
class _Inline:
    """The inline content of a block, located in the document.

    Args:
        text: the document.
        content: content of the block.
        offsets: offset in the document of each of its characters, and of its end.
        ends: ends of links and pictures.
        encode: function that writes text for the block.
    """

    text: str
    content: str
    offsets: Sequence[int]
    ends: Ends
    encode: Encode
    place: int = 0
    alternatives: list[Passage] = field(default_factory=list)
    link_ends: list[int | None] = field(default_factory=list)

    def passages(self, token: Token) -> Iterator[Passage]:
        """Yield the passages of the block; none if a construct cannot be located."""
        parts: list[PassagePart] = []
        found: list[Passage] = []
        for child in token.children or ():
            if child.type == "hardbreak":
                found += make_passage(_without_box(parts), self.encode)
                parts = []
            part = self._part(child)
            if part is None:
                return
            parts += part
        found += make_passage(_without_box(parts), self.encode)
        yield from found
        yield from self.alternatives

    def _part(self, token: Token) -> list[PassagePart] | None:
        """Return the parts of a construct and move behind it; None if it does not begin here."""
        handler = getattr(self, f"_{token.type}", None)
        if handler is not None:
            parts: list[PassagePart] | None = handler(token)
            return parts
        if token.type.endswith(("_open", "_close")):  # emphasis
            kind = token.type.rpartition("_")[2]
            return self._raw(token.markup, "open" if kind == "open" else "close")
        return None

    def _raw(self, raw: str, kind: Any, text: str = "") -> list[PassagePart] | None:
        if not self.content.startswith(raw, self.place):
            return None
        return self._until(self.place + len(raw), kind, text)

    def _until(self, end: int, kind: Any, text: str = "") -> list[PassagePart]:
        start, self.place = self.place, end
        first, last = self.offsets[start], self.offsets[end]
        return [PassagePart(first, last, kind, text)] if last > first else []

    def _text(self, token: Token) -> list[PassagePart] | None:
        if not token.content:
            return []
        start = self.place
        while self.content.startswith(" ", self.place) and not token.content.startswith(" "):
            self.place += 1
        if not self.content.startswith(token.content, self.place):
            return None
        self.place += len(token.content)
        return [*text_parts(self.text, self.offsets[start], self.offsets[self.place], _BAR, _last)]

    def _text_special(self, token: Token) -> list[PassagePart] | None:
        return self._raw(token.markup, "text", token.content)

    def _softbreak(self, token: Token) -> list[PassagePart] | None:
        match = _SOFT_BREAK.match(self.content, self.place)
        return None if match is None else self._until(match.end(), "soft", " ")

    def _hardbreak(self, token: Token) -> list[PassagePart] | None:
        match = _HARD_BREAK.match(self.content, self.place)
        if match is not None:
            self._until(match.end(), "single")
        return None if match is None else []

    def _code_inline(self, token: Token) -> list[PassagePart] | None:
        fence = re.escape(token.markup)
        pattern = re.compile(rf"{fence}.*?(?<!`){fence}(?!`)", re.DOTALL)
        match = pattern.match(self.content, self.place)
        if match is None:
            return None
        return self._until(match.end(), "single", " ".join(token.content.split()))

    def _html_inline(self, token: Token) -> list[PassagePart] | None:
        return self._raw(token.content, inline_kind(token.content))

    def _link_open(self, token: Token) -> list[PassagePart] | None:
        if token.markup == "autolink":
            return self._raw("<", "open")
        self.link_ends.append(self.ends.get((self.content, "link", self.place)))
        return self._raw("[", "open")

    def _link_close(self, token: Token) -> list[PassagePart] | None:
        if token.markup == "autolink":
            return self._raw(">", "close")
        end = self.link_ends.pop() if self.link_ends else None
        return None if end is None or end <= self.place else self._until(end, "close")

    def _image(self, token: Token) -> list[PassagePart] | None:
        end = self.ends.get((self.content, "image", self.place))
        if end is None:
            return None
        offsets = self.offsets[self.place + 2 :]
        inner = _Inline(self.text, token.content, offsets, self.ends, self.encode)
        if self.content.startswith(f"![{token.content}](", self.place):
            self.alternatives += inner.passages(token)
        return self._until(end, "single")


def _without_box(parts: Sequence[PassagePart]) -> Sequence[PassagePart]:
    """Return parts without the box of a task, [ ] or [x], at their beginning."""
    box = _TASK.match("".join(part.text for part in parts))
    return parts if box is None else cut(parts, box.end(), sum(len(part.text) for part in parts))


def _last(text: str) -> str:
    return text[-1]


def _encode(text: str, place: Surroundings, *, is_cell: bool) -> str:
    """Escape text so that no character of it is read as markup."""
    written = _SPECIAL.sub(partial(_escaped, text), text)
    if is_cell:
        written = written.replace("|", "\\|")
    if place.at_line_start:
        number = _NUMBERED.match(written)
        written = (
            written[: number.end()] + "\\" + written[number.end() :]
            if number is not None
            else re.sub(r"^(?=[-+>=#|])", r"\\", written)
        )
    return written


def _escaped(text: str, match: re.Match[str]) -> str:
    """Return a character, escaped where it could begin markup."""
    character, start, end = match[0], match.start(), match.end()
    before, after = text[start - 1 : start], text[end : end + 1]
    between_spaces = before.isspace() and after.isspace()
    inside_word = before.isalnum() and after.isalnum()
    if (character in "*_~" and between_spaces) or (character == "_" and inside_word):
        return character
    return "\\" + character
