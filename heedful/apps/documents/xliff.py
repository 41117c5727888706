"""XLIFF 1.2 and 2: segments without a translation get one, with the inline codes of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import PLACEHOLDERS, Passage, PassagePart, protected
from heedful.apps.documents.xml_markup import Token, encode_xml, xml_text, xml_tokens
from heedful.errors import DataError

_UNITS = frozenset(("trans-unit", "segment"))
_PAIRS = frozenset(("g", "mrk", "pc"))
_OPENING = frozenset(("bpt", "bx", "sc"))
_CLOSING = frozenset(("ept", "ex", "ec"))
_UNTRANSLATED = frozenset(("new", "needs-translation", "initial"))
"""States of a target that is not translated yet."""


@dataclass
class _Unit:
    """A segment that is being read.

    Args:
        is_translated: true if the segment is to be translated.
        state: state of its translation, in XLIFF 2.
        source: tokens of its source, tags included.
        target: tokens of its target.
        before: white space in front of its source, for indentation.
        end: end of the last element that precedes a target.
    """

    is_translated: bool
    state: str | None
    source: tuple[Token, ...] = ()
    target: tuple[Token, ...] = ()
    before: str = ""
    end: int = 0


def read_xliff(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield a passage for each missing translation.

    Args:
        text: text of the document.
        settings: settings of the document.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not XML, or when the document is not XLIFF.
    """
    tokens = list(xml_tokens(text, name))
    roots = [token for token in tokens if token.kind in ("start", "empty")]
    if not roots or roots[0].name != "xliff":
        raise DataError("The document is no XLIFF", where=name, remedy="Its root is not <xliff>")
    for unit in _units(text, tokens):
        if unit.is_translated and unit.source and not _has_target(unit):
            yield from _passage(text, unit)


def _units(text: str, tokens: Sequence[Token]) -> Iterator[_Unit]:
    allowed = [True]
    unit: _Unit | None = None
    number = 0
    while number < len(tokens):
        token = tokens[number]
        number += 1
        if unit is not None and token.kind in ("start", "empty"):
            after = _element_end(tokens, number - 1)
            if token.name == "source":
                unit.source = tuple(tokens[number - 1 : after])
                previous = tokens[number - 2]
                unit.before = text[previous.start : previous.end] if previous.kind == "text" else ""
                unit.before = unit.before if not unit.before.strip() else ""
            elif token.name == "target":
                unit.target = tuple(tokens[number - 1 : after])
            if token.name in ("source", "seg-source"):
                unit.end = tokens[after - 1].end
            number = after  # elements of alternative translations are not those of the unit
        elif token.kind == "start":
            said = token.attribute("translate")
            allowed.append(allowed[-1] if said is None else said == "yes")
            if token.name in _UNITS:
                unit = _Unit(allowed[-1], token.attribute("state"))
        elif token.kind == "end":
            allowed.pop()
            if unit is not None and token.name in _UNITS:
                yield unit
                unit = None


def _element_end(tokens: Sequence[Token], first: int) -> int:
    """Return the index of the token after an element."""
    depth = 0
    for number in range(first, len(tokens)):
        depth += (tokens[number].kind == "start") - (tokens[number].kind == "end")
        if depth == 0:
            return number + 1
    return len(tokens)


def _has_target(unit: _Unit) -> bool:
    if not unit.target:
        return False
    state = unit.target[0].attribute("state") or unit.state
    return len(unit.target) > 2 and state not in _UNTRANSLATED


def _passage(text: str, unit: _Unit) -> Iterator[Passage]:
    parts = protected(_parts(text, unit.source[1:-1]), PLACEHOLDERS)
    if not any(part.kind == "text" and any(map(str.isalpha, part.text)) for part in parts):
        return
    if not unit.target:
        opening = text[unit.source[0].start + 1 : unit.source[0].end - 1].split()[0]
        tag = opening.removesuffix("source") + "target"
        start = end = unit.end
        wrap = partial(_wrapped, f"{unit.before}<{tag}>", f"</{tag}>")
    elif unit.target[0].kind == "empty":
        start, end = unit.target[0].start, unit.target[0].end
        opening = text[start : end - 2].rstrip()
        wrap = partial(_wrapped, f"{opening}>", f"</{opening[1:].split()[0]}>")
    else:
        start, end = unit.target[0].end, unit.target[-1].start
        wrap = partial(_wrapped, "", "")
    yield Passage(start, end, parts, encode_xml, wrap)


def _wrapped(before: str, after: str, content: str) -> str:
    return before + content + after


def _parts(text: str, tokens: Sequence[Token]) -> Iterator[PassagePart]:
    """Yield the parts of a source; native codes are kept unchanged."""
    number = 0
    while number < len(tokens):
        token = tokens[number]
        after = number + 1
        if token.kind in ("text", "cdata"):
            yield from xml_text(text, token)
        elif token.kind == "end":
            yield PassagePart(token.start, token.end, "close")
        elif token.kind == "start" and token.name in _PAIRS and not _is_protected(token):
            yield PassagePart(token.start, token.end, "open")
        elif token.kind == "other":
            yield PassagePart(token.start, token.end, "single")
        else:
            after = _element_end(tokens, number)
            end = tokens[after - 1].end
            if token.name in _OPENING or token.name in _CLOSING:
                yield PassagePart(token.start, end, "open" if token.name in _OPENING else "close")
            else:
                inner = tokens[number:after] if token.name == "mrk" else ()
                shown = "".join(
                    p.text for t in inner if t.kind == "text" for p in xml_text(text, t)
                )
                yield PassagePart(token.start, end, "single", shown)
        number = after


def _is_protected(token: Token) -> bool:
    return token.attribute("translate") == "no" or token.attribute("mtype") == "protected"
