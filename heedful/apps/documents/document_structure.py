"""The structure of a document, read without the code of the readers for translation.

The structure is the keys, tags, times, links and placeholders, which a translation must not change.
A document and its translation are compared by their structures.
"""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from xml.etree.ElementTree import Element

from heedful.apps.documents.chosen_keys import FRONT_MATTER_KEYS, ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.text.protected_spans import span_pattern

_KEPT = re.compile(
    span_pattern(["placeholders"]) + r"|</?[A-Za-z][\w:.-]*\s*/?>|<[A-Za-z][\w:.-]*\s[^<>]*=[^<>]*>"
)
_ORDER = re.compile(r"%\d+\$")
_BRANCH = re.compile(r"((?:plural|select|selectordinal) *,|\}) *(?:=\d+|\w+) *\{(?=[\w ]+\})")
_TRANSLATED_ATTRIBUTES = frozenset(
    ("alt", "title", "placeholder", "aria-label", "content", "label", "summary")
)
_SUBTITLE_TAG = re.compile(r"</?[a-zA-Z][^<>\n]*>|<[\d:.]+>|\{\\[^{}\n]*\}")
UNREADABLE = (ValueError, SyntaxError, KeyError, csv.Error, zipfile.BadZipFile, AssertionError)
"""Errors that readers of the standard library raise for invalid documents."""
_UNTRANSLATED = frozenset(("new", "needs-translation", "initial"))


@dataclass(frozen=True)
class StructurePart:
    """A part of the structure of a document.

    Args:
        place: place of the part, for messages.
        shape: facts that a translation must not change.
        text: text whose placeholders and tags must all occur as often as before. New ones are
            allowed, since ordinary words may look like placeholders.
    """

    place: str
    shape: Hashable
    text: str = ""


Structure = Iterator[StructurePart]


def difference(before: Iterable[StructurePart], after: Iterable[StructurePart]) -> str | None:
    """Return the first difference between two structures, or None.

    Args:
        before, after: structures of a document and of its translation.
    """
    try:
        ones = list(before)
    except UNREADABLE:
        return None  # an invalid document has no structure to compare
    try:
        others = list(after)
    except UNREADABLE as error:
        return f"it cannot be read again: {error}"
    for one, other in zip(ones, others, strict=False):
        if (lost := _lost_placeholder(one.text, other.text)) is not None:
            return f"{one.place}: {lost}"
        if one.shape != other.shape:
            return f"{one.place}: {_changed(one.shape, other.shape)}"
    if len(ones) != len(others):
        longer = ones if len(ones) > len(others) else others
        place = longer[min(len(ones), len(others))].place
        return f"{place}: {'missing' if longer is ones else 'new'} in the translation"
    return None


def _lost_placeholder(before: str, after: str) -> str | None:
    """Describe a placeholder or tag that occurs less or more often than before, or return None."""
    # `%s %d` may become `%2$d %1$s`. A branch of an ICU message looks like a placeholder, and a
    # placeholder behind a message like a branch: `{n, plural, …} and {name}`.
    pairs = [[_ORDER.sub("%", text) for text in (before, after)]]
    pairs.append([_BRANCH.sub(r"\1 ", text) for text in pairs[0]])
    kept = [Counter(match[0] for match in _KEPT.finditer(text)) for text in pairs[1]]
    for match in _KEPT.finditer(pairs[1][0]):
        # Neither %seven nor %sé contains %s; letters of another script may follow it directly.
        whole = re.compile(
            re.escape(match[0]) + (r"(?![A-Za-zÀ-ɏ\d_])" if match[0][-1].isalnum() else "")
        )
        counts = [[len(whole.findall(text)) for text in pair] for pair in pairs]
        # In `%s1%s` the second one is a text for the reader, which a translation may change.
        counts.append([kept_in[match[0]] for kept_in in kept])
        if all(count != found for count, found in counts):
            count, found = counts[1]
            return f"{match[0]} is there {found} times, not {count}"
    return None


def _changed(one: Hashable, other: Hashable) -> str:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        lost, new = sorted(one - other, key=repr)[:1], sorted(other - one, key=repr)[:1]
        return f"{lost!r} became {new!r}"[:200]
    return f"{one!r} became {other!r}"[:200]


def _unescaped(text: str) -> str:
    return re.sub(r"\\[nt]", " ", text)  # line breaks of Android and Apple


def _counted(things: Iterable[Hashable]) -> frozenset[Any]:
    return frozenset(Counter(things).items())


