"""HTML: the text of elements and attributes that browsers show."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, Literal

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    PLACEHOLDERS,
    Passage,
    PassagePart,
    Surroundings,
    encode_html,
    folded_parts,
    make_passage,
    text_parts,
)

_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside audio base blockquote body br button canvas caption center col "
        "colgroup datalist dd details dialog dir div dl dt fieldset figcaption figure footer form "
        "frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main "
        "menu meta nav noframes noscript object ol optgroup option p pre script search section "
        "select style summary table tbody td template textarea tfoot th thead title tr track ul "
        "video xmp",
    )
)
"""Block elements, which end a passage; all other elements are inside a passage."""

_VOID = frozenset(
    re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr")
)
_UNREAD = frozenset(("script", "style", "svg", "math", "textarea", "xmp", "iframe"))
"""Elements whose content is not shown as text."""
_VERBATIM = frozenset(("code", "kbd", "samp", "var", "tt", "pre"))
"""Elements whose content is text that is never translated."""
_REPEATED = frozenset(("p", "li", "td", "th", "tr", "dt", "dd", "option"))
"""Elements that end where the next element of the same name begins."""
_ATTRIBUTES = frozenset(("alt", "title", "placeholder", "aria-label"))
_DESCRIPTIONS = re.compile(r"(?:og:|twitter:)?(?:title|description)|keywords", re.IGNORECASE)
"""Names of `meta` elements whose content is translated."""

ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z][\da-zA-Z]*);?")
_LINE_BREAK = re.compile(r"[ \t\f\r\n]*[\r\n][ \t\f\r\n]*")
_ATTRIBUTE = re.compile(r"([^\s\"'>/=]+)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+)))?")

Token = Literal["text", "start", "single", "end", "other"]


def read_html(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of a page or a fragment; as in browsers, any text is valid HTML.

    See `Reader`.
    """
    yield from html_passages(text, 0, len(text))


def html_passages(text: str, start: int, end: int) -> Iterator[Passage]:
    """Yield the passages of a range of HTML in a document."""
    reading = _Reading(text)
    for token, tag, first, last in _tokens(text, start, end):
        yield from reading.take(token, tag, first, last)
    yield from reading.flush()


def inline_kind(tag: str) -> Literal["open", "close", "single"]:
    """Return the kind of part that a tag is inside a passage."""
    if tag.startswith("</"):
        return "close"
    match = re.match(r"<([a-zA-Z][^\s/>]*)", tag)
    if match is None or match[1].lower() in _VOID or tag.endswith("/>"):
        return "single"
    return "open"


@dataclass
class _Element:
    """An open element.

    Args:
        tag: name of the tag.
        is_translated: true if its text is translated; elements inside may have another value.
        kept_from: start of the element if it is part of a sentence and is kept as a whole, or None.
        start: offset of its opening tag.
    """

    tag: str
    is_translated: bool
    kept_from: int | None = None
    start: int = 0


