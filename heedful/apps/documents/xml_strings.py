"""Strings in XML: resources of Android and .NET, translation memories (TMX) and termbases (TBX)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from heedful.apps.documents.chosen_keys import ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import copied_string, string_passages
from heedful.apps.documents.passage import (
    Encode,
    Passage,
    PassagePart,
    Surroundings,
    text_parts,
)
from heedful.apps.documents.xliff import encode_cdata, inline_parts
from heedful.apps.documents.xml_markup import Token, element_end, encode_xml, xml_tokens
from heedful.errors import DataError

_ANDROID_ESCAPE = re.compile(r'\\(?:u[\da-fA-F]{4}|.)|"', re.DOTALL)


@dataclass(frozen=True)
class _Element:
    """An element: its tokens, from its start tag to its end tag."""

    tokens: Sequence[Token]

    @property
    def tag(self) -> Token:
        return self.tokens[0]

    @property
    def content(self) -> Sequence[Token]:
        """The tokens between the tags."""
        return self.tokens[1:-1]

    def children(self, *names: str) -> Iterator[_Element]:
        """Yield the elements directly inside it, those of some names or all."""
        number = 0
        while number < len(self.content):
            after = number + 1
            if self.content[number].kind in ("start", "empty"):
                after = element_end(self.content, number)
                if not names or self.content[number].name in names:
                    yield _Element(self.content[number:after])
            number = after

    def first(self, name: str) -> _Element | None:
        """Return the first element of a name at any depth."""
        for number, token in enumerate(self.content):
            if token.kind == "start" and token.name == name:
                return _Element(self.content[number : element_end(self.content, number)])
        return None


def _root(text: str, name: str, expected: str) -> _Element:
    tokens = list(xml_tokens(text, name))
    first = next(n for n, token in enumerate(tokens) if token.kind in ("start", "empty"))
    root = _Element(tokens[first : element_end(tokens, first)])
    if root.tag.name not in expected.split():
        raise DataError(
            f"The root is <{root.tag.name}>, not <{expected.split()[0]}>",
            where=name,
            remedy="Name the document's format (--format)",
        )
    return root


def read_android(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of Android's strings, arrays of strings and plurals.

    Args:
        text: text of the document.
        settings: settings of the document; `keys` selects strings by their names.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not XML, or the keys without a string.
    """
    keys = ChosenKeys(settings.keys)
    for each in _root(text, name, "resources").children("string", "string-array", "plurals"):
        path = [each.tag.attribute("name") or ""]
        if each.tag.attribute("translatable") == "false":
            continue
        if each.tag.name == "string" and keys.has(path):
            yield from _android_string(text, each.content)
        items = each.children("item") if each.tag.name != "string" else ()
        for number, item in enumerate(items):
            if keys.has([*path, item.tag.attribute("quantity") or number]):
                yield from _android_string(text, item.content)
    keys.check(name)


def _android_string(text: str, content: Sequence[Token]) -> Iterator[Passage]:
    if content and re.match(r"\s*[@?][\w.:+]*/?[\w.:]+\s*\Z", text[slice(*_range(content))]):
        return  # a reference to another resource
    # All elements are looks of words but <xliff:g>, which keeps what is inside.
    for parts, encode in _runs(text, content, lambda name: name != "g"):
        pieces = (piece for part in parts for piece in _android_parts(text, part))
        yield from string_passages(pieces, partial(_encode_android, encode))


def _range(tokens: Sequence[Token]) -> tuple[int, int]:
    return tokens[0].start, tokens[-1].end


def _runs(
    text: str, content: Sequence[Token], is_pair: Callable[[str], bool], *, folds: bool = True
) -> Iterator[tuple[Iterable[PassagePart], Encode]]:
    """Yield the parts between sections of character data, and those of each section.

    A section is written without references, so it is a string of its own.
    """
    for is_cdata, tokens in groupby(content, lambda token: token.kind == "cdata"):
        parts = inline_parts(text, list(tokens), is_pair, folds=folds)
        yield parts, encode_cdata if is_cdata else encode_xml


def _android_parts(text: str, part: PassagePart) -> Iterator[PassagePart]:
    if part.kind != "text" or part.end - part.start != len(part.text):
        yield part
        return
    for each in text_parts(text, part.start, part.end, _ANDROID_ESCAPE, _unescape_android):
        is_quote = text[each.start : each.end] == '"'  # keeps the white space up to the next one
        yield PassagePart(each.start, each.end, "single") if is_quote else each