def text_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the paragraphs of a plain text."""
    for number, block in enumerate(re.split(r"\n\s*\n", text.replace("\r\n", "\n")), start=1):
        yield StructurePart(f"paragraph {number}", bool(block.strip()))


def json_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the values of one or several JSON documents."""
    keys = ChosenKeys(settings.keys)
    decoder = json.JSONDecoder()
    here = 0
    while here < len(text.rstrip()):
        value, here = decoder.raw_decode(text, here + len(text[here:]) - len(text[here:].lstrip()))
        yield from _values(value, (), keys)


def _values(value: Any, path: tuple[str | int, ...], keys: ChosenKeys) -> Structure:
    place = ".".join(map(str, path)) or "the document"
    if isinstance(value, (dict, list)):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        yield StructurePart(place, (type(value).__name__, *(key for key, _ in pairs)))
        for key, inner in pairs:
            yield from _values(inner, (*path, key), keys)
    elif isinstance(value, str) and keys.has(path):
        yield StructurePart(place, "a string", value)
    else:
        yield StructurePart(place, repr(value))


def yaml_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the nodes of YAML."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml if PyYAML has it
    keys = ChosenKeys(settings.keys)
    seen: set[int] = set()
    try:
        for document in yaml.compose_all(text, Loader=loader):
            yield from _nodes(document, (), keys, seen)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _nodes(node: Any, path: tuple[str | int, ...], keys: ChosenKeys, seen: set[int]) -> Structure:
    place = ".".join(map(str, path)) or "the document"
    if id(node) in seen or isinstance(node.value, str):  # an alias is the same node as its anchor
        is_text = node.tag == "tag:yaml.org,2002:str" and keys.has(path)
        shape = (node.tag, "" if is_text or id(node) in seen else node.value)
        yield StructurePart(place, shape, node.value if is_text else "")
        return
    seen.add(id(node))
    yield StructurePart(place, (node.tag, len(node.value)))
    for number, inner in enumerate(node.value):
        key, value = inner if isinstance(inner, tuple) else (None, inner)
        step = number if key is None else str(key.value)
        if key is not None:
            yield StructurePart(f"{place}.{step}", (key.tag, step))
        yield from _nodes(value, (*path, step), keys, seen)


