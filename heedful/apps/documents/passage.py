"""Passages of a document: places whose text is translated, and the markup inside them.

A format's reader finds passages as ranges of the document's characters. Characters outside the
passages are never touched, and markup inside a passage is copied from its own range.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.pipelines.aligned_text import Kind, Span
from heedful.text.protected_spans import span_pattern


@dataclass(frozen=True, slots=True)
class PassagePart:
    """A part of a passage: text or markup.

    Args:
        start, end: range of its characters in the document.
        kind: `text`; `open` and `close` for a pair of tags around words; `single` for markup
            without a partner, such as an image, a code span or a placeholder; `soft` for a line
            break that stands for a space.
        text: text for the translator: the decoded characters of a `text`, the words that a `single`
            part shows, a space for `soft`.
        is_container: true for an `open` part that holds text directly (a run of a word processor);
            text outside of it needs another container.
        instead: replacement for a `close` part if the words of its pair change, such as the name of
            a link definition that is found by these words.
    """

    start: int
    end: int
    kind: Kind
    text: str = ""
    is_container: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a translated text, on which its encoding may depend.

    Args:
        parent: innermost open tag; None outside of tags.
        at_line_start: true at the beginning of a passage or right after a line break.
    """

    parent: PassagePart | None
    at_line_start: bool


Encode = Callable[[str, Surroundings], str]


@dataclass(frozen=True)
class Passage:
    """A range of a document whose text is translated.

    Args:
        start, end: range of the document's characters that the translation replaces.
        parts: parts of the text, in order; in most formats they cover the range.
        encode: function that writes translated text in the format.
        wrap: function from the written translation to the text for the range. With it the parts may
            lie outside of the range, and text is written even if it is unchanged.
        copies: true if unchanged text may be copied from the document with its escapes.
        inner: passages in the markup of this passage that are translated where the markup is
            copied, not in their original place.
        left_out: reason for leaving the text unchanged; empty if it is translated.
    """

    start: int
    end: int
    parts: tuple[PassagePart, ...]
    encode: Encode
    wrap: Callable[[str], str] | None = None
    copies: bool = True
    inner: tuple[Passage, ...] = ()
    left_out: str = ""

    @property
    def text(self) -> str:
        """The text that a translator reads."""
        return "".join(part.text for part in self.parts)

    @property
    def breaks(self) -> frozenset[int]:
        """Offsets in the text of line breaks that stand for a space."""
        starts = accumulate((len(part.text) for part in self.parts), initial=0)
        pairs = zip(starts, self.parts, strict=False)
        return frozenset(start for start, part in pairs if part.kind == "soft")

    @property
    def borders(self) -> list[int]:
        """Offsets in the text at which a kept part with words begins or ends."""
        starts = accumulate((len(part.text) for part in self.parts), initial=0)
        pairs = zip(starts, self.parts, strict=False)
        ranges = ((start, start + len(part.text)) for start, part in pairs if part.kind == "single")
        return sorted({offset for each in ranges for offset in each})

    @property
    def is_in_place(self) -> bool:
        """True if the translation replaces the source text itself."""
        return self.start <= self.parts[0].start and self.parts[-1].end <= self.end


class LeftOut(Exception):
    """A translation that cannot be written, so that the document stays unchanged there.

    The `wrap` of a passage raises it, with the reason as its text.
    """


Reader = Callable[[str, DocumentSettings, str], Iterator[Passage]]
"""Function that yields the passages of a document.

Its arguments are the document's text, its settings, and its name for messages. It raises a
`DataError` that names the line that is invalid in the format, or the keys of `--keys` that match no
string.
"""


def plain(text: str, place: Surroundings) -> str:
    """Return text unchanged."""
    return text


def encode_html(text: str, place: Surroundings) -> str:
    """Escape text that stands between tags."""
    return html.escape(text, quote=False)


def text_parts(
    document: str,
    start: int,
    end: int,
    escapes: re.Pattern[str] | None = None,
    decode: Callable[[str], str] = str,
) -> Iterator[PassagePart]:
    """Yield the parts of a range of text: stretches without escapes, and each escape.

    Args:
        document: text of the document.
        start, end: the range.
        escapes: pattern of escapes, which stand for another character; None if there are none.
        decode: function that returns the character of an escape.
    """
    while escapes is not None and (match := escapes.search(document, start, end)) is not None:
        if match.start() > start:
            yield PassagePart(start, match.start(), "text", document[start : match.start()])
        yield PassagePart(match.start(), match.end(), "text", decode(match[0]))
        start = match.end()
    if end > start:
        yield PassagePart(start, end, "text", document[start:end])


def folded_parts(
    document: str, span: Span, breaks: re.Pattern[str], references: re.Pattern[str]
) -> Iterator[PassagePart]:
    """Yield the parts of text between tags, in which a line break stands for a space.

    Args:
        document: text of the document.
        span: range of the text.
        breaks: pattern of a line break with the space around it.
        references: pattern of references to characters.
    """
    start, end = span
    for match in breaks.finditer(document, start, end):
        yield from text_parts(document, start, match.start(), references, html.unescape)
        yield PassagePart(match.start(), match.end(), "soft", " ")
        start = match.end()
    yield from text_parts(document, start, end, references, html.unescape)


C_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
"""Escapes of C: the character for each letter after a backslash."""

ADDRESSES = re.compile(span_pattern(["urls", "emails"]))
PLACEHOLDERS = re.compile(span_pattern(["urls", "emails", "placeholders"]))