def _unescape_android(escape: str) -> str:
    code = escape[1:]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return {"n": "\n", "t": "\t"}.get(code, code)


def _encode_android(encode: Encode, text: str, place: Surroundings) -> str:
    text = re.sub(r"[\\'\"]", r"\\\g<0>", text)
    if place.at_line_start and text[:1] in ("@", "?"):
        text = "\\" + text
    return encode(text, place)


def read_resx(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of .NET's resources: strings, but no files and other objects.

    Arguments and errors are those of `read_android`.
    """
    keys = ChosenKeys(settings.keys)
    for each in _root(text, name, "root").children("data"):
        key = each.tag.attribute("name") or ""
        is_object = each.tag.attribute("type") or each.tag.attribute("mimetype")
        value = each.first("value")
        # Names of designers, such as >>button.Name, hold no text.
        if is_object or value is None or key.startswith(">>") or not keys.has([key]):
            continue
        for parts, encode in _runs(text, value.content, lambda _: False, folds=False):
            yield from string_passages(parts, encode)
    keys.check(name)


def read_tmx(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of units of a translation memory that lack the target language.

    Args:
        text: text of the document.
        settings: settings of the document; `language` and `target_language` are those of a unit.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line that is not XML, or when the target language is not known.
    """
    yield from _missing(_root(text, name, "tmx"), text, settings, name, "tu", "tuv", "seg")


def read_tbx(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of entries of a termbase (TBX 2 or 3) that lack the target language.

    Arguments and errors are those of `read_tmx`.
    """
    root = _root(text, name, "tbx martif")
    yield from _missing(root, text, settings, name, "termEntry", "langSet", "term")
    yield from _missing(root, text, settings, name, "conceptEntry", "langSec", "term")


def _missing(
    root: _Element, text: str, settings: DocumentSettings, name: str, *names: str
) -> Iterator[Passage]:
    """Yield a passage for each unit with the source language and without the target language.

    Args:
        names: names of the element of a unit, of a language in it, and of the text of a language.
    """
    unit_name, language_name, text_name = names
    if settings.target_language is None:
        raise DataError(
            "Several languages can stand in it, and that of the translation is not known",
            where=name,
            remedy="Name it, for example: --target-language de",
        )
    for number, token in enumerate(root.tokens):
        if token.kind != "start" or token.name != unit_name:
            continue
        unit = _Element(root.tokens[number : element_end(root.tokens, number)])
        known: dict[str, _Element] = {}
        for each in unit.children(language_name):
            code = each.tag.attribute("xml:lang") or each.tag.attribute("lang") or ""
            known.setdefault(_primary(code), each)
        source = known.get(_primary(settings.language))
        found = source.first(text_name) if source is not None else None
        if source is None or found is None or _primary(settings.target_language) in known:
            continue
        parts = inline_parts(text, found.content, lambda name: name == "hi", folds=False)
        if passages := tuple(string_passages(parts, encode_xml)):
            wrap = _new_language(text, unit, source, found, settings.target_language)
            place = (source.tokens[-1].end, source.tokens[-1].end)
            yield copied_string(place, _range(found.content), passages, wrap)


def _primary(code: str) -> str:
    return re.split("[-_]", code)[0].casefold()


def _new_language(
    text: str,
    unit: _Element,
    source: _Element,
    found: _Element,
    code: str,
) -> Callable[[str], str]:
    """Return the function that writes a language as that of the source, with its elements."""
    # Attributes such as dates and people are those of the source, and are not copied.
    opened: list[Token] = []
    for token in source.tokens:
        if token.start > found.tag.start:
            break
        if token.kind == "start":
            opened.append(token)
        elif token.kind == "end":
            opened.pop()
    tags = [text[token.start + 1 : token.end - 1].split()[0] for token in opened]
    language = "xml:lang" if source.tag.attribute("xml:lang") is not None else "lang"
    number = next(n for n, token in enumerate(unit.tokens) if token.start == source.tag.start)
    space = unit.tokens[number - 1]
    indent = text[space.start : space.end] if space.kind == "text" else ""
    before = f'{indent}<{tags[0]} {language}="{code}">' + "".join(f"<{tag}>" for tag in tags[1:])
    after = "".join(f"</{tag}>" for tag in reversed(tags))
    return lambda content: before + content + after