class _Reading:
    """Collects the parts of passages, token by token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.elements: list[_Element] = []
        self.parts: list[PassagePart] = []

    @property
    def is_translated(self) -> bool:
        return not self.elements or self.elements[-1].is_translated

    @property
    def is_kept(self) -> bool:
        """True inside an element that is kept as a whole."""
        return any(element.kept_from is not None for element in self.elements)

    def take(self, token: Token, tag: str, start: int, end: int) -> Iterator[Passage]:
        """Process a token; yield the passages that it ends, and the passages of its attributes."""
        if token == "end":
            yield from self._end(tag, start, end)
        elif token in ("start", "single"):
            if tag in _REPEATED and self.elements and self.elements[-1].tag == tag:
                yield from self._close(len(self.elements) - 1, start, start)
            yield from self._start(tag, start, end, opens=token == "start" and tag not in _VOID)
        elif self.is_translated and token == "text":
            self.parts += folded_parts(self.text, (start, end), _LINE_BREAK, ENTITY)
        elif self.is_translated:
            self.parts.append(PassagePart(start, end, "single"))

    def flush(self) -> Iterator[Passage]:
        """Yield the passage collected so far."""
        parts, self.parts = self.parts, []
        yield from make_passage(parts, encode_html, kept=PLACEHOLDERS)

    def _start(self, tag: str, start: int, end: int, *, opens: bool) -> Iterator[Passage]:
        if self.is_kept:
            self.elements += [_Element(tag, False)] * opens
            return
        values = dict(_attributes(self.text, start, end))
        default = self.is_translated and tag not in _VERBATIM
        is_translated = tag not in _UNREAD and self._says(values, default=default)
        if tag in _BLOCKS or (is_translated and not self.is_translated):
            yield from self.flush()
        if is_translated:
            for name, (first, last, quote) in values.items():
                if name in _ATTRIBUTES or (name == "content" and self._is_description(values)):
                    yield from _attribute(self.text, first, last, quote)
        kept_from = None
        if tag not in _BLOCKS and self.is_translated:
            if opens and not is_translated:
                kept_from = start
            else:
                self.parts.append(PassagePart(start, end, "open" if opens else "single"))
        if opens:
            self.elements.append(_Element(tag, is_translated, kept_from, start))

    def _end(self, tag: str, start: int, end: int) -> Iterator[Passage]:
        depths = [n for n, element in enumerate(self.elements) if element.tag == tag]
        if depths:
            yield from self._close(depths[-1], start, end)
        if tag in _BLOCKS:
            yield from self.flush()
        elif self.is_translated and not (self.parts and self.parts[-1].end == end):
            self.parts.append(PassagePart(start, end, "close" if depths else "single"))

    def _close(self, depth: int, start: int, end: int) -> Iterator[Passage]:
        """Close all elements from a depth on, with the range of the closing tag."""
        closed = self.elements[depth:]
        del self.elements[depth:]
        if len(closed) > 1:  # inner elements have no closing tags, so they are no pairs
            alone = {element.start for element in closed[1:]}
            self.parts = [
                replace(part, kind="single")
                if part.kind == "open" and part.start in alone
                else part
                for part in self.parts
            ]
        for number, element in enumerate(closed):
            if element.kept_from is not None:
                last = end if number == 0 else start
                shown = _shown(self.text[element.kept_from : last], element.tag)
                self.parts.append(PassagePart(element.kept_from, last, "single", shown))
        if closed[0].is_translated and not self.is_translated:
            yield from self.flush()

    def _says(self, values: dict[str, tuple[int, int, str]], *, default: bool) -> bool:
        """Return True if an element is translated, by its attributes or else by default."""
        if "translate" in values:
            first, last, _ = values["translate"]
            return self.text[first:last].strip().lower() in ("", "yes")
        if "class" in values:
            first, last, _ = values["class"]
            return default and "notranslate" not in self.text[first:last].split()
        return default

    def _is_description(self, values: dict[str, tuple[int, int, str]]) -> bool:
        return any(
            _DESCRIPTIONS.fullmatch(self.text[slice(*values[name][:2])].strip())
            for name in ("name", "property")
            if name in values
        )


def _shown(raw: str, tag: str) -> str:
    """Return the text that an element shows."""
    # Space at both ends is kept, since it separates the element from the words beside it.
    return "" if tag in _UNREAD else re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", raw)))


def _attributes(text: str, start: int, end: int) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Yield the attributes of a tag: name, range of the value, and quotation mark."""
    name = re.compile(r"<[^\s/>]+").match(text, start, end)
    assert name is not None, "a tag has a name"
    seen: set[str] = set()
    for match in _ATTRIBUTE.finditer(text, name.end(), end):
        group = match.lastindex or 1
        first, last = match.span(group) if group > 1 else (match.end(), match.end())
        if match[1].lower() not in seen:
            yield match[1].lower(), (first, last, "_\"'"[group - 1] if group in (2, 3) else "")
        seen.add(match[1].lower())


def _attribute(text: str, start: int, end: int, quote: str) -> Iterator[Passage]:
    parts = text_parts(text, start, end, ENTITY, html.unescape)
    for passage in make_passage(parts, partial(_encode_value, quote), kept=PLACEHOLDERS):
        if quote:
            yield passage
        else:
            wrap = partial(_quoted, text[start:end])
            yield replace(passage, start=start, end=end, wrap=wrap)


def _encode_value(quote: str, text: str, place: Surroundings) -> str:
    if quote == "'":
        return text.replace("&", "&amp;").replace("'", "&#39;")
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _quoted(before: str, value: str) -> str:
    """Return an unquoted value, with quotes if it changed."""
    return value if value == before else f'"{value}"'


def _tokens(text: str, start: int, end: int) -> Iterator[tuple[Token, str, int, int]]:
    """Yield the tokens of a range: kind, name of the tag, and range."""
    scanner = _Scanner()
    scanner.feed(text[start:end])
    scanner.close()
    lines = [start, *(start + m.end() for m in re.finditer("\n", text[start:end]))]
    found = [(lines[line - 1] + column, token, tag) for line, column, token, tag in scanner.found]
    for (first, token, tag), (last, *_) in pairwise([*found, (end, "other", "")]):
        yield token, tag, first, last


class _Scanner(HTMLParser):
    """Records the start of each token; every character belongs to a token."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[int, int, Token, str]] = []

    def _note(self, token: Token, tag: str = "") -> None:
        self.found.append((*self.getpos(), token, tag))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._note("start", tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._note("single", tag)

    def handle_endtag(self, tag: str) -> None:
        self._note("end", tag)

    def _text(self, *_: Any, **__: Any) -> None:
        self._note("text")

    def _other(self, *_: Any, **__: Any) -> None:
        self._note("other")

    handle_data = handle_entityref = handle_charref = _text
    handle_comment = handle_decl = handle_pi = unknown_decl = _other
