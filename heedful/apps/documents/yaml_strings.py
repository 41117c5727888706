"""Strings of YAML, such as the locales of Rails: values are text, keys and comments are not."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from heedful.apps.documents.chosen_keys import ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import copied_string, string_passages
from heedful.apps.documents.passage import (
    Passage,
    PassagePart,
    Surroundings,
    lines_of,
    text_parts,
)
from heedful.errors import ConfigError, DataError

_FOLD = r"[ \t]*(?:\r\n|\n|\r)(?:[ \t]|\r\n|\n|\r)*"
"""Line breaks in a scalar that is no block: a single one stands for a space."""
_ESCAPES = {
    "'": re.compile(rf"''|{_FOLD}"),
    '"': re.compile(
        r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
        rf"|x[\da-fA-F]{{2}}|u[\da-fA-F]{{4}}|U[\da-fA-F]{{8}}|(?:\r\n|\n|\r)[ \t]*|.)|{_FOLD}"
    ),
    None: re.compile(_FOLD),
}
_CODES = {"0": "\0", "a": "\a", "v": "\v", "e": "\x1b", "N": "\x85", "_": "\xa0"}
_CODES |= {"L": "\u2028", "P": "\u2029", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNWRITABLE = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that YAML must escape, and line breaks."""
_DIRECTIVE = re.compile(r"%[-_0^#]?[aAbBcdDeFHIjklmMpPrRSTuUwxXyYzZ]\b")
"""Directives of date and time formats; a text with two or more is such a format."""
_SYMBOL = re.compile(r":[\w/]+")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")


@dataclass
class _Collection:
    """A mapping or list that is being read.

    Args:
        is_flow: true if the collection, or a surrounding one, is written in brackets.
        is_key: true if the collection is part of a key.
        step: key or index of the current value; None before a key.
    """

    is_mapping: bool
    is_flow: bool
    is_key: bool
    step: str | int | None

    def advance(self, key: str | None = None) -> None:
        """Advance to the next value; in a mapping, to its key."""
        if isinstance(self.step, int) and not self.is_mapping:
            self.step += 1
        else:
            self.step = key if self.step is None else None