def strings_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the pairs of Apple's .strings."""
    tokens = re.findall(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*|[=;]|[^\s"=;]+', text, re.DOTALL)
    tokens = [token for token in tokens if not token.startswith(("/*", "//"))]
    for key, equals, value, end in zip(*(tokens[n::4] for n in range(4)), strict=True):
        yield StructurePart(key, (key, equals, end), _unescaped(value))


def xcstrings_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the strings of an Apple catalogue; the target language may be missing."""
    data = json.loads(text)
    for key, entry in data["strings"].items():
        languages = entry.get("localizations", {})
        target = languages.pop(settings.target_language, None)
        source = languages.get(data.get("sourceLanguage"))
        if not languages:
            entry.pop("localizations", None)
        yield StructurePart(key, repr(entry), _texts(target or source or {"value": key}))
    yield StructurePart("the catalogue", repr({**data, "strings": list(data["strings"])}))


def _texts(localization: Any) -> str:
    """Return the texts of a localisation of Apple's catalogues."""
    if not isinstance(localization, dict):
        return ""
    inner = [_texts(each) for each in localization.values()]
    return "\n".join([str(localization.get("value", "")), *inner])


def po_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the messages of a gettext catalogue.

    Raises:
        ValueError: when it is no catalogue.
    """
    from babel.messages.pofile import PoFileError, read_po

    line = re.compile(r'\s*(?:#.*|(?:msg\w+(?:\[\d+\])?\s*)?"(?:[^"\\\r\n]|\\.)*"\s*)?')
    for number, each in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        if not line.fullmatch(each):
            raise ValueError(f"line {number} has a string that does not end: {each[:40]}")
    try:
        catalogue = read_po(io.StringIO(text), abort_invalid=True)
    except PoFileError as error:
        raise ValueError(str(error)) from None
    for message in catalogue:
        sources = message.id if isinstance(message.id, tuple) else (message.id,)
        targets = message.string if isinstance(message.string, tuple) else (message.string,)
        shape = (sources, message.context, len(targets), tuple(message.auto_comments))
        for number, target in enumerate(targets):
            written = str(target or sources[min(number, len(sources) - 1)])
            edges = (written.startswith("\n"), written.endswith("\n"))  # as msgfmt checks
            is_header = not sources[0]
            text = "" if is_header else written
            yield StructurePart(f"message {sources[0][:40]!r}", (shape, is_header or edges), text)


def html_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the tags of a page."""
    reader = _Tags(convert_charrefs=False)
    reader.feed(text)
    reader.close()
    yield StructurePart("tags", _counted(reader.found))


class _Tags(HTMLParser):
    """Collects tags, comments and declarations."""

    def __init__(self, *, convert_charrefs: bool) -> None:
        super().__init__(convert_charrefs=convert_charrefs)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = [f"{k}={v}" if k not in _TRANSLATED_ATTRIBUTES else k for k, v in attrs]
        self.found.append(f"<{' '.join([tag, *kept])}>")

    def handle_endtag(self, tag: str) -> None:
        self.found.append(f"</{tag}>")

    def handle_comment(self, data: str) -> None:
        self.found.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.found.append(f"<!{decl}>")


def markdown_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the blocks of Markdown, with the links, images and code in each."""
    from markdown_it import MarkdownIt

    # Indented lines below these marks are text in MkDocs and Pandoc, and code in CommonMark.
    has_indented_text = re.search(
        r"^[ \t]*(?:(?:!!!|\?\?\?|===)[!+]? ?[\w\"]|\[\^[^\]\n]+\]:|[:~][ \t])", text, re.MULTILINE
    )
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    front = re.match(r"---\n(.*?\n)---\n", text, flags=re.DOTALL)
    above = 0
    if front is not None:
        above = front[0].count("\n")
        with suppress(ValueError):  # templates are no YAML
            yield from yaml_structure(front[1], DocumentSettings(keys=FRONT_MATTER_KEYS))
    for token in parser.parse(text[front.end() :] if front is not None else text):
        line = token.map[0] + 1 + above if token.map else 0
        inner = [each for each in token.children or () if each.type not in ("text", "softbreak")]
        shape = _counted(
            (each.type, each.attrGet("href"), each.attrGet("src"), _raw(each.type, each.content))
            for each in inner
        )
        is_code = token.type == "fence" or (token.type == "code_block" and not has_indented_text)
        own = token.content if is_code else ""
        yield StructurePart(f"line {line}", (token.type, token.tag, own, shape))


def _raw(kind: str, content: str) -> str:
    return content if kind in ("code_inline", "html_inline") else ""


def subtitle_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the times and tags of subtitles, and whether they have text."""
    cues = re.split(r"^([ \t]*[\d:]+[.,]\d+\s*-->.*)$", text, flags=re.MULTILINE)
    for times, said in zip(cues[1::2], cues[2::2], strict=True):
        # An empty line and the next subtitle's number; a number right after the times is said.
        words = re.sub(r"\n[ \t\r]*\n\s*\d+\s*\Z", "", _SUBTITLE_TAG.sub("", said))
        yield StructurePart(times.strip(), (times, bool(words.strip())))
    is_vtt = text.startswith("WEBVTT")  # in WebVTT, braces are text
    tags = (tag for tag in _SUBTITLE_TAG.findall(text) if tag[0] == "<" or not is_vtt)
    yield StructurePart("tags", _counted(tags))


def csv_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the rows of a table, with the cells that are not translated."""
    from heedful.apps.documents.table_cells import delimiter_of

    delimiter = settings.delimiter or delimiter_of(text)
    yield from _rows(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), settings)


def tsv_structure(text: str, settings: DocumentSettings) -> Structure:
    """Yield the rows of tab-separated values, which have no quotes."""
    yield from _rows((line.split("\t") for line in re.split(r"\r\n|\n|\r", text)), settings)


def _rows(rows: Iterable[list[str]], settings: DocumentSettings) -> Structure:
    names: list[str] = []
    for number, cells in enumerate(rows, start=1):
        names = names or [str(n) for n in range(1, len(cells) + 1)]
        if number == 1 and settings.header:
            names = [name.strip() for name in cells]
        kept, texts = list(cells), list[str]()
        for n in range(len(cells)) if number > 1 or not settings.header else ():
            if {str(n + 1), *names[n : n + 1]} & set(settings.columns):
                texts.append(cells[n])
                kept[n] = ""
        yield StructurePart(f"row {number}", (len(cells), tuple(kept)), "\n".join(texts))


def xml_structure(
    *texts: str, unit: str = "", source: str = "source", target: str = "target", text: str = ""
) -> Callable[[str, DocumentSettings], Structure]:
    """Return the function that yields the elements of a format in XML.

    Args:
        texts: names of the elements whose text is translated.
        unit: names of the elements that hold a text and its translation, if the format has any.
        source, target: names of the elements of text and translation; if the names are equal, the
            language distinguishes them.
        text: name of the element inside source and target that holds the text; if empty, they hold
            it.
    """

    def structure(document: str, settings: DocumentSettings) -> Structure:
        root = ElementTree.fromstring(re.sub(r"\A\s*<\?xml[^>]*\?>", "", document))
        yield from _elements(root, "", settings)

    def _elements(element: Element, path: str, settings: DocumentSettings) -> Structure:
        name = _local(element)
        label = element.get("name") or element.get("id") or ""
        place = f"{path}/{name}" + (f"[{label}]" if label else "")
        attributes = _counted((k, v) for k, v in element.items() if k != "state")
        if name in texts:
            inner = _counted((each.tag, *sorted(each.items())) for each in element.iter())
            yield StructurePart(place, (inner, attributes), _unescaped("".join(element.itertext())))
            return
        children = list(element)
        if name in unit.split():
            filled = next((each for each in children if _is_target(each, settings)), None)
            first = next((each for each in children if _is_source(each, settings)), None)
            chosen = first if filled is None or not _is_filled(filled, element) else filled
            if chosen is not None:
                chosen = next((each for each in chosen.iter() if _local(each) == text), chosen)
                codes = _counted(_local(each) for each in list(chosen.iter())[1:])
                yield StructurePart(place, codes, "".join(chosen.itertext()))
            children = [each for each in children if not _is_target(each, settings)]
        words = [element.text or "", *(each.tail or "" for each in element)]
        yield StructurePart(place, (element.tag, attributes, " ".join(" ".join(words).split())))
        for each in children:
            yield from _elements(each, place, settings)

    def _is_target(element: Element, settings: DocumentSettings) -> bool:
        is_named = _local(element) in target.split()
        return is_named and (source != target or _speaks(element, settings.target_language))

    def _is_source(element: Element, settings: DocumentSettings) -> bool:
        is_named = _local(element) in source.split()
        return is_named and (source != target or _speaks(element, settings.language))

    return structure


def _speaks(element: Element, language: str | None) -> bool:
    code = element.get("{http://www.w3.org/XML/1998/namespace}lang") or element.get("lang") or ""
    return re.split("[-_]", code)[0].lower() == re.split("[-_]", language or "?")[0].lower()


def _is_filled(target: Element, unit: Element) -> bool:
    state = target.get("state") or unit.get("state")
    return state not in _UNTRANSLATED and bool("".join(target.itertext()) or len(target))


def _local(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


_LOOK = frozenset(
    ("r", "rPr", "t", "proofErr", "lastRenderedPageBreak", "noBreakHyphen", "span", "s")
)
"""Elements of runs, whose number changes when formatting moves to other words, and hyphens, since
another word may have none."""


def archive_structure(data: bytes, settings: DocumentSettings, where: str) -> Structure:
    """Yield the files of an office document, and the paragraphs of its XML files."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            yield StructurePart(name, name)
            content = archive.read(name)
            if not content.lstrip(b"\xef\xbb\xbf \r\n").startswith(b"<?xml"):
                continue
            root = ElementTree.fromstring(content)
            if "openxmlformats" in root.tag:
                # Word shows only text in elements that also hold text in the source document.
                yield StructurePart(name, frozenset(_with_text(root)))
            for number, element in enumerate(each for each in root.iter() if _local(each) == "p"):
                yield StructurePart(f"{name}, paragraph {number + 1}", _counted(_names(element)))


def _names(element: Element) -> Iterator[str]:
    """Yield the names of elements except those of formatting, whose number depends on the runs."""
    name = _local(element)
    if name not in _LOOK:
        yield name
    for each in element if name != "rPr" else ():
        yield from _names(each)


def _with_text(root: Element) -> Iterator[str]:
    for element in root.iter():
        if (element.text or "").strip():
            yield _local(element)
        yield from (f"behind {_local(each)}" for each in element if (each.tail or "").strip())


STRUCTURES: dict[str, Callable[[str, DocumentSettings], Structure]] = {
    "text": text_structure,
    "html": html_structure,
    "markdown": markdown_structure,
    "srt": subtitle_structure,
    "vtt": subtitle_structure,
    "po": po_structure,
    "json": json_structure,
    "yaml": yaml_structure,
    "strings": strings_structure,
    "xcstrings": xcstrings_structure,
    "csv": csv_structure,
    "tsv": tsv_structure,
    "xliff": xml_structure(unit="trans-unit segment"),
    "android": xml_structure("string", "item"),
    "resx": xml_structure("value"),
    "tmx": xml_structure(unit="tu", source="tuv", target="tuv", text="seg"),
    "tbx": xml_structure(
        unit="termEntry conceptEntry",
        source="langSet langSec",
        target="langSet langSec",
        text="term",
    ),
}
"""Functions that yield the structure, for each format that is a single text."""
