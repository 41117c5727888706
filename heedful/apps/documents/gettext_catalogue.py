"""Gettext catalogues (PO, POT): untranslated messages get a translation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Passage,
    PassagePart,
    Surroundings,
    lines_of,
    protected,
    text_parts,
)
from heedful.errors import DataError

_KEYWORD = re.compile(r"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*(?=\")")
_STRING = re.compile(r"\s*\"((?:[^\"\\]|\\.)*)\"\s*$")
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[\da-fA-F]+|.)", re.DOTALL)
_CODES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_TAG = re.compile(
    r"</?(?:a|abbr|b|big|br|code|div|em|font|h[1-6]|hr|i|img|kbd|li|ol|p|pre|s|small|span|strong"
    r"|sub|sup|tt|u|ul)(?:\s[^<>\n]*|/)?>|&[a-zA-Z]+;"
)
"""Tags of HTML and Pango; other words in angle brackets, such as <none>, are text."""
_WIDTH = 80


@dataclass
class _String:
    """A string of an entry: its range, and the ranges inside the quotes of its lines."""

    pieces: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0


@dataclass
class _Entry:
    """An entry of a catalogue."""

    line: int
    strings: dict[str, _String] = field(default_factory=dict)
    is_fuzzy: bool = False


def read_po(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield a passage for each missing translation.

    Translated, fuzzy and obsolete entries stay as they are.

    Args:
        text: text of the document.
        settings: settings of the document.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not valid in a catalogue.
    """
    for entry in _entries(text, name):
        message = entry.strings.get("msgid")
        if message is None or entry.is_fuzzy:
            continue
        plural = entry.strings.get("msgid_plural")
        forms = [key for key in entry.strings if key.startswith("msgstr")]
        for form in forms:
            written = entry.strings[form]
            if any(start < end for start, end in written.pieces):
                continue
            # The first form is the singular, unless the language has only one form.
            source = (
                message if plural is None or (form == "msgstr[0]" and len(forms) > 1) else plural
            )
            yield from _passage(text, source, written)


def _entries(text: str, name: str) -> Iterator[_Entry]:
    """Yield the entries, except obsolete ones."""
    entry = _Entry(1)
    current: _String | None = None
    for number, (start, end) in enumerate(lines_of(text), start=1):
        line = text[start:end]
        keyword = _KEYWORD.match(line)
        is_new = not line.strip() or line.lstrip().startswith("#")
        if is_new or (keyword is not None and keyword[1] in ("msgctxt", "msgid")):
            if any(key.startswith("msgstr") for key in entry.strings):
                yield entry
                entry = _Entry(number)
            current = None
        if is_new:
            entry.is_fuzzy |= bool(re.match(r"#,.*\bfuzzy\b", line.lstrip()))
            continue
        content = _STRING.match(line, keyword.end() if keyword is not None else 0)
        if content is None or (keyword is None and current is None):
            raise DataError(
                f"Line {number} is no line of a catalogue: {line.strip()[:40]}",
                where=name,
                remedy='A string stands in quotes after msgid or msgstr, and \\" inside it',
            )
        if keyword is not None:
            if keyword[1] in entry.strings:
                raise DataError(f"Line {number} has a second {keyword[1]}", where=name)
            current = entry.strings[keyword[1]] = _String(start=start + content.start(1) - 1)
        assert current is not None
        current.pieces.append((start + content.start(1), start + content.end(1)))
        current.end = start + content.end(1) + 1
    if any(key.startswith("msgstr") for key in entry.strings):
        yield entry


def _passage(text: str, source: _String, written: _String) -> Iterator[Passage]:
    """Yield the passage that fills a string, if its message contains words."""
    parts: list[PassagePart] = []
    for start, end in source.pieces:
        parts += text_parts(text, start, end, _ESCAPE, _unescape)
    parts = list(_tagged(text, parts))
    passage = Passage(
        written.start,
        written.end,
        protected(parts, PLACEHOLDERS),
        _encode,
        partial(_quoted, "\r\n" if "\r\n" in text else "\n"),
    )
    if any(part.kind == "text" and any(map(str.isalpha, part.text)) for part in passage.parts):
        yield passage


def _tagged(text: str, parts: list[PassagePart]) -> Iterator[PassagePart]:
    """Yield parts in which tags are markup; tags interrupted by escapes or line ends stay text."""
    for part in parts:
        if part.end - part.start != len(part.text):
            yield part
            continue
        start = part.start
        for match in _TAG.finditer(text, part.start, part.end):
            yield from text_parts(text, start, match.start())
            raw = match[0]
            kind = (
                "close"
                if raw[1] == "/"
                else "single"
                if raw[0] == "&" or raw[-2] == "/"
                else "open"
            )
            yield PassagePart(match.start(), match.end(), kind)  # type: ignore[arg-type]
            start = match.end()
        yield from text_parts(text, start, part.end)


def _unescape(escape: str) -> str:
    code = escape[1:]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16) & 0x10FFFF)
    return _CODES.get(code, code)


def _encode(text: str, place: Surroundings) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    for code, character in _CODES.items():
        text = text.replace(character, f"\\{code}")
    return text


def _quoted(line_break: str, content: str) -> str:
    """Return a string in quotes, on lines of its own if it has several lines or is long."""
    lines = re.findall(r"(?:[^\\]|\\[^n])*?\\n|(?:[^\\]|\\[^n])+$", content)
    if len(lines) < 2 and len(content) < _WIDTH:
        return f'"{content}"'
    folded = [piece for line in lines for piece in _folded(line)]
    return line_break.join(['""', *(f'"{line}"' for line in folded)])


def _folded(line: str) -> Iterator[str]:
    """Yield pieces of a line, wrapped between words at the width of gettext's tools."""
    piece = ""
    for word in re.findall(r"\S*\s*", line):
        if piece and len(piece) + len(word.rstrip()) > _WIDTH - 2:
            yield piece
            piece = ""
        piece += word
    yield piece
