"""Inline constructs of Markdown, located in the document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from heedful.apps.documents.html_text import inline_kind
from heedful.apps.documents.markdown.markdown_syntax import PARAMETER, SHOWN, UNSEEN
from heedful.apps.documents.message_strings import string_passages
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Passage,
    PassagePart,
    Surroundings,
    cut,
    make_passage,
    text_parts,
)

if TYPE_CHECKING:
    from markdown_it.token import Token

Ends = Mapping[tuple[str, str, int], int]
"""Ends of inline constructs, by the text that contains them, their kind and their start."""

BlockKind = Literal["lines", "line", "cell", "title"]
"""Kind of a block: ordinary lines, a line that begins with a mark (a heading), a table cell, which
ends at a vertical bar, or the title of a directive, which ends at a quotation mark."""

_SOFT_BREAK = re.compile(r"[^\S\n]*\n[^\S\n]*")
_HARD_BREAK = re.compile(r"[^\S\n]*(?: {2,}|\\)\n[^\S\n]*")
# A parser that does not know the mark on the next line reads a line break here.
_BEFORE_MARK = re.compile(r"\\\r?\n[ \t>]*(?::{3}|/{3}|\{[{%])")
_SPECIAL = re.compile(r"\\(?![^\W_])|[`*_~\[\]]|<(?=[A-Za-z/!?]|\Z)|&(?=#?\w+;)|!(?=\[|\Z)")
_BAR = re.compile(r"\\\|")
_LEADING = re.compile(r"\[[ xX]\]\s|(?:[Tt]able)?:\s+")
_NUMBERED = re.compile(r"\d{1,9}(?=[.)](?:\s|$))")
_LINE_BREAK_TAG = re.compile(r"</?br\b", re.IGNORECASE)
_KEPT_ELEMENT = re.compile(
    r"<(?:code|kbd|samp|var|tt|pre|script|style|svg|math|textarea)\b"
    r"|<[^>]*\b(?:translate=[\"']?no\b|class=[\"'][^\"']*\bnotranslate\b)",
    re.IGNORECASE,
)


@dataclass
class InlineContent:
    """The inline content of a block, located in the document.

    Args:
        text: the document.
        content: content of the block.
        offsets: offset in the document of each character of the content, and of its end.
        ends: ends of inline constructs.
        kind: kind of the block.
    """

    text: str
    content: str
    offsets: Sequence[int]
    ends: Ends
    kind: BlockKind
    place: int = 0
    alternatives: list[Passage] = field(default_factory=list)
    openings: list[int] = field(default_factory=list)

    def passages(self, token: Token) -> list[Passage] | None:
        """Return the passages of the block; None if a construct cannot be located."""
        pieces: list[list[PassagePart]] = [[]]
        for child in token.children or ():
            part = self._part(child)
            if part is None:
                return None
            if child.type == "hardbreak" or (
                child.type == "html_inline" and _LINE_BREAK_TAG.match(child.content)
            ):
                pieces.append([])
            else:
                pieces[-1] += part
        every = [part for parts in pieces for part in parts]
        # Characters that are unescaped in the source need no escape in the translation.
        bare = frozenset(
            character
            for part in every
            if part.kind == "text" and part.end - part.start == len(part.text)
            for character in part.text
            if character in "[]~|"
        )
        encode = partial(_encode, kind=self.kind, bare=bare)
        found: list[Passage] = []
        for parts in pieces:
            joined = self._joined(_without_mark(parts))
            found += (
                _with_reference(passage, joined)
                for passage in make_passage(joined, encode, kept=PLACEHOLDERS)
            )
        return [*found, *self.alternatives]

    def _joined(self, parts: Sequence[PassagePart]) -> list[PassagePart]:
        """Return the parts, with attributes joined to the preceding part, and code to its role.

        An element whose words are never translated becomes a part that stands by itself.
        """
        joined: list[PassagePart] = []
        for part in parts:
            before = joined[-1] if joined else None
            touches = before is not None and before.end == part.start and part.kind == "single"
            if before is not None and touches and self._belongs(before, part):
                raw = self.text[part.start : part.end]
                joined[-1] = replace(
                    before,
                    end=part.end,
                    text=before.text + part.text,
                    instead=before.instead and before.instead + raw,
                )
                continue
            joined.append(part)
            if part.kind == "close" and (start := _opening(joined)) is not None:
                first = joined[start]
                if _KEPT_ELEMENT.match(self.text, first.start, first.end):
                    shown = "".join(inner.text for inner in joined[start:])
                    joined[start:] = [PassagePart(first.start, part.end, "single", shown)]
        return joined

    def _belongs(self, before: PassagePart, part: PassagePart) -> bool:
        is_attribute = self.text[part.start] == "{" and not part.text
        is_role = before.kind == "single" and not before.text and self.text[part.start] == "`"
        return is_role or (is_attribute and before.kind in ("single", "close"))

    def _part(self, token: Token) -> list[PassagePart] | None:
        """Return the parts of a construct and move past it; None if it does not begin here."""
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

    def _until(
        self, end: int | None, kind: Any, text: str = "", instead: str = ""
    ) -> list[PassagePart] | None:
        if end is None or end < self.place:
            return None
        start, self.place = self.place, end
        first, last = self.offsets[start], self.offsets[end]
        return [PassagePart(first, last, kind, text, instead=instead)] if last > first else []

    def _end(self, kind: str) -> int | None:
        """Return the end of the construct that begins here."""
        return self.ends.get((self.content, kind, self.place))

    def _original(self, start: int, end: int) -> str:
        """Return a range of the content without masks, with single spaces."""
        characters = (
            self.text[self.offsets[n]] if self.content[n] in (SHOWN, UNSEEN) else self.content[n]
            for n in range(start, end)
        )
        return " ".join("".join(characters).split())

    def _text(self, token: Token) -> list[PassagePart] | None:
        if not token.content:
            return []
        start = self.place
        while self.content.startswith(" ", self.place) and not token.content.startswith(" "):
            self.place += 1
        if not self.content.startswith(token.content, self.place):
            return None
        self.place += len(token.content)
        last = self.offsets[self.place] - 1
        if self.place == len(self.content) and _BEFORE_MARK.match(self.text, last):
            words = text_parts(self.text, self.offsets[start], last, _BAR, _last)
            return [*words, PassagePart(last, last + 1, "single")]
        if self.content.startswith("\n", self.place):  # the space before it belongs to the break
            self.place -= len(token.content) - len(token.content.rstrip())
        return [*text_parts(self.text, self.offsets[start], self.offsets[self.place], _BAR, _last)]

    def _text_special(self, token: Token) -> list[PassagePart] | None:
        return self._raw(token.markup, "text", token.content)

    def _softbreak(self, token: Token) -> list[PassagePart] | None:
        match = _SOFT_BREAK.match(self.content, self.place)
        return None if match is None else self._until(match.end(), "soft", " ")

    def _hardbreak(self, token: Token) -> list[PassagePart] | None:
        match = _HARD_BREAK.match(self.content, self.place)
        return None if match is None else self._until(match.end(), "single")

    def _code_inline(self, token: Token) -> list[PassagePart] | None:
        end = self._end("backticks")
        if end is None:
            return None
        fence = len(token.markup)
        return self._until(end, "single", self._original(self.place + fence, end - fence))

    def _kept(self, token: Token) -> list[PassagePart] | None:
        end = self.place + len(token.content)
        here = self.offsets[self.place], self.offsets[end]
        self.alternatives += parameter_passages(self.text, *here)
        is_shown = not token.content.startswith(UNSEEN)
        return self._until(end, "single", self._original(self.place, end) if is_shown else "")

    def _html_inline(self, token: Token) -> list[PassagePart] | None:
        return self._raw(token.content, inline_kind(token.content))

    def _link_open(self, token: Token) -> list[PassagePart] | None:
        if token.markup == "autolink":
            return self._raw("<", "open")
        self.openings.append(self.place)
        return self._raw("[", "open")

    def _link_close(self, token: Token) -> list[PassagePart] | None:
        if token.markup == "autolink":
            return self._raw(">", "close")
        return self._close("link", "[")

    def _span_open(self, token: Token) -> list[PassagePart] | None:
        self.openings.append(self.place)
        return self._raw(token.markup, "open")

    def _span_close(self, token: Token) -> list[PassagePart] | None:
        return self._close("span", "[")

    def _close(self, kind: str, bracket: str) -> list[PassagePart] | None:
        start = self.openings.pop()
        end = self.ends.get((self.content, kind, start))
        instead = ""
        # [the manual] and [the manual][] refer to their definition by their words, so a translation
        # with other words needs its name.
        if self.content[self.place : end] in ("]", "][]") and self.content[start] == bracket:
            label = self._original(start + 1, self.place)
            instead = f"][{label}]" if "[" not in label.replace("\\[", "") else ""
        return self._until(end, "close", instead=instead)

    def _image(self, token: Token) -> list[PassagePart] | None:
        end = self._end("image")
        offsets = self.offsets[self.place + 2 :]
        inner = InlineContent(self.text, token.content, offsets, self.ends, self.kind)
        opening = f"![{token.content}]"
        if self.content.startswith((opening + "(", opening + "["), self.place) and (
            self.content[self.place + len(opening) : end] != "[]"
        ):
            self.alternatives += inner.passages(token) or ()
        return self._until(end, "single")


def parameter_passages(text: str, start: int, end: int) -> Iterator[Passage]:
    """Yield the passages of the parameters of shortcodes and tags that are text for people.

    Args:
        text: the document.
        start, end: range of the shortcodes.
    """
    for match in () if "/*" in text[start:end] else PARAMETER.finditer(text, start, end):
        first, last = match.span(match.lastindex or 0)
        yield from string_passages(text_parts(text, first, last), partial(in_quotes, text[last]))


def in_quotes(quote: str, text: str, place: Surroundings) -> str:
    """Write text between quotes for which there is no escape.

    Args:
        quote: the kind of quote.
        text: text to write.
        place: surroundings of the text.
    """
    return text.replace(quote, "’" if quote == "'" else "'")


def _with_reference(passage: Passage, parts: Sequence[PassagePart]) -> Passage:
    """Return a passage; if it is the text of a reference link, include the tags of the link."""
    for number, part in enumerate(parts):
        if part.instead and part.start >= passage.end:
            start = _opening(parts[: number + 1])
            if start is not None and parts[start].start < passage.start:
                inner = (*parts[start : start + 1], *passage.parts, part)
                return replace(passage, start=parts[start].start, end=part.end, parts=inner)
    return passage


def _opening(parts: Sequence[PassagePart]) -> int | None:
    """Return the index of the opening part of the pair that the last part closes."""
    depth = 0
    for number in reversed(range(len(parts))):
        depth += (parts[number].kind == "close") - (parts[number].kind == "open")
        if depth == 0:
            return number
    return None


def _without_mark(parts: Sequence[PassagePart]) -> Sequence[PassagePart]:
    """Return parts without the mark of a task or of a caption at their beginning."""
    mark = _LEADING.match("".join(part.text for part in parts))
    return parts if mark is None else cut(parts, mark.end(), sum(len(part.text) for part in parts))


def _last(text: str) -> str:
    return text[-1]


def _encode(text: str, place: Surroundings, *, kind: BlockKind, bare: frozenset[str]) -> str:
    """Escape text so that no character of it is read as markup.

    Args:
        text: text to write.
        place: surroundings of the text.
        kind: kind of the block.
        bare: characters that are unescaped in the source.
    """
    written = _SPECIAL.sub(partial(_escaped, text, bare), text)
    if kind == "cell" or (place.at_line_start and kind == "lines" and "|" not in bare):
        written = written.replace("|", "\\|")
    if kind == "title":
        return written.replace('"', "'")
    if place.at_line_start and kind == "lines":
        number = _NUMBERED.match(written)
        written = (
            written[: number.end()] + "\\" + written[number.end() :]
            if number is not None
            else re.sub(
                r"^(?=[-+>=#:]|\|)" if "|" not in bare else r"^(?=[-+>=#:])", r"\\", written
            )
        )
    return written


def _escaped(text: str, bare: frozenset[str], match: re.Match[str]) -> str:
    """Return a character, escaped if it could begin markup."""
    character, start, end = match[0], match.start(), match.end()
    before, after = text[start - 1 : start], text[end : end + 1]
    between_spaces = before.isspace() and after.isspace()
    inside_word = before.isalnum() and after.isalnum()
    if (character in "*_~" and between_spaces) or (character == "_" and inside_word):
        return character
    return character if character in bare else "\\" + character
