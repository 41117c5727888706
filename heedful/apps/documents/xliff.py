"""XLIFF 1.2 and 2: segments without a translation get one, with the inline codes of the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import (
    copied_string,
    string_passages,
    written_mark,
)
from heedful.apps.documents.passage import Passage, PassagePart, Surroundings, text_parts
from heedful.apps.documents.xml_markup import (
    UNWRITABLE,
    Token,
    element_end,
    encode_xml,
    xml_text,
    xml_tokens,
)
from heedful.errors import DataError

_UNITS = frozenset(("trans-unit", "segment"))
_PAIRS = frozenset(("g", "mrk", "pc"))
_OPENING = frozenset(("bpt", "bx", "sc"))
_CLOSING = frozenset(("ept", "ex", "ec"))
_UNTRANSLATED = frozenset(("new", "needs-translation", "initial"))
"""States of a target that is not translated yet."""
_MACHINE = {"trans-unit": "needs-review-translation", "segment": "translated"}
"""States of a target that nobody has reviewed, in XLIFF 1.2 and 2."""


@dataclass
class _Unit:
    """A segment that is being read.

    Args:
        is_translated: true if the segment is to be translated.
        start: its opening tag, which has the state of the translation in XLIFF 2.
        source: tokens of its source, tags included.
        target: tokens of its target.
        before: white space in front of its source, for indentation.
        end: end of the last element that precedes a target.
    """

    is_translated: bool
    start: Token
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
            yield from _passages(text, unit, settings)


def _units(text: str, tokens: Sequence[Token]) -> Iterator[_Unit]:
    allowed = [True]
    unit: _Unit | None = None
    number = 0
    while number < len(tokens):
        token = tokens[number]
        number += 1
        if unit is not None and token.kind in ("start", "empty"):
            after = element_end(tokens, number - 1)
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
                unit = _Unit(allowed[-1], token)
        elif token.kind == "end":
            allowed.pop()
            if unit is not None and token.name in _UNITS:
                yield unit
                unit = None


def _has_target(unit: _Unit) -> bool:
    if not unit.target:
        return False
    state = unit.target[0].attribute("state") or unit.start.attribute("state")
    return len(unit.target) > 2 and state not in _UNTRANSLATED


def _passages(text: str, unit: _Unit, settings: DocumentSettings) -> Iterator[Passage]:
    """Yield the passage that fills the target of a segment, if its source has words."""
    inner = [
        passage
        for is_cdata, tokens in groupby(unit.source[1:-1], lambda token: token.kind == "cdata")
        for passage in string_passages(
            inline_parts(text, list(tokens)), encode_cdata if is_cdata else encode_xml
        )
    ]
    if any(passage.left_out for passage in inner) or not inner:
        yield from inner
        return
    source = (unit.source[0].end, unit.source[-1].start)
    state = _MACHINE[unit.start.name] if settings.mark_machine else None
    in_target = state if unit.start.name == "trans-unit" else None
    if not unit.target:
        opening = text[unit.source[0].start + 1 : unit.source[0].end - 1].split()[0]
        tag = opening.removesuffix("source") + "target"
        before = unit.before + _with_state(f"<{tag}>", in_target)
        place, after = (unit.end, unit.end), f"</{tag}>"
    else:
        first, last = unit.target[0], unit.target[-1]
        opening = text[first.start : first.end]
        if first.kind == "empty":
            opening = opening[:-2].rstrip() + ">"
            place, after = (first.start, first.end), f"</{opening[1:-1].split()[0]}>"
        else:
            place, after = (first.start, last.start), ""
        before = _with_state(opening, in_target)
    yield copied_string(place, source, inner, partial(_wrapped, before, after))
    if state != in_target:
        tag = _with_state(text[unit.start.start : unit.start.end], state)
        yield written_mark((unit.start.start, unit.start.end), tag)


def _with_state(tag: str, state: str | None) -> str:
    """Return an opening tag with a state, if there is one to be set."""
    if state is None:
        return tag
    return re.sub(r"\s+state\s*=\s*(?:\"[^\"]*\"|'[^']*')", "", tag)[:-1] + f' state="{state}">'


def encode_cdata(text: str, place: Surroundings) -> str:
    """Write text of a section of character data, in two where it has the end of one."""
    return UNWRITABLE.sub(" ", text).replace("]]>", "]]]]><![CDATA[>")


def _wrapped(before: str, after: str, content: str) -> str:
    return before + content + after


def inline_parts(
    text: str,
    tokens: Sequence[Token],
    is_pair: Callable[[str], bool] = _PAIRS.__contains__,
    *,
    folds: bool = True,
) -> Iterator[PassagePart]:
    """Yield the parts of a text with elements; native codes are kept unchanged.

    Args:
        text: the document.
        tokens: tokens of the text.
        is_pair: function that returns True for elements around words that are translated.
        folds: true if a line break stands for a space.
    """
    number = 0
    while number < len(tokens):
        token = tokens[number]
        after = number + 1
        if token.kind == "cdata":
            start, end = token.start + len("<![CDATA["), token.end - len("]]>")
            yield from text_parts(text, start, end)
        elif token.kind == "text":
            yield from xml_text(text, token, folds=folds)
        elif token.kind == "end":
            yield PassagePart(token.start, token.end, "close")
        elif token.kind == "start" and is_pair(token.name) and not _is_protected(token):
            yield PassagePart(token.start, token.end, "open")
        elif token.kind == "other":
            yield PassagePart(token.start, token.end, "single")
        else:
            after = element_end(tokens, number)
            end = tokens[after - 1].end
            if token.name in _OPENING or token.name in _CLOSING:
                yield PassagePart(token.start, end, "open" if token.name in _OPENING else "close")
            else:
                inner = tokens[number:after] if token.name in ("mrk", "g") else ()
                shown = "".join(
                    p.text for t in inner if t.kind == "text" for p in xml_text(text, t)
                )
                yield PassagePart(token.start, end, "single", shown)
        number = after


def _is_protected(token: Token) -> bool:
    return token.attribute("translate") == "no" or token.attribute("mtype") == "protected"
