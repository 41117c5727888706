"""Reader of XLIFF 1.2 and 2, which fills untranslated segments and keeps inline codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import (
    copied_string,
    string_passages,
    written_mark,
)
from heedful.apps.documents.passage import (
    Encode,
    Passage,
    PassagePart,
    Surroundings,
    text_parts,
)
from heedful.apps.documents.xml_markup import (
    UNWRITABLE,
    Token,
    XmlElement,
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


def read_xliff(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield a passage for each missing translation; see `Reader`."""
    tokens = list(xml_tokens(text, name))
    roots = [token for token in tokens if token.kind in ("start", "empty")]
    if not roots or roots[0].name != "xliff":
        raise DataError("The document is no XLIFF", where=name, remedy="Its root is not <xliff>")
    for unit in _units(tokens):
        yield from _passages(text, unit, settings)


def _units(tokens: Sequence[Token]) -> Iterator[XmlElement]:
    """Yield the segments that may be translated."""
    allowed = [True]
    number = 0
    while number < len(tokens):
        token, after = tokens[number], number + 1
        if token.kind == "start":
            said = token.attribute("translate")
            allowed.append(allowed[-1] if said is None else said == "yes")
            if token.name in _UNITS:
                after = element_end(tokens, number)
                if allowed.pop():
                    yield XmlElement(tokens[number:after])
        elif token.kind == "end":
            allowed.pop()
        number = after


def _is_translated(target: XmlElement, unit: XmlElement) -> bool:
    # The state is an attribute of the target in XLIFF 1.2, and of the segment in XLIFF 2.
    state = target.tag.attribute("state") or unit.tag.attribute("state")
    return len(target.tokens) > 2 and state not in _UNTRANSLATED


def _passages(text: str, unit: XmlElement, settings: DocumentSettings) -> Iterator[Passage]:
    """Yield the passage that fills the target of a segment, if its source has words."""
    # Only direct children: nested elements belong to alternative translations.
    source, target = ([None, *unit.children(name)][-1] for name in ("source", "target"))
    if source is None or (target is not None and _is_translated(target, unit)):
        return
    inner = [
        passage
        for parts, encode in text_runs(text, source.content)
        for passage in string_passages(parts, encode)
    ]
    if any(passage.left_out for passage in inner) or not inner:
        yield from inner
        return
    state = _MACHINE[unit.tag.name] if settings.mark_machine else None
    in_target = state if unit.tag.name == "trans-unit" else None
    if target is None:
        opening = text[source.tag.start + 1 : source.tag.end - 1].split()[0]
        tag = opening.removesuffix("source") + "target"
        before = unit.space_before(text, source) + _with_state(f"<{tag}>", in_target)
        end = [*unit.children("source", "seg-source")][-1].tokens[-1].end
        place, after = (end, end), f"</{tag}>"
    else:
        first, last = target.tag, target.tokens[-1]
        opening = text[first.start : first.end]
        if first.kind == "empty":
            opening = opening[:-2].rstrip() + ">"
            place, after = (first.start, first.end), f"</{opening[1:-1].split()[0]}>"
        else:
            place, after = (first.start, last.start), ""
        before = _with_state(opening, in_target)
    yield copied_string(place, (source.tag.end, source.tokens[-1].start), inner, before, after)
    if state != in_target:
        tag = _with_state(text[unit.tag.start : unit.tag.end], state)
        yield written_mark((unit.tag.start, unit.tag.end), tag)


def _with_state(tag: str, state: str | None) -> str:
    """Return an opening tag with a state, if a state is to be set."""
    if state is None:
        return tag
    return re.sub(r"\s+state\s*=\s*(?:\"[^\"]*\"|'[^']*')", "", tag)[:-1] + f' state="{state}">'


def _encode_cdata(text: str, place: Surroundings) -> str:
    """Write text of a CDATA section; the end mark of a section is split over two sections."""
    return UNWRITABLE.sub(" ", text).replace("]]>", "]]]]><![CDATA[>")


def text_runs(
    text: str,
    content: Sequence[Token],
    is_pair: Callable[[str], bool] = _PAIRS.__contains__,
    *,
    folds: bool = True,
) -> Iterator[tuple[Iterable[PassagePart], Encode]]:
    """Yield the parts of text between CDATA sections, and of each CDATA section.

    A CDATA section has no character references, so it is a separate string. For the arguments see
    `inline_parts`.
    """
    for is_cdata, tokens in groupby(content, lambda token: token.kind == "cdata"):
        parts = inline_parts(text, list(tokens), is_pair, folds=folds)
        yield parts, _encode_cdata if is_cdata else encode_xml


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
