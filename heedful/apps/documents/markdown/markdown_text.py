"""Reader of Markdown, whose prose is translated, but not its code, marks and formulas.

markdown-it-py finds the blocks and their lines; each inline construct is then located in these
lines, character by character. A block with a construct that cannot be located stays unchanged, and
so does a passage whose translation would change the outline of its block.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from heedful.apps.documents.chosen_keys import FRONT_MATTER_KEYS, ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.html_text import html_passages
from heedful.apps.documents.json_strings import value_passages
from heedful.apps.documents.markdown.markdown_inline import (
    BlockKind,
    InlineContent,
    in_quotes,
    parameter_passages,
)
from heedful.apps.documents.markdown.markdown_outline import BlockReading
from heedful.apps.documents.markdown.markdown_syntax import (
    ENDS,
    SHOWN,
    SOURCE,
    UNSEEN,
    markdown_parser,
    masked,
)
from heedful.apps.documents.message_strings import string_passages
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Passage,
    PassagePart,
    cut,
    lines_of,
    make_passage,
    protected,
    text_parts,
)
from heedful.apps.documents.yaml_strings import yaml_passages
from heedful.errors import ConfigError, DataError
from heedful.pipelines.aligned_text import Kind

if TYPE_CHECKING:
    from markdown_it.token import Token

# YAML, TOML or JSON.
_FRONT_MATTER = re.compile(
    r"(?:(---|\+\+\+)[ \t]*\r?\n(?:.*\r?\n)*?\1|\{\r?\n(?:.*\r?\n)*?\})[ \t]*(?:\r?\n|\Z)"
)
_TOML_STRING = re.compile(
    rf"^[ \t]*(?:{'|'.join(FRONT_MATTER_KEYS)})[ \t]*=[ \t]*"
    r"(?:\"((?:[^\"\\\r\n]|\\.)*)\"|'([^'\r\n]*)')[ \t]*(?:#.*)?\r?$",
    re.MULTILINE | re.IGNORECASE,
)
_AFTER_CONTENT = re.compile(r"\s*(?:#+\s*)?")
_QUOTE = re.compile(r"\s*>|\s*(?:[-+*]|\d+[.)])\s+>")
# Links and code inside HTML, which some parsers recognise there too.
_IN_HTML = re.compile(
    r"(?P<open>\[)[^\[\]\n]*(?P<close>\]\([^()\n]*\))"
    r"|(?P<strong>\*\*)(?=\S)[^*\n]*(?P<strong_end>\*\*)"
    rf"|(?P<single>`[^`\n]+`|{UNSEEN}+|{SHOWN}+)"
)
_KINDS: dict[str, Kind] = {
    "open": "open",
    "close": "close",
    "strong": "open",
    "strong_end": "close",
    "single": "single",
}
_DIRECTIVE = re.compile(r"\s*(?::{3,}|/{3,}|\{\{[<%]|\{%)")
_RAW_HTML = re.compile(r"<(?:pre|script|style|!--)", re.IGNORECASE)
_NOT_LOCATED = "its marks were not found in its lines"
_QUOTED_HTML = "HTML in a quotation"


def read_markdown(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of a Markdown document; see `Reader`.

    Raises:
        ConfigError: when a library is not installed.
    """
    for module, package in (
        ("markdown_it", "markdown-it-py"),
        ("mdit_py_plugins", "mdit-py-plugins"),
    ):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"Markdown needs the package {package}",
                where=name,
                remedy="Install it with: pip install 'heedful[documents]'",
            )
    front = _FRONT_MATTER.match(text)
    start = 0 if front is None else front.end()
    if front is not None:
        yield from _front_matter(front[0], name, is_toml=front[1] == "+++")
    yield from _Page(text, start).passages()


def _front_matter(text: str, name: str, *, is_toml: bool) -> Iterator[Passage]:
    """Yield the passages of the data before a document that are text for people."""
    if is_toml:
        for match in _TOML_STRING.finditer(text):
            if match[1] is not None:  # escapes are those of JSON
                yield from value_passages(text, *match.span(1))
            else:
                parts = text_parts(text, *match.span(2))
                yield from string_passages(parts, partial(in_quotes, "'"))
        return
    try:
        yield from list(yaml_passages(text, ChosenKeys(FRONT_MATTER_KEYS), name))
    except DataError:  # a template that makes the data
        for passage in make_passage(text_parts(text, 0, len(text))):
            yield replace(passage, left_out="front matter that is no YAML")


