"""Strings in XML: resources of Android and .NET, translation memories (TMX), termbases (TBX)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

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
from heedful.apps.documents.xliff import inline_parts, text_runs
from heedful.apps.documents.xml_markup import (
    Token,
    XmlElement,
    element_end,
    encode_xml,
    xml_tokens,
)
from heedful.errors import DataError

_ANDROID_ESCAPE = re.compile(r'\\(?:u[\da-fA-F]{4}|.)|"', re.DOTALL)


def _root(text: str, name: str, expected: str) -> XmlElement:
    tokens = list(xml_tokens(text, name))
    first = next(n for n, token in enumerate(tokens) if token.kind in ("start", "empty"))
    root = XmlElement(tokens[first : element_end(tokens, first)])
    if root.tag.name not in expected.split():
        raise DataError(
            f"The root is <{root.tag.name}>, not <{expected.split()[0]}>",
            where=name,
            remedy="Name the document's format (--format)",
        )
    return root


def read_android(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of Android's strings, arrays of strings and plurals; see `Reader`."""
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
    # All elements format words, except <xliff:g>, whose content is kept.
    for parts, encode in text_runs(text, content, lambda name: name != "g"):
        pieces = (piece for part in parts for piece in _android_parts(text, part))
        yield from string_passages(pieces, partial(_encode_android, encode))


def _range(tokens: Sequence[Token]) -> tuple[int, int]:
    return tokens[0].start, tokens[-1].end


def _android_parts(text: str, part: PassagePart) -> Iterator[PassagePart]:
    if part.kind != "text" or part.end - part.start != len(part.text):
        yield part
        return
    for each in text_parts(text, part.start, part.end, _ANDROID_ESCAPE, _unescape_android):
        is_quote = text[each.start : each.end] == '"'  # white space is kept up to the next quote
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
    """Yield the passages of .NET resources: strings, but not files and other objects.

    See `Reader`.
    """
    keys = ChosenKeys(settings.keys)
    for each in _root(text, name, "root").children("data"):
        key = each.tag.attribute("name") or ""
        is_object = each.tag.attribute("type") or each.tag.attribute("mimetype")
        value = each.first("value")
        # Entries of form designers, such as >>button.Name, hold no text.
        if is_object or value is None or key.startswith(">>") or not keys.has([key]):
            continue
        for parts, encode in text_runs(text, value.content, lambda _: False, folds=False):
            yield from string_passages(parts, encode)
    keys.check(name)


def read_tmx(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of units of a translation memory that lack the target language.

    See `Reader`; `language` and `target_language` select the texts of a unit, and a `DataError` is
    raised if the second is unset.
    """
    yield from _missing(_root(text, name, "tmx"), text, settings, name, "tu", "tuv", "seg")


def read_tbx(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of entries of a termbase (TBX 2 or 3) that lack the target language.

    See `read_tmx`.
    """
    root = _root(text, name, "tbx martif")
    yield from _missing(root, text, settings, name, "termEntry", "langSet", "term")
    yield from _missing(root, text, settings, name, "conceptEntry", "langSec", "term")


def _missing(
    root: XmlElement, text: str, settings: DocumentSettings, name: str, *names: str
) -> Iterator[Passage]:
    """Yield a passage for each unit with the source language and without the target language.

    Args:
        names: names of three elements: the unit, a language in it, and the text of the language.
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
        unit = XmlElement(root.tokens[number : element_end(root.tokens, number)])
        known: dict[str, XmlElement] = {}
        for each in unit.children(language_name):
            code = each.tag.attribute("xml:lang") or each.tag.attribute("lang") or ""
            known.setdefault(_primary(code), each)
        source = known.get(_primary(settings.language))
        found = source.first(text_name) if source is not None else None
        if source is None or found is None or _primary(settings.target_language) in known:
            continue
        parts = inline_parts(text, found.content, lambda name: name == "hi", folds=False)
        if passages := tuple(string_passages(parts, encode_xml)):
            tags = _new_language(text, unit, source, found, settings.target_language)
            place = (source.tokens[-1].end, source.tokens[-1].end)
            yield copied_string(place, _range(found.content), passages, *tags)


def _primary(code: str) -> str:
    return re.split("[-_]", code)[0].casefold()


def _new_language(
    text: str, unit: XmlElement, source: XmlElement, found: XmlElement, code: str
) -> tuple[str, str]:
    """Return opening and closing tags for a text in another language, like those of the source."""
    # Attributes such as dates and authors describe the source only, so they are not copied.
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
    indent = unit.space_before(text, source)
    before = f'{indent}<{tags[0]} {language}="{code}">' + "".join(f"<{tag}>" for tag in tags[1:])
    return before, "".join(f"</{tag}>" for tag in reversed(tags))
