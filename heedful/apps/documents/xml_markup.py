"""XML as tokens with their ranges (tags, text, other), after a check that it is well-formed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal
from xml.parsers import expat

from heedful.apps.documents.passage import (
    PassagePart,
    Surroundings,
    encode_html,
    folded_parts,
    text_parts,
)
from heedful.errors import DataError

_TOKEN = re.compile(
    r"<!--.*?-->|<\?.*?\?>|(?P<cdata><!\[CDATA\[.*?\]\]>)|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>"
    r"|<(?P<end>/?)(?P<name>[^\s/>]+)(?P<attributes>(?:[^\"'>]|\"[^\"]*\"|'[^']*')*)>"
    r"|(?P<text>[^<]+)",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([^\s=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[\da-fA-F]+);")
_LINE_BREAK = re.compile(r"[ \t\r\n]*[\r\n][ \t\r\n]*")

Kind = Literal["start", "empty", "end", "text", "cdata", "other"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an XML document.

    Args:
        kind: kind of the token; `empty` is a tag such as <x/>.
        name: name of a tag, without its prefix.
        start, end: range of its characters.
        attributes: attributes of a tag, as written.
        prefix: prefix of a tag's name.
    """

    kind: Kind
    name: str
    start: int
    end: int
    attributes: str = ""
    prefix: str = ""

    def attribute(self, name: str) -> str | None:
        """Return the value of an attribute, named with its prefix."""
        for match in _ATTRIBUTE.finditer(self.attributes):
            if match[1] == name:
                return html.unescape(match[2] if match[2] is not None else match[3])
        return None


def xml_tokens(text: str, name: str) -> Iterator[Token]:
    """Yield the tokens of a document; every character belongs to a token.

    Args:
        text: text of the document.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not well-formed or declares an entity; entities let small
            documents grow without bounds.
    """
    _check(text, name)
    yield from _tokens(text)


def first_tag(text: str) -> Token | None:
    """Return the first tag of a text that may be XML."""
    start = text.find("<")
    while start >= 0 and text[start + 1 : start + 2] in ("!", "?"):
        ending = "-->" if text.startswith("<!--", start) else ">"
        end = text.find(ending, start)
        start = text.find("<", end) if end >= 0 else -1
    end = text.find(">", start) + 1
    # The text is cut after the tag, since the expression would be slow on long text that is not
    # XML.
    return next(_tokens(text[start:end]), None) if 0 <= start < end else None


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if match["name"] is not None:
            kind: Kind = "end" if match["end"] else "start"
            if match["attributes"].endswith("/"):
                kind = "empty"
            prefix, _, local = match["name"].rpartition(":")
            yield Token(kind, local, start, end, match["attributes"], prefix)
        elif match["text"] is not None:
            yield Token("text", "", start, end)
        else:
            yield Token("cdata" if match["cdata"] else "other", "", start, end)


def _check(text: str, name: str) -> None:
    parser = expat.ParserCreate("utf-8")

    def refuse(*_: object) -> None:
        raise DataError(
            f"Line {parser.CurrentLineNumber} declares an entity",
            where=name,
            remedy="Write what it stands for in its place",
        )

    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        raise DataError(
            f"Line {error.lineno}, column {error.offset + 1} is no XML: "
            f"{expat.ErrorString(error.code)}",
            where=name,
            remedy="Correct the document, or name its format (--format)",
        ) from None


def xml_text(text: str, token: Token, *, folds: bool = True) -> Iterator[PassagePart]:
    """Yield the parts of a token of text.

    Args:
        text: the document.
        token: token of text, or a section of character data.
        folds: true if a line break stands for a space.
    """
    if token.kind == "cdata":
        yield PassagePart(token.start, token.end, "text", text[token.start + 9 : token.end - 3])
        return
    if folds:
        yield from folded_parts(text, (token.start, token.end), _LINE_BREAK, _REFERENCE)
    else:
        yield from text_parts(text, token.start, token.end, _REFERENCE, html.unescape)


def element_end(tokens: Sequence[Token], first: int) -> int:
    """Return the index of the token after an element.

    Args:
        tokens: tokens of the document.
        first: index of the element's first tag.
    """
    depth = 0
    for number in range(first, len(tokens)):
        depth += (tokens[number].kind == "start") - (tokens[number].kind == "end")
        if depth == 0:
            return number + 1
    return len(tokens)


@dataclass(frozen=True)
class XmlElement:
    """An element: its tokens, from its start tag to its end tag."""

    tokens: Sequence[Token]

    @property
    def tag(self) -> Token:
        """The start tag."""
        return self.tokens[0]

    @property
    def content(self) -> Sequence[Token]:
        """The tokens between the tags."""
        return self.tokens[1:-1]

    def children(self, *names: str) -> Iterator[XmlElement]:
        """Yield the child elements that have one of these names."""
        number = 0
        while number < len(self.content):
            after = number + 1
            if self.content[number].kind in ("start", "empty"):
                after = element_end(self.content, number)
                if self.content[number].name in names:
                    yield XmlElement(self.content[number:after])
            number = after

    def first(self, name: str) -> XmlElement | None:
        """Return the first element with a name, at any depth."""
        for number, token in enumerate(self.content):
            if token.kind == "start" and token.name == name:
                return XmlElement(self.content[number : element_end(self.content, number)])
        return None

    def space_before(self, text: str, child: XmlElement) -> str:
        """Return the white space in front of a child in the text of the document."""
        before = next(t for t, tag in pairwise(self.tokens) if tag.start == child.tag.start)
        space = text[before.start : before.end]
        return space if before.kind == "text" and not space.strip() else ""


def encode_xml(text: str, place: Surroundings) -> str:
    """Escape text between tags, and remove characters that XML cannot hold."""
    return encode_html(UNWRITABLE.sub(" ", text), place)


UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
