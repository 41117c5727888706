"""Passages of a document: places whose text is translated, and the markup inside them.

A format's reader finds passages as ranges of the document's characters. It takes nothing apart and
puts nothing together: what lies outside the passages is never touched, and markup inside a passage
is copied from its own range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.text.protected_spans import span_pattern

Kind = Literal["text", "open", "close", "single", "soft"]


@dataclass(frozen=True, slots=True)
class PassagePart:
    """A piece of a passage.

    Args:
        start, end: range of the document's characters that it is written in.
        kind: `text`; `open` and `close` of a pair of tags around words; `single` for what stands
            by itself, such as a picture, a code span or a placeholder; `soft` for a line break that
            is no more than a space.
        text: what a translator reads: of `text` the decoded characters, of `single` the words it
            shows, of `soft` a space.
        is_container: of `open`: text goes right into it, in every other place it needs a container
            of its own (runs of a word processor).
    """

    start: int
    end: int
    kind: Kind
    text: str = ""
    is_container: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a translated text, which may decide how it is written.

    Args:
        parent: the opening tag it stands in; None at the passage's top.
        at_line_start: a line break stands right before it, or it begins the passage.
    """

    parent: PassagePart | None
    at_line_start: bool


Encode = Callable[[str, Surroundings], str]


@dataclass(frozen=True)
class Passage:
    """A place whose text is translated.

    Args:
        start, end: range of the document's characters that the translation replaces.
        parts: of the text, in order; in most formats they cover that range.
        encode: writes translated text as the format wants it.
        wrap: writes the whole translation in its place; as it is if unset. With it the parts may
            stand elsewhere in the document; then a text is written there even if it stays the same.
        copies: text that stays may be copied as it stood, escapes and all.
    """

    start: int
    end: int
    parts: tuple[PassagePart, ...]
    encode: Encode
    wrap: Callable[[str], str] | None = None
    copies: bool = True

    @property
    def text(self) -> str:
        """The text that a translator reads."""
        return "".join(part.text for part in self.parts)

    @property
    def is_in_place(self) -> bool:
        """True if the translation replaces the text that is read, and not another."""
        return self.start <= self.parts[0].start and self.parts[-1].end <= self.end


def plain(text: str, place: Surroundings) -> str:
    """Write text as it is."""
    return text


def text_parts(
    document: str,
    start: int,
    end: int,
    escapes: re.Pattern[str] | None = None,
    decode: Callable[[str], str] = str,
) -> Iterator[PassagePart]:
    """Yield the parts of a range of text: stretches without escapes, and each escape.

    Args:
        document: all of it.
        start, end: the range.
        escapes: matches what stands for another character; none if unset.
        decode: returns that character.
    """
    while escapes is not None and (match := escapes.search(document, start, end)) is not None:
        if match.start() > start:
            yield PassagePart(start, match.start(), "text", document[start : match.start()])
        yield PassagePart(match.start(), match.end(), "text", decode(match[0]))
        start = match.end()
    if end > start:
        yield PassagePart(start, end, "text", document[start:end])


ADDRESSES = re.compile(span_pattern(["urls", "emails"]))
PLACEHOLDERS = re.compile(span_pattern(["urls", "emails", "placeholders"]))


def protected(parts: Iterable[PassagePart], pattern: re.Pattern[str]) -> tuple[PassagePart, ...]:
    """Return parts in which every match of a pattern stands by itself, so that it is kept.

    Args:
        parts: of a passage. A match never crosses markup.
        pattern: of placeholders and addresses.
    """
    result: list[PassagePart] = []
    stretch: list[PassagePart] = []
    for part in parts:
        if part.kind == "text":
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
        result.append(PassagePart(inner[0].start, inner[-1].end, "single", match[0]))
        done = match.end()
    return [*result, *cut(parts, done, len(text))]