def protected(parts: Iterable[PassagePart], pattern: re.Pattern[str]) -> tuple[PassagePart, ...]:
    """Return the parts, with every match of a pattern as a separate kept part.

    Args:
        parts: parts of a passage; a match never crosses markup.
        pattern: pattern of placeholders and addresses.
    """
    result: list[PassagePart] = []
    stretch: list[PassagePart] = []
    for part in parts:
        if part.kind in ("text", "soft"):
            stretch.append(part)
            continue
        result += _protected_stretch(stretch, pattern)
        result.append(part)
        stretch = []
    return (*result, *_protected_stretch(stretch, pattern))


def _protected_stretch(parts: Sequence[PassagePart], pattern: re.Pattern[str]) -> list[PassagePart]:
    text = "".join(part.text for part in parts)
    result: list[PassagePart] = []
    done = 0
    for match in pattern.finditer(text):
        result += cut(parts, done, match.start())
        inner = cut(parts, match.start(), match.end())
        # A translator reads single spaces.
        words = " ".join(match[0].split())
        result.append(PassagePart(inner[0].start, inner[-1].end, "single", words))
        done = match.end()
    return [*result, *cut(parts, done, len(text))]


def cut(parts: Sequence[PassagePart], start: int, end: int) -> list[PassagePart]:
    """Return the parts of a range of the text that a translator reads.

    Args:
        parts: parts of a passage.
        start, end: range in the text of the parts. Parts without text at the ends of the range are
            included, and so are escapes and single parts that it divides.
    """
    result: list[PassagePart] = []
    here = 0
    for part in parts:
        after = here + len(part.text)
        if part.text and (after <= start or here >= end):
            here = after
            continue
        if not part.text and not start <= here <= end:
            continue
        if part.kind == "text" and part.end - part.start == len(part.text):
            first, last = max(start - here, 0), min(end, after) - here
            text = part.text[first:last]
            result.append(PassagePart(part.start + first, part.start + last, "text", text))
        else:
            result.append(part)
        here = after
    return result


def divided(
    parts: Sequence[PassagePart], offset: int
) -> tuple[list[PassagePart], list[PassagePart]]:
    """Return the parts before and after an offset in their text.

    Args:
        parts: parts of a passage.
        offset: offset in the translator's text; closing tags at this offset come before it.
    """
    here = 0
    for number, part in enumerate(parts):
        after = here + len(part.text)
        if here >= offset and part.kind != "close":
            return list(parts[:number]), list(parts[number:])
        if after > offset:
            left, right = cut([part], 0, offset - here), cut([part], offset - here, after - here)
            if left == right:  # an escape or a code span is not divided
                return list(parts[:number]), list(parts[number:])
            return [*parts[:number], *left], [*right, *parts[number + 1 :]]
        here = after
    return list(parts), []


def unclosed(parts: Sequence[PassagePart]) -> list[PassagePart]:
    """Return the opening tags without a closing tag among the parts."""
    partners = _partners(parts)
    return [part for n, part in enumerate(parts) if part.kind == "open" and n not in partners]


def trimmed(parts: Sequence[PassagePart]) -> tuple[PassagePart, ...]:
    """Return the parts without white space and markup before the first word and after the last one.

    A pair of tags around all words is left out as well; a pair around some words stays. The result
    is a contiguous range of the parts.
    """
    words = [
        number for number, part in enumerate(parts) if part.kind != "close" and part.text.strip()
    ]
    if not words:
        return ()
    first, last = words[0], words[-1]
    partners = _partners(parts)
    # A tag before the first word belongs to the range if its partner is among the words; then all
    # tags between the tag and the word belong to it as well.
    start = min((n for n in range(first) if first < partners.get(n, -1) <= last), default=first)
    end = max(
        (
            n
            for n in range(last + 1, len(parts))
            if partners.get(n, n) >= start and partners.get(n, n) < last
        ),
        default=last,
    )
    kept = [*parts[start : end + 1]]
    if start == first:
        kept[0] = _stripped(kept[0])
    if end == last:
        kept[-1] = _stripped(kept[-1], at_end=True)
    return tuple(kept)


def _stripped(part: PassagePart, *, at_end: bool = False) -> PassagePart:
    """Return a part without white space at one end, if the space is written without escapes."""
    if part.kind != "text" or part.end - part.start != len(part.text):
        return part
    if at_end:
        text = part.text.rstrip()
        return PassagePart(part.start, part.start + len(text), "text", text)
    text = part.text.lstrip()
    return PassagePart(part.end - len(text), part.end, "text", text)


def _partners(parts: Sequence[PassagePart]) -> dict[int, int]:
    """Return the index of the partner of each tag that has one."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for number, part in enumerate(parts):
        if part.kind == "open":
            opened.append(number)
        elif part.kind == "close" and opened:
            other = opened.pop()
            partners[other], partners[number] = number, other
    return partners


def make_passage(
    parts: Iterable[PassagePart],
    encode: Encode = plain,
    *,
    kept: re.Pattern[str] = ADDRESSES,
) -> Iterator[Passage]:
    """Yield a passage of the parts, or nothing if they have no words.

    Args:
        parts: adjacent parts of the document.
        encode: function that writes translated text.
        kept: pattern of text that is never translated.
    """
    inner = trimmed(protected(parts, kept))
    if any(part.kind == "text" and any(map(str.isalpha, part.text)) for part in inner):
        yield Passage(inner[0].start, inner[-1].end, inner, encode)


def lines_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each line, without its line break (LF, CR LF or CR)."""
    start = 0
    for match in _LINE_BREAK.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


_LINE_BREAK = re.compile(r"\r\n|\n|\r")
