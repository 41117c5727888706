"""Apple's string formats: tables of keys and values (.strings), and catalogues (.xcstrings)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from heedful.apps.documents.chosen_keys import ChosenKeys
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.json_strings import check_json, skip_space, value_passages
from heedful.apps.documents.message_strings import copied_string, string_passages
from heedful.apps.documents.passage import C_ESCAPES, Passage, Surroundings, text_parts
from heedful.errors import DataError

_SPACE = r"(?:\s|/\*.*?\*/|//[^\n]*)*"
_WORD = r'"(?:[^"\\]|\\.)*"|[\w.$:/-]+'
_PAIR = re.compile(rf"{_SPACE}(?P<key>{_WORD}){_SPACE}={_SPACE}(?P<value>{_WORD}){_SPACE};", re.S)
_END = re.compile(_SPACE + r"\Z", re.S)
_ESCAPE = re.compile(r"\\(?:[uU][\da-fA-F]{4}|[0-7]{3}|.)|\r\n|\n|\r", re.S)
_DECODER = json.JSONDecoder()
_MOST_LEVELS = 16


def read_strings(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of the values of a table; see `Reader`."""
    keys = ChosenKeys(settings.keys)
    done = 0
    while (pair := _PAIR.match(text, done)) is not None:
        start, end = pair.span("value")
        if keys.has([_string(pair["key"])]) and text[start] == '"':
            parts = text_parts(text, start + 1, end - 1, _ESCAPE, _unescape)
            yield from string_passages(parts, _encode)
        done = pair.end()
    if _END.match(text, done) is None:
        rest = re.compile(r"\s*").match(text, done)
        line = text.count("\n", 0, rest.end() if rest is not None else done) + 1
        raise DataError(
            f'Line {line} has no "key" = "value"; behind it',
            where=name,
            remedy="Correct the document; a binary table becomes text by: plutil -convert",
        )
    keys.check(name)


def _string(word: str) -> str:
    return _ESCAPE.sub(lambda match: _unescape(match[0]), word[1:-1]) if word[0] == '"' else word


def _unescape(escape: str) -> str:
    if escape[0] != "\\":
        return escape
    code = escape[1:]
    if len(code) > 1 and code[0] in "uU":
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if len(code) == 3 else C_ESCAPES.get(code, code)


