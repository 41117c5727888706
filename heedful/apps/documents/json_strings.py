"""Strings of JSON and JSON Lines: values are text, keys are not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.message_strings import string_passages
from heedful.apps.documents.passage import Passage, Surroundings, text_parts
from heedful.errors import DataError

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|[{}\[\],:]|[^\s{}\[\],:"]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|u.{4}|.)")
_PATHS_NAMED = 5


def read_json(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of a JSON document, or of several one after the other (JSON Lines).

    Args:
        text: text of the document.
        settings: settings of the document; `keys` selects the values that are text.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line with invalid JSON or text, or the keys without a value.
    """
    _check(text, name)
    patterns = [(_pattern(key), key) for key in settings.keys]
    unused = dict(patterns)
    paths: dict[str, None] = {}
    for path, start, end in _strings(text):
        matching = [pattern for pattern in unused if pattern.fullmatch(path)]
        for pattern in matching:
            del unused[pattern]
        paths.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path))
        if not patterns or any(pattern.fullmatch(path) for pattern, _ in patterns):
            _check_text(text, start, end, name)
            parts = text_parts(text, start, end, _ESCAPE, _unescape)
            yield from string_passages(parts, _encode)
    if unused:
        raise DataError(
            f"No string is at {', '.join(unused.values())}",
            where=name,
            remedy="There are strings at " + ", ".join(list(paths)[:_PATHS_NAMED])
            if paths
            else "There are no strings at all",
        )


def _check(text: str, name: str) -> None:
    """Parse all documents, so that errors come first."""
    decoder = json.JSONDecoder()
    try:
        start = _skip_space(text, 0)
        while True:
            _, end = decoder.raw_decode(text, start)
            start = _skip_space(text, end)
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


def _skip_space(text: str, start: int) -> int:
    match = re.compile(r"[ \t\r\n]*").match(text, start)
    assert match is not None
    return match.end()


def _strings(text: str) -> Iterator[tuple[str, int, int]]:
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
            yield ".".join(_escaped(step) for step in path), match.start(1), match.end(1)


def _escaped(step: str | int) -> str:
    return str(step).replace("\\", "\\\\").replace(".", "\\.")


def _pattern(key: str) -> re.Pattern[str]:
    """Return a pattern for the paths that a key of `--keys` selects."""
    step = r"(?:[^.\\]|\\.)*"
    steps: Sequence[str] = re.findall(r"(?:[^.\\]|\\.)+", key)
    written = "".join(
        rf"(?:{step}\.)*" if each == "**" else (step if each == "*" else re.escape(each)) + r"\."
        for each in steps
    )
    if written.endswith(r"\."):
        written = written.removesuffix(r"\.")
    else:
        written += step
    return re.compile((rf"(?:{step}\.)*" if len(steps) == 1 else "") + written, re.DOTALL)


def _unescape(escape: str) -> str:
    value: str = json.loads(f'"{escape}"')
    return value


def _encode(text: str, place: Surroundings) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