def read_yaml(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of one or several YAML documents.

    See `Reader`; `keys` selects the values that are text.
    """
    keys = ChosenKeys(settings.keys)
    yield from yaml_passages(text, keys, name)
    keys.check(name)


def yaml_passages(text: str, keys: ChosenKeys, name: str) -> Iterator[Passage]:
    """Yield the passages of the strings that keys select.

    Args:
        text: text with one or several YAML documents.
        keys: keys of the strings.
        name: name of the document, for messages.

    Raises:
        ConfigError: when the library that reads YAML is missing.
        DataError: naming the line that is no YAML.
    """
    if importlib.util.find_spec("yaml") is None:
        raise ConfigError(
            "Reading YAML needs the package PyYAML",
            remedy="Install it with: pip install 'heedful[documents]'",
        )
    import yaml

    try:
        for path, event, is_flow in _scalars(yaml.SafeLoader(text)):
            # Plain scalars may be symbols of Rails.
            is_symbol = event.style is None and _SYMBOL.fullmatch(event.value)
            if keys.has(path) and not is_symbol:
                yield from _passages(text, event, is_flow)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"Line {mark.line + 1}, column {mark.column + 1}" if mark else "The document"
        raise DataError(
            f"{place} is no YAML: {error.problem or error.context}",
            where=name,
            remedy="Correct the document, or name its format (--format)",
        ) from None
    except yaml.reader.ReaderError as error:
        raise DataError(
            f"YAML cannot hold the character U+{error.character:04X}",
            where=f"{name}, line {text.count(chr(10), 0, error.position) + 1}",
            remedy="Remove it",
        ) from None


def _scalars(loader: Any) -> Iterator[tuple[list[str | int], Any, bool]]:
    """Yield the path of each string value, its event, and whether it is inside brackets."""
    import yaml

    stack: list[_Collection] = []
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        elif not isinstance(event, yaml.NodeEvent):
            continue
        inside = stack[-1] if stack else None
        is_key = inside is not None and (inside.is_key or inside.step is None)
        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            is_flow = event.flow_style or (inside is not None and inside.is_flow)
            stack.append(_Collection(is_mapping, is_flow, is_key, None if is_mapping else 0))
            continue  # the value ends with the collection
        value = getattr(event, "value", "")
        if isinstance(event, yaml.ScalarEvent) and not is_key and event.tag in _TEXT_TAGS:
            kind = loader.resolve(yaml.ScalarNode, value, event.implicit)
            if value and (event.tag or kind == _TEXT_TAGS[-1]):
                path = [step for each in stack if (step := each.step) is not None]
                yield path, event, inside is not None and inside.is_flow
        if inside is not None:
            inside.advance(value)


def _passages(text: str, event: Any, is_flow: bool) -> Iterator[Passage]:
    properties = _PROPERTIES.match(text, event.start_mark.index)
    assert properties is not None
    start = properties.end() if event.anchor or event.tag else properties.start()
    end = event.end_mark.index
    directives = _DIRECTIVE.findall(event.value)
    if directives and not re.search(r"[^\W\d_]", _DIRECTIVE.sub("", event.value)):
        return
    if len(directives) > 1:
        part = PassagePart(start, end, "text", event.value)
        yield Passage(start, end, (part,), _plain, left_out="a format of dates or times")
    elif event.style in ("|", ">"):
        parts = _block_parts(text, start, end, is_folded=event.style == ">")
        yield from string_passages(parts, _plain)
    elif event.style is not None:
        parts = _flow_parts(text, start + 1, end - 1, event.style)
        yield from string_passages(parts, _double_quoted if event.style == '"' else _single_quoted)
    elif found := tuple(string_passages(_flow_parts(text, start, end, None), _plain)):
        # The whole scalar decides whether quotes are needed.
        wrap = partial(_quoted_if_needed, is_flow)
        yield copied_string((start, end), (start, end), found, wrap=wrap)


def _flow_parts(text: str, start: int, end: int, style: str | None) -> Iterator[PassagePart]:
    """Yield the parts of a plain or quoted scalar."""
    for part in text_parts(text, start, end, _ESCAPES[style], _unescaped):
        is_fold = part.text == " " and text[part.start : part.end].strip(" \t")[:1] in ("\n", "\r")
        yield PassagePart(part.start, part.end, "soft", " ") if is_fold else part


def _unescaped(escape: str) -> str:
    if escape[0] == "\\":
        code = escape[1:]
        if code[0] in "xuU" and len(code) > 2:
            halves = bytes.fromhex(
                "".join(f"{int(each, 16):08x}" for each in code[1:].split("\\u"))
            )
            text = halves.decode("utf-32-be", "surrogatepass")
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return "" if code[0] in "\r\n" else _CODES.get(code, code)
    if escape == "''":
        return "'"
    breaks = len(re.findall(r"\r\n|\n|\r", escape))
    return " " if breaks == 1 else "\n"


def _block_parts(text: str, start: int, end: int, *, is_folded: bool) -> Iterator[PassagePart]:
    """Yield the parts of a block scalar: its lines, or its paragraphs if line breaks are spaces."""
    lines = [(start + a, start + b) for a, b in lines_of(text[start:end])][1:]
    depths = [len(text[a:b]) - len(text[a:b].lstrip(" ")) for a, b in lines]
    least = min((d for d, (a, b) in zip(depths, lines, strict=True) if d < b - a), default=0)
    done, was_folded = -1, False
    for depth, (a, b) in zip(depths, lines, strict=True):
        # Lines that are indented further keep their line breaks.
        folds = is_folded and depth == least and text[a + depth : b].strip() != ""
        folds = folds and text[a + depth] != "\t"
        if done >= 0:
            is_soft = folds and was_folded
            yield (
                PassagePart(done, a + depth, "soft", " ")
                if is_soft
                else PassagePart(done, a + depth, "text", "\n")
            )
        yield from text_parts(text, a + depth, b)
        done, was_folded = b, folds


def _plain(text: str, place: Surroundings) -> str:
    return _UNWRITABLE.sub(" ", text)


def _single_quoted(text: str, place: Surroundings) -> str:
    return _plain(text, place).replace("'", "''")


def _double_quoted(text: str, place: Surroundings) -> str:
    return json.dumps(_plain(text, place), ensure_ascii=False)[1:-1]


def _quoted_if_needed(is_flow: bool, content: str) -> str:
    """Return a plain scalar, in quotes if it would otherwise have another meaning."""
    import yaml

    around = f"[{content}]" if is_flow else f"x: {content}\n"
    try:
        found = [event for _, event, _ in _scalars(yaml.SafeLoader(around))]
        read = [event.value for event in yaml.parse(around) if isinstance(event, yaml.ScalarEvent)]
    except yaml.YAMLError:
        found = read = []
    wanted = re.sub(_FOLD, lambda fold: _unescaped(fold[0]), content)
    is_same = len(found) == 1 and len(read) == 2 - is_flow and found[0].style is None
    if is_same and found[0].value == wanted and not _SYMBOL.fullmatch(content):
        return content
    return '"' + content.replace("\\", "\\\\").replace('"', '\\"') + '"'
