"""Gettext catalogues (PO, POT), in which untranslated messages are translated."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import (
    copied_string,
    string_passages,
    written_mark,
)
from heedful.apps.documents.passage import (
    C_ESCAPES,
    LeftOut,
    Passage,
    PassagePart,
    Surroundings,
    lines_of,
    plain,
    text_parts,
)
from heedful.errors import DataError

_NUMBER_OF_FORMS = re.compile(r"\"Plural-Forms:\s*nplurals=\s*(\d+)")
_KEYWORD = re.compile(r"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*(?=\")")
_STRING = re.compile(r"\s*\"((?:[^\"\\]|\\.)*)\"\s*$")
_FOLD = re.compile(r"(\\.)|\"[ \t]*[\r\n]+[ \t]*\"", re.DOTALL)
"""An escape, or the quotes around a line break in a string."""
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[\da-fA-F]+|.)", re.DOTALL)
_WIDTH = 79
"""Maximum width in columns of the lines that gettext's tools write."""

_WORD = re.compile(
    r"(?:[\u3040-\u30ff\u3400-\u9fff]|\\.|[^\s\\\u3040-\u30ff\u3400-\u9fff]+)+?[^\w\s\\]*\s*|\s+"
)

_PRINTF = (
    # With a flag such as c-format, "100% of" contains the format "% o"; the word "of" is kept
    # whole.
    r"% [a-zA-Z]\w*"
    r"|%(?:\([^()]+\)|\d+\$)?[-+#0'I]*(?:\*(?:\d+\$)?|\d+)?(?:\.(?:\*(?:\d+\$)?|\d+)?)?"
    r"(?:<\w+>|(?:hh|ll|[hlLqjzt]|w\d+|I64)?[a-zA-Z%@])"
)
_BRACES = r"\{\{|\}\}|\{[^{}]*\}"
_FORMATS = {
    **dict.fromkeys(("python-brace", "perl-brace", "csharp", "java", "rust", "c++"), _BRACES),
    **dict.fromkeys(("qt", "qt-plural", "kde", "kde-kuit", "smalltalk"), r"%L?\d{1,2}|%n|%%"),
    **dict.fromkeys(("lisp", "scheme"), r"~[^\s~]*?[a-zA-Z%~]"),
    "boost": r"%\d+%|%\|[^|]*\||" + _PRINTF,
    "gcc-internal": r"%[<>']|%\+?q?[A-Z]|" + _PRINTF,
    "ruby": r"%<\w+>|%\{\w+\}|" + _PRINTF,
}
"""Patterns of placeholders by format (named by flags such as `c-format`), if not those of
printf."""
_POSITIONAL = re.compile(r"%(?!%|\(|\d+\$|L?\d+%?$)|~(?![~%])|\{(?=[}:!])")
"""Start of a placeholder that takes the next argument."""
_NUMBERED = frozenset(("c", "objc", "php", "perl", "java-printf", "tcl", "awk"))
"""Formats in which a placeholder may have the number of its argument: `%2$s`."""


@dataclass
class _String:
    """A string of an entry: its range, and the ranges inside the quotes of its lines."""

    pieces: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    keyword: str = ""


@dataclass
class _Entry:
    """An entry of a catalogue.

    Args:
        start: start of its first string's line.
        flags_at: offset after the marker of flags (`#,`); None for an entry without flags.
    """

    start: int = 0
    flags_at: int | None = None
    flags: list[str] = field(default_factory=list)
    strings: dict[str, _String] = field(default_factory=dict)

    @property
    def format(self) -> str | None:
        """The kind of its placeholders, such as `c`; None if no flag names it."""
        found = [flag.removesuffix("-format") for flag in self.flags if flag.endswith("-format")]
        return next(
            (f for f in found if not f.startswith(("no-", "possible-", "impossible-"))), None
        )