def _encode(text: str, place: Surroundings) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@dataclass
class _Object:
    """An object of JSON.

    Args:
        start, end: range between its braces.
        members: start of the member, and start and end of its value, for each key.
    """

    start: int
    end: int = 0
    members: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def read_xcstrings(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of strings that lack the target language.

    A translation has the structure of its source, plural forms included. See `Reader`; a
    `DataError` is raised if `target_language` is unset.
    """
    check_json(text, name)
    data = json.loads(text)
    objects: dict[tuple[str, ...], _Object] = {}
    if isinstance(data, dict):
        _add_objects(text, skip_space(text, 0), (), objects)
    if ("strings",) not in objects:
        raise DataError("The document is no catalogue", where=name, remedy='It has no "strings"')
    if settings.target_language is None:
        raise DataError(
            "A catalogue has several languages, and that of the translation is not known",
            where=name,
            remedy="Name it, for example: --target-language de",
        )
    source = data.get("sourceLanguage", settings.language)
    keys = ChosenKeys(settings.keys)
    for key, (start, _, _) in objects["strings",].members.items():
        if ("strings", key) not in objects:
            continue
        entry = data["strings"][key]
        languages = entry.get("localizations", {})
        is_wanted = keys.has([key]) and entry.get("shouldTranslate") is not False
        if is_wanted and settings.target_language not in languages:
            # A string without text in the source language is its own key.
            given = languages.get(source) or {"stringUnit": {"value": start}}
            state = "needs_review" if settings.mark_machine else "translated"
            yield from _Localization(text, objects, key, source, state).passages(
                given, settings.target_language, has_languages="localizations" in entry
            )
    keys.check(name)


def _add_objects(
    text: str, start: int, path: tuple[str, ...], found: dict[tuple[str, ...], _Object]
) -> int:
    """Add an object and all nested objects to `found`, and return the end of the object.

    Args:
        text: text of the document, valid JSON.
        start: offset of the opening brace.
        path: keys that lead to the object.
        found: mapping from paths to objects, to which they are added.
    """
    each = found[path] = _Object(start + 1)
    here = skip_space(text, start + 1)
    while text[here] != "}":
        begun = here
        key, here = _DECODER.raw_decode(text, here)
        value = skip_space(text, skip_space(text, here) + 1)
        if text[value] == "{" and len(path) < _MOST_LEVELS:
            here = _add_objects(text, value, (*path, key), found)
        else:
            _, here = _DECODER.raw_decode(text, value)
        each.members[key] = (begun, value, here)
        here = skip_space(text, here)
        here = skip_space(text, here + 1) if text[here] == "," else here
    each.end = here
    return here + 1


@dataclass(frozen=True)
class _Localization:
    """A string of a catalogue in the source language.

    Args:
        text: text of the document.
        objects: objects of the document by their paths.
        key: key of the string.
        source: code of the source language.
        state: state of the translation.
    """

    text: str
    objects: dict[tuple[str, ...], _Object]
    key: str
    source: str
    state: str

    def passages(self, given: Any, target: str, *, has_languages: bool) -> Iterator[Passage]:
        """Yield the passages that write the string in another language.

        Args:
            given: localisation of the source language.
            target: code of the target language.
            has_languages: true if the string has localisations.
        """
        leaves: list[tuple[int, int, tuple[Passage, ...]]] = []
        written = self._template(given, (self.source,), leaves)
        if not any(passages for _, _, passages in leaves):
            return
        path: tuple[str, ...] = ("strings", self.key)
        member: dict[str, Any] = {target: written}
        if has_languages:
            path = (*path, "localizations")
        else:
            member = {"localizations": member}
        start, end, before, after = self._place(self.objects[path], next(iter(member)), len(path))
        dumped = json.dumps(member, indent=2, ensure_ascii=False, separators=(",", " : "))
        lines = dumped.split("\n")[1:-1]  # without the outer braces
        indented = "\n".join("  " * len(path) + line for line in lines).lstrip()
        pieces = re.split(r"\\u0000\d+", before + indented + after)
        for number, (begun, done, passages) in enumerate(leaves):
            last = pieces[-1] if number == len(leaves) - 1 else ""
            yield copied_string((start, end), (begun, done), passages, pieces[number], last)
            start = end

    def _template(
        self, given: Any, path: tuple[str, ...], leaves: list[tuple[int, int, tuple[Passage, ...]]]
    ) -> Any:
        """Return a localisation with placeholders for its texts, and add the texts to `leaves`."""
        if not isinstance(given, dict):
            return given
        if "stringUnit" not in given:
            return {key: self._template(each, (*path, key), leaves) for key, each in given.items()}
        start = given["stringUnit"].get("value")
        if not isinstance(start, int):
            at = ("strings", self.key, "localizations", *path, "stringUnit")
            _, start, _ = self.objects[at].members["value"]
        end = _DECODER.raw_decode(self.text, start)[1] - 1
        leaves.append((start + 1, end, tuple(value_passages(self.text, start + 1, end))))
        unit = {"state": self.state, "value": f"\0{len(leaves) - 1}"}
        rest = {k: self._template(v, (*path, k), leaves) for k, v in given.items()}
        return {**rest, "stringUnit": unit}

    def _place(self, within: _Object, key: str, depth: int) -> tuple[int, int, str, str]:
        """Return the range that a new member replaces in an object, and the text around the member.

        Xcode writes members in the order of their keys.
        """
        indent = "\n" + "  " * (depth + 1)
        later = [start for other, (start, _, _) in within.members.items() if other > key]
        if not within.members:
            return within.start, within.end, indent, indent[:-2]
        if later:
            return min(later), min(later), "", "," + indent
        end = max(end for _, _, end in within.members.values())
        return end, end, "," + indent, ""