def cut(parts: Sequence[PassagePart], start: int, end: int) -> list[PassagePart]:
    """Return the parts of a range of the text that a translator reads.

    Args:
        parts: of a passage.
        start, end: range of its text. Parts without text at its ends belong to it; an escape or
            single part that it cuts through does, too.
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
    """Return the parts before an offset of their text, and those after it.

    Args:
        parts: of a passage.
        offset: of the text that a translator reads; closing tags there are before it.
    """
    here = 0
    for number, part in enumerate(parts):
        after = here + len(part.text)
        if here >= offset and part.kind != "close":
            return list(parts[:number]), list(parts[number:])
        if after > offset:
            left, right = cut([part], 0, offset - here), cut([part], offset - here, after - here)
            if left == right:  # an escape, or a code: it stays whole
                return list(parts[:number]), list(parts[number:])
            return [*parts[:number], *left], [*right, *parts[number + 1 :]]
        here = after
    return list(parts), []


def unclosed(parts: Iterable[PassagePart]) -> list[PassagePart]:
    """Return the opening tags whose closing tags are not among the parts."""
    opened: list[PassagePart] = []
    for part in parts:
        if part.kind == "open":
            opened.append(part)
        elif part.kind == "close" and opened:
            opened.pop()
    return opened


def trimmed(parts: Sequence[PassagePart]) -> tuple[PassagePart, ...]:
    """Return the parts without space and markup before the first word and after the last.

    A pair of tags around all words is left out as well; one around some of them stays.
    """
    kept = list(parts)
    while kept:
        if kept[0].kind == "open" and (closing := _partner(kept)) is not None:
            if closing < len(kept) - 1 and any(part.text.strip() for part in kept[closing:]):
                break
            kept = [*kept[1:closing], *kept[closing + 1 :]]
        elif kept[0].kind == "close" or not kept[0].text.strip():
            kept = kept[1:]
        else:
            kept[0] = _stripped(kept[0])
            break
    while kept:
        if kept[-1].kind == "close" and _opens_within(kept):
            break
        if kept[-1].kind != "close" and kept[-1].text.strip():
            kept[-1] = _stripped(kept[-1], at_end=True)
            break
        kept.pop()
    return tuple(kept)


def _stripped(part: PassagePart, *, at_end: bool = False) -> PassagePart:
    """Return a part without space at one end, if that is written as it is."""
    if part.kind != "text" or part.end - part.start != len(part.text):
        return part
    if at_end:
        text = part.text.rstrip()
        return PassagePart(part.start, part.start + len(text), "text", text)
    text = part.text.lstrip()
    return PassagePart(part.end - len(text), part.end, "text", text)


def _partner(parts: Sequence[PassagePart]) -> int | None:
    """Return the number of the part that closes the pair which the first opens."""
    depth = 0
    for number, part in enumerate(parts):
        depth += (part.kind == "open") - (part.kind == "close")
        if depth == 0:
            return number
    return None


def _opens_within(parts: Sequence[PassagePart]) -> bool:
    """Return True if the pair that the last part closes is opened by one of the others."""
    depth = 0
    for part in reversed(parts):
        depth += (part.kind == "close") - (part.kind == "open")
        if depth == 0:
            return True
    return False


def make_passage(
    parts: Iterable[PassagePart],
    encode: Encode = plain,
    *,
    kept: re.Pattern[str] = ADDRESSES,
    copies: bool = True,
) -> Iterator[Passage]:
    """Yield the passage that parts make, or nothing if they have no words.

    Args:
        parts: side by side in the document.
        encode: writes translated text.
        kept: matches text that is never translated.
        copies: text that stays may be copied as it stood.
    """
    inner = trimmed(protected(parts, kept))
    if any(part.kind == "text" and any(map(str.isalpha, part.text)) for part in inner):
        yield Passage(inner[0].start, inner[-1].end, inner, encode, copies=copies)


def lines_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each line, without its line break (LF, CR LF or CR)."""
    start = 0
    for match in _LINE_BREAK.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


_LINE_BREAK = re.compile(r"\r\n|\n|\r")


def line_at(text: str, offset: int) -> int:
    """Return the number of the line that a character is in, from 1."""
    return sum(1 for _ in _LINE_BREAK.finditer(text, 0, offset)) + 1