class _Page:
    """A document and its blocks.

    Args:
        text: the document.
        start: start of its text, after the front matter.
    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.lines = [(start + a, start + b) for a, b in lines_of(text[start:])]
        # The same lines, with the only line break that the parser knows.
        source = "\n".join(text[a:b].replace("\0", "\ufffd") for a, b in self.lines)
        masks = masked(source)
        self.masks = masks.split("\n")
        # The masks, inserted into the document, whose line breaks may be longer.
        breaks = [b for _, b in self.lines]
        self.masked = text[:start] + "".join(
            line + text[end:follows]
            for line, end, (follows, _) in zip(
                self.masks, breaks, [*self.lines[1:], (len(text), 0)], strict=True
            )
        )
        self.env: dict[str, Any] = {SOURCE: source, ENDS: {}}
        self.tokens = markdown_parser().parse(masks, self.env)
        self.columns: dict[int, int] = {}

    def passages(self) -> Iterator[Passage]:
        """Yield the passages of all blocks."""
        table = 0
        around: Token | None = None
        for token in self.tokens:
            if token.type == "table_open" and token.map is not None:
                table = token.map[0]
            if token.type == "inline" and token.map is not None:
                yield from self._inline(token, around, table)
            elif token.type == "html_block" and token.map is not None:
                yield from self._html(token)
            elif token.type == "kept_lines" and token.map is not None:
                if token.info:
                    yield from self._left_out(token.map, token.info)
                else:
                    yield from parameter_passages(self.text, *self.lines[token.map[0]])
            around = token

    def _inline(self, token: Token, around: Token | None, table: int) -> Iterator[Passage]:
        assert token.map is not None
        first, last = token.map[0], max(token.map[0] + 1, token.map[1])
        is_cell = around is not None and around.type in ("th_open", "td_open")
        head = ""
        if is_cell:
            offsets = self._cell(token)
            # A row is parsed with the head of its table, and the head with the line of dashes below
            # it.
            rows = self.env[SOURCE].split("\n")[table : table + 2]
            head, last = ("\n".join(rows) + "\n", last) if first > table else ("", table + 2)
        else:
            offsets = self._offsets(token)
            if around is not None and around.type == "heading_open" and around.map is not None:
                last = around.map[1]  # includes an underline
        if offsets is None:
            yield from self._left_out([first, last], _NOT_LOCATED)
            return
        reading = self._reading(first, last, head)
        kind: BlockKind = "cell" if is_cell else "title" if token.meta else "lines"
        if around is not None and around.markup.startswith("#"):
            kind = "line"
        inline = InlineContent(self.text, token.content, offsets, self.env[ENDS], kind)
        found = inline.passages(token)
        if found is None:
            yield from self._left_out([first, last], _NOT_LOCATED)
            return
        for passage in found:
            wrap = partial(reading.checked, passage.start, passage.end)
            yield replace(passage, wrap=wrap)

    def _html(self, token: Token) -> Iterator[Passage]:
        assert token.map is not None
        rows, block = token.map, self.lines[slice(*token.map)]
        if block:  # a list mark before the HTML is not part of it
            bare = token.content.split("\n")[0].strip()
            found = self.masked.find(bare, *block[0])
            block[0] = (max(block[0][0], found), block[0][1])
        # Quotation marks (>) before the lines are not part of the HTML.
        if any(_QUOTE.match(self.text, *line) for line in block):
            if any(True for _ in html_passages(self.text, block[0][0], block[-1][1])):
                yield from self._left_out(rows, _QUOTED_HTML)
            return
        is_raw = any(_RAW_HTML.search(self.text, *line) for line in block)
        stretch: list[tuple[int, int]] = []
        for line in [*block, None]:  # lines of directives divide the HTML into stretches
            if line is not None and (is_raw or not _DIRECTIVE.match(self.text, *line)):
                stretch.append(line)
                continue
            if stretch:
                yield from self._stretch(stretch[0][0], stretch[-1][1], rows)
            stretch = []

    def _stretch(self, start: int, end: int, rows: Sequence[int]) -> Iterator[Passage]:
        """Yield the passages of lines of HTML."""
        first = rows[0]
        while first > 0 and self.masks[first - 1].strip():
            first -= 1
        reading = self._reading(first, rows[1])
        for passage in html_passages(self.text, start, end):
            marked = _with_markdown(passage, self.masked)
            if first < rows[0] and marked.wrap is None:
                # Below a line of text, such as a directive that a reader does not know, HTML is
                # read as part of a paragraph.
                wrap = partial(reading.checked, passage.start, passage.end)
                marked = replace(marked, wrap=wrap)
            yield marked

    def _reading(self, first: int, end: int, head: str = "") -> BlockReading:
        """Return the block reading of a range of lines."""
        references = self.env.get("references", {})
        begin, last = self.lines[first][0], self.lines[end - 1][1]
        return BlockReading(self.text, begin, last, head, references)

    def _left_out(self, rows: Sequence[int], reason: str) -> Iterator[Passage]:
        """Yield a passage, left out for a reason, for lines with words."""
        start, end = self.lines[rows[0]][0], self.lines[rows[1] - 1][1]
        for passage in make_passage(text_parts(self.text, start, end)):
            yield replace(passage, left_out=reason)

    def _offsets(self, token: Token) -> list[int] | None:
        """Return the offset in the document of each character of a block's content.

        Returns:
            The offsets, with that of the end as the last one; None if the lines differ from the
            content.
        """
        assert token.map is not None
        offsets: list[int] = []
        for number, piece in enumerate(token.content.split("\n"), start=token.map[0]):
            bare, line = piece.lstrip(), self.masks[number]
            place = token.meta.get("column", line.rfind(bare))
            rest = line[place + len(bare) :]
            if place < 0 or not (token.meta or _AFTER_CONTENT.fullmatch(rest)):
                return None
            place += self.lines[number][0]
            offsets += [place] * (len(piece) - len(bare))
            offsets += range(place, place + len(bare) + 1)  # includes the line break or the end
        return offsets

    def _cell(self, token: Token) -> list[int] | None:
        """Return the offsets of a table cell, in which vertical bars are escaped."""
        assert token.map is not None
        row = token.map[0]
        written = token.content.replace("|", "\\|")
        place = self.masks[row].find(written, self.columns.get(row, 0))
        if place < 0:
            return None
        self.columns[row] = place + len(written)  # start of the search for the next cell
        place += self.lines[row][0]
        offsets: list[int] = []
        for character in token.content:
            offsets.append(place)
            place += 1 + (character == "|")
        return [*offsets, place]


def _with_markdown(passage: Passage, masked: str) -> Passage:
    """Return a passage of HTML with marks of Markdown, code and ends of links as kept parts.

    Args:
        passage: passage of HTML.
        masked: document in which marks are masked.
    """
    parts: list[PassagePart] = []
    for part in passage.parts:
        before = parts[-1] if parts else None
        if not _is_written_plainly(part):
            parts.append(part)
        elif before is not None and before.end == part.start and _is_written_plainly(before):
            parts[-1] = replace(before, end=part.end, text=before.text + part.text)
        else:  # including addresses and placeholders, which may be part of a link
            parts.append(replace(part, kind="text"))
    marked = [piece for part in parts for piece in _marked(part, masked)]
    return replace(passage, parts=protected(marked, PLACEHOLDERS))


def _is_written_plainly(part: PassagePart) -> bool:
    """Return True for text, an address or a placeholder whose characters need no escapes."""
    return part.kind in ("text", "single") and 0 < len(part.text) == part.end - part.start


def _marked(part: PassagePart, masked: str) -> Iterator[PassagePart]:
    """Yield the parts of text in HTML: words, and the marks of Markdown around them."""
    done = part.start
    text = masked[part.start : part.end] if _is_written_plainly(part) else ""
    for match in _IN_HTML.finditer(text):
        for name, kind in _KINDS.items():
            if match[name]:
                start, end = (part.start + offset for offset in match.span(name))
                if start > done:
                    yield from cut([part], done - part.start, start - part.start)
                is_shown = kind == "single" and UNSEEN not in match[name]
                shown = part.text[match.start() : match.end()].strip("`") if is_shown else ""
                yield PassagePart(start, end, kind, shown)
                done = end
    if done < part.end:
        yield from cut([part], done - part.start, len(part.text)) if done > part.start else [part]
