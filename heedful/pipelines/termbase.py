"""Terms of a termbase in TBX (ISO 30042), of version 2 (`martif`) or 3 (`tbx`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.parsers import expat

from heedful.errors import DataError

_ROOTS = ("martif", "tbx")
_ENTRIES = ("termEntry", "conceptEntry")
_LANGUAGES = ("langSet", "langSec")
_GROUPS = ("tig", "ntig", "termSec")
_CODE = "http://www.w3.org/XML/1998/namespace}lang"
_STATUS = "administrativeStatus"
_REFUSED = ("deprecated", "superseded", "obsolete")


@dataclass(frozen=True)
class Concept:
    """The terms of a concept in two languages.

    Args:
        line: number of the concept's line in the file, from 1.
        sources: terms of the source language, in the order of the file.
        targets: terms of the target language, preferred ones first; without deprecated ones.
    """

    line: int
    sources: tuple[str, ...]
    targets: tuple[str, ...]


def read_concepts(content: bytes, file: str, source: str, target: str) -> list[Concept]:
    """Return the concepts that have terms in both languages.

    Args:
        content: bytes of the termbase.
        file: name of the termbase, for messages.
        source, target: language codes (BCP 47). If no term has exactly this code, terms of a more
            general or more specific code serve: `en-US` for `en` and `en` for `en-US`.

    Raises:
        DataError: when the file is no termbase, declares entities, or lacks a language.
    """
    concepts: list[Concept] = []
    known: set[str] = set()
    for line, terms in _entries(content, file):
        known |= terms.keys()
        ours, theirs = _terms_of(terms, source), _terms_of(terms, target)
        # Whoever writes a deprecated term means the concept, but no translation should have it.
        allowed = [one for one in theirs if not one[1].startswith(_REFUSED)]
        allowed.sort(key=lambda one: not one[1].startswith("preferred"))
        if ours and allowed:
            sources, targets = (tuple(words for words, _ in each) for each in (ours, allowed))
            concepts.append(Concept(line, sources, targets))
    if not concepts:
        languages = ", ".join(sorted(known)) or "none"
        raise DataError(
            f"The termbase has no terms in both {source} and {target}",
            where=file,
            remedy=f"Its languages are: {languages}",
        )
    return concepts


_Terms = dict[str, list[tuple[str, str]]]
"""Terms and the status of each, by language code."""


def _terms_of(terms: _Terms, wanted: str) -> list[tuple[str, str]]:
    """Return the terms of a language."""
    subtags = {code: _subtags(code) for code in (*terms, wanted)}
    asked = subtags[wanted]
    own = [code for code in terms if subtags[code] == asked]
    near = [c for c in terms if all(a == b for a, b in zip(subtags[c], asked, strict=False))]
    return [term for code in own or near for term in terms[code]]


def _subtags(code: str) -> list[str]:
    return code.lower().replace("_", "-").split("-")


def _entries(content: bytes, file: str) -> Iterator[tuple[int, _Terms]]:
    """Yield the line and the terms of each concept."""
    root, entries = _parsed(content, file)
    if root.lower() not in _ROOTS:
        raise _wrong(f"The root is <{root}>, not <tbx> or <martif>", file)
    for line, entry in entries:
        terms: _Terms = {}
        for section in _inside(entry, *_LANGUAGES):
            found = terms.setdefault(section.get(_CODE) or section.get("lang") or "", [])
            for group in _inside(section, *_GROUPS):
                # <termNote type="administrativeStatus"> or, with tags of its own, the element.
                status = "".join(
                    "".join(each.itertext()).strip()
                    for each in group.iter()
                    if _STATUS in (each.tag, each.get("type"))
                )
                names = (" ".join("".join(t.itertext()).split()) for t in _inside(group, "term"))
                found += [(words, status) for words in names if words]
        yield line, terms


def _parsed(content: bytes, file: str) -> tuple[str, list[tuple[int, ElementTree.Element]]]:
    """Return the root's name, and the line and element of each concept; names lack namespaces."""
    builder = ElementTree.TreeBuilder()
    # ElementTree's own parser tells nobody the line of an element.
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    entries: list[tuple[int, ElementTree.Element]] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        element = builder.start(_local(name), attributes)
        if element.tag in _ENTRIES:
            entries.append((parser.CurrentLineNumber, element))

    def refuse_declared(*_: object) -> None:
        # An entity may grow to gigabytes; a termbase needs none.
        raise _wrong(f"Line {parser.CurrentLineNumber} declares an entity", file)

    def refuse_skipped(name: str, _: object) -> None:
        # expat leaves out in silence what the DTD of another file may declare.
        raise _wrong(f"Line {parser.CurrentLineNumber} has an undefined entity: &{name};", file)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: builder.end(_local(name))
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler, parser.SkippedEntityHandler = refuse_declared, refuse_skipped
    try:
        parser.Parse(content, True)
    # Encodings that expat does not know raise errors of two other types.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise _wrong(f"The termbase cannot be read: {error}", file) from None
    return builder.close().tag, entries


def _inside(element: ElementTree.Element, *names: str) -> Iterator[ElementTree.Element]:
    return (each for each in element.iter() if each.tag in names)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _wrong(text: str, file: str) -> DataError:
    return DataError(text, where=file, remedy="Give TBX of version 2 or 3, or text with tabs")
