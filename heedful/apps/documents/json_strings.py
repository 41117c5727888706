"""Strings of JSON and JSON Lines: values are text, keys are not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from heedful.apps.documents.chosen_keys import ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import string_passages
from heedful.apps.documents.passage import Passage, Surroundings, text_parts
from heedful.errors import DataError

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|[{}\[\],:]|[^\s{}\[\],:"]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|u.{4}|.)")


def read_json(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of one JSON document or of several (JSON Lines).

    See `Reader`; `keys` selects the values that are text.
    """
    check_json(text, name)
    keys = ChosenKeys(settings.keys)
    for path, start, end in _strings(text):
        if keys.has(path):
            _check_text(text, start, end, name)
            yield from value_passages(text, start, end)
    keys.check(name)


def check_json(text: str, name: str) -> None:
    """Parse all documents, so that errors are found first; see `read_json` for the arguments."""
    decoder = json.JSONDecoder()
    try:
        start = skip_space(text, 0)
        while True:
            _, end = decoder.raw_decode(text, start)
            start = skip_space(text, end)
            if start == len(text):
                return
            if not re.search(r"[\r\n]", text[end:start]):
                raise json.JSONDecodeError("Extra data", text, start)
    except json.JSONDecodeError as error:
        raise DataError(
            f"Line {error.lineno}, column {error.colno} is no JSON: {error.msg}",
            where=name,
            remedy="Correct the document, or name its format (--format)",
        ) from None
    except RecursionError:
        raise DataError("The document is nested too deeply", where=name) from None


def _check_text(text: str, start: int, end: int, name: str) -> None:
    """Refuse a lone surrogate, which JSON can escape and UTF-8 cannot encode."""
    try:
        json.loads(text[start - 1 : end + 1]).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise DataError(
            f"A string has half a surrogate pair (U+{ord(half[0]):04X}), which is not a character",
            where=f"{name}, line {text.count(chr(10), 0, start) + 1}",
            remedy="Correct the document",
        ) from None


def skip_space(text: str, start: int) -> int:
    """Return the place of the first character that is no white space."""
    match = re.compile(r"[ \t\r\n]*").match(text, start)
    assert match is not None
    return match.end()


def _strings(text: str) -> Iterator[tuple[tuple[str | int, ...], int, int]]:
    """Yield the path of each string value, and the range inside its quotes."""
    path: list[str | int] = []
    is_key = False
    pending = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            path.append("" if token == "{" else 0)
            is_key = token == "{"
        elif token in "}]":
            path.pop()
            is_key = False
        elif token == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else ""
            is_key = isinstance(last, str)
        elif token == ":":
            path[-1], is_key = pending, False
        elif token[0] == '"' and is_key:
            pending = json.loads(token, strict=False)
        elif token[0] == '"':
            yield tuple(path), match.start(1), match.end(1)


def value_passages(text: str, start: int, end: int) -> Iterator[Passage]:
    """Yield the passages of a string.

    Args:
        text: text of the document.
        start, end: range inside the quotes of the string.
    """
    yield from string_passages(text_parts(text, start, end, _ESCAPE, _unescape), _encode)


def _unescape(escape: str) -> str:
    value: str = json.loads(f'"{escape}"')
    return value


def _encode(text: str, place: Surroundings) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