def read_po(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield a passage for each missing translation.

    Translated, fuzzy and obsolete entries stay as they are. See `Reader`; `mark_machine` marks new
    translations as fuzzy.
    """
    line_break = "\r\n" if "\r\n" in text else "\n"
    has_header = re.search(r"^\"(?:Content-Type|MIME-Version):", text, re.MULTILINE) is not None
    found = _NUMBER_OF_FORMS.search(text)
    number = found[1] if found is not None else "none" if has_header else ""
    for entry in _entries(text, name):
        if "msgid" not in entry.strings or "fuzzy" in entry.flags:
            continue
        passages = list(_passages(text, entry, line_break, number))
        is_whole = passages and not any(passage.left_out for passage in passages)
        if not settings.mark_machine or not is_whole:
            yield from passages
            continue
        place = entry.start if entry.flags_at is None else entry.flags_at
        mark = f"#, fuzzy{line_break}" if entry.flags_at is None else " fuzzy,"
        end = max(passage.end for passage in passages)
        yield _together(place, end, [written_mark((place, place), mark), *passages])


def _together(start: int, end: int, passages: Sequence[Passage]) -> Passage:
    """Return a passage that is written as a whole, or not at all."""
    whole = PassagePart(start, end, "single")
    return Passage(start, end, (whole,), plain, inner=tuple(passages))


def _entries(text: str, name: str) -> Iterator[_Entry]:
    """Yield the entries, except obsolete ones."""
    entry = _Entry()
    current: _String | None = None
    for number, (start, end) in enumerate(lines_of(text), start=1):
        line = text[start:end]
        keyword = _KEYWORD.match(line)
        is_new = not line.strip() or line.lstrip().startswith("#")
        if is_new or (keyword is not None and keyword[1] in ("msgctxt", "msgid")):
            if any(key.startswith("msgstr") for key in entry.strings):
                yield entry
                entry = _Entry()
            current = None
        if is_new:
            flags = re.match(r"\s*#,", line)
            if flags is not None:
                entry.flags_at = start + flags.end()
                entry.flags += re.split(r"[\s,]+", line[flags.end() :].strip())
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
            if not entry.strings:
                entry.start = start
            current = _String(start=start + content.start(1) - 1, keyword=keyword[1])
            entry.strings[keyword[1]] = current
        assert current is not None
        current.pieces.append((start + content.start(1), start + content.end(1)))
        current.end = start + content.end(1) + 1
    if any(key.startswith("msgstr") for key in entry.strings):
        yield entry


def _passages(text: str, entry: _Entry, line_break: str, number: str) -> Iterator[Passage]:
    """Yield the passages that fill the empty strings of an entry, if its messages have words.

    Args:
        text: text of the catalogue.
        entry: the entry.
        line_break: line break of the catalogue.
        number: number of plural forms that its header declares; empty without a header.
    """
    forms = [string for key, string in entry.strings.items() if key.startswith("msgstr")]
    plural = entry.strings.get("msgid_plural")
    filled: list[Passage] = []
    for place in forms:
        if any(start < end for start, end in place.pieces):
            continue
        source = entry.strings["msgid"] if plural is None else plural
        parts = _parts(text, source)
        formats = _Formats(entry.format, "".join(part.text for part in parts))
        # The first form is the singular if the language has two forms. Otherwise it may also be
        # used for other numbers, such as 21, for which "one file" would be wrong.
        if plural is not None and place.keyword == "msgstr[0]" and len(forms) > 1:
            singular = _parts(text, entry.strings["msgid"])
            of_one = _Formats(entry.format, "".join(part.text for part in singular))
            if len(forms) == 2 or of_one.arguments == formats.arguments:
                source, parts, formats = entry.strings["msgid"], singular, of_one
        inner = list(string_passages(parts, _encode, kept=formats.pattern))
        if inner and plural is not None and number not in ("", str(len(forms))):
            # The tools of gettext would refuse the whole catalogue.
            reason = f"it has {len(forms)} plural forms, and the header declares {number}"
            inner = [replace(inner[0], left_out=reason)]
        if any(passage.left_out for passage in inner):
            yield from inner
            return
        if inner:
            pieces = source.pieces
            filled.append(
                copied_string(
                    (place.start, place.end),
                    (pieces[0][0], pieces[-1][1]),
                    inner,
                    wrap=partial(_quoted, place.keyword, line_break, formats),
                )
            )
    if plural is None or len(filled) != len(forms):
        yield from filled
    elif filled:  # all or none: gettext's tools refuse a mix of filled and empty forms
        yield _together(forms[0].start, forms[-1].end, filled)


def _parts(text: str, string: _String) -> list[PassagePart]:
    return [
        part
        for start, end in string.pieces
        for part in text_parts(text, start, end, _ESCAPE, _unescape)
    ]


def _unescape(escape: str) -> str:
    code = escape[1:]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16) & 0x10FFFF)
    return C_ESCAPES.get(code, code)


def _encode(text: str, place: Surroundings) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    for code, character in C_ESCAPES.items():
        text = text.replace(character, f"\\{code}")
    return text


@dataclass(frozen=True)
class _Formats:
    """The placeholders of a message whose flag names a format.

    Args:
        kind: kind of its placeholders, such as `c`; None without a flag.
        source: text of the message.
    """

    kind: str | None
    source: str

    @property
    def pattern(self) -> str:
        return "" if self.kind is None else _FORMATS.get(self.kind, _PRINTF)

    @property
    def arguments(self) -> Counter[str]:
        """The placeholders of the message, each with its count."""
        return Counter(re.findall(self.pattern, self.source) if self.pattern else ())

    def settled(self, content: str) -> str:
        """Return the translation with placeholders that take the same arguments as in the message.

        Args:
            content: translation, with its escapes.

        Raises:
            LeftOut: when it has other placeholders, or has them in an order that the format cannot
                express.
        """
        if not self.pattern:
            return content
        # The tools of gettext refuse an incomplete placeholder.
        checked = re.compile(f"{self.pattern}|[{'{}' if self.pattern == _BRACES else '%'}]")
        before = checked.findall(self.source)
        after = checked.findall(_ESCAPE.sub(lambda m: _unescape(m[0]), content))
        if Counter(before) != Counter(after):
            raise LeftOut("the translation has other placeholders")
        ordered = [each for each in before if _POSITIONAL.match(each)]
        if ordered == [each for each in after if _POSITIONAL.match(each)]:
            return content
        if self.kind not in _NUMBERED or any(re.search(r"\*|^%\d+\$", each) for each in before):
            raise LeftOut("the translation has its placeholders in another order")

        def number(match: re.Match[str]) -> str:
            if not _POSITIONAL.match(match[0]):
                return match[0]
            argument = ordered.index(match[0])
            ordered[argument] = ""
            return f"%{argument + 1}${match[0][1:]}"

        return re.sub(self.pattern, number, content)


def _quoted(keyword: str, line_break: str, formats: _Formats, content: str) -> str:
    """Return a string in quotes, folded as gettext's tools fold it."""
    # Parts copied from a folded source contain the quotes at its line breaks.
    content = formats.settled(_FOLD.sub(lambda match: match[1] or "", content))
    lines = re.findall(r"(?:[^\\]|\\[^n])*?\\n|(?:[^\\]|\\[^n])+$", content)
    folded = [piece for line in lines for piece in _folded(line)]
    fits = len(folded) < 2 and len(keyword) + len(' ""') + _columns(content) <= _WIDTH
    # A single word that is too long for a line is not moved to a new line.
    if len(lines) < 2 and (fits or " " not in content.rstrip()):
        return f'"{content}"'
    return line_break.join(['""', *(f'"{line}"' for line in folded)])


def _folded(line: str) -> Iterator[str]:
    """Yield pieces of a line, wrapped after spaces and between ideographs."""
    piece, width = "", 0
    for word in _WORD.findall(line):
        columns = _columns(word)
        if piece and width + columns > _WIDTH - len('""'):
            yield piece
            piece, width = "", 0
        piece += word
        width += columns
    yield piece


def _columns(text: str) -> int:
    """Return the width of a text on a terminal, in columns."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)
