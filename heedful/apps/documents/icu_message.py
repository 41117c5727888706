"""ICU messages: their arguments, and the texts inside plurals and selects, as ranges of characters.

The syntax is that of ICU's MessageFormat, which FormatJS, Angular, Android and Java also use:
`{name}`, `{0, number, percent}`, `{n, plural, one {# item} other {# items}}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from heedful.apps.documents.passage import Surroundings

_NAME = r"[\w.$@/\[\]-]+"
_COMPLEX = re.compile(rf"\{{\s*{_NAME}\s*,\s*(plural|selectordinal|select)\s*,", re.IGNORECASE)
_ARGUMENT = re.compile(rf"\{{\s*{_NAME}\s*(?=[,}}])")
_OFFSET = re.compile(r"\s*offset\s*:\s*-?\d+")
_SELECTOR = re.compile(r"\s*(?:=\s*-?\d+(?:\.\d+)?|[^\s{}',=]+)\s*\{")
# Placeholders of other libraries may stand in a message: Mustache, Jinja.
_FOREIGN = re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}")
_QUOTED = re.compile(r"'(?=[{}#<|])(?:[^']|'')*'")
_ENDING = re.compile(r"[^\W\d_]+")
# An apostrophe begins a quotation only before these characters; an apostrophe at an end of the text
# may later stand beside a brace. Two apostrophes always mean one.
_SPECIAL = re.compile(r"(?P<quoted>[{}']*[{}][{}']*)|^'+|''+|'(?=[#<|]|$)")
_MOST_LEVELS = 32

PartKind = Literal["argument", "number", "quoted", "apostrophe"]


@dataclass(frozen=True, slots=True)
class MessageText:
    """A text of a message: the whole, or a branch of a plural or select.

    Args:
        start, end: range of its characters.
        parts: arguments, numbers and quotes in the text, in order.
    """

    start: int
    end: int
    parts: tuple[MessageItem, ...]


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A part of a message that is not plain text.

    Args:
        start, end: range of its characters.
        kind: `argument`; `number` for the # of a plural; `quoted` for text between apostrophes,
            which is shown as it is; `apostrophe` for two apostrophes, which show one.
        branches: texts of a plural or select; in the usual order the last one is for all other
            cases.
    """

    start: int
    end: int
    kind: PartKind
    branches: tuple[MessageText, ...] = ()


class MessageError(ValueError):
    """An ICU message that cannot be read, with the reason as text."""


def read_message(text: str) -> MessageText | None:
    """Return the structure of an ICU message, or None for a text without a plural or select.

    Args:
        text: decoded text of a string, without the escapes of its format.

    Raises:
        MessageError: when the text has a plural or select and is not a message.
    """
    if _COMPLEX.search(text) is None:
        return None
    reader = _Reader(text)
    message = reader.text(0, level=0, plural="")
    if message.end < len(text):
        raise MessageError(f"a brace too many at character {message.end + 1}")
    return message


def encode_message(text: str, place: Surroundings) -> str:
    """Escape plain text so that none of its characters is syntax."""

    def written(match: re.Match[str]) -> str:
        doubled = match[0].replace("'", "''")
        return f"'{doubled}'" if match["quoted"] else doubled

    return _SPECIAL.sub(written, text)


class _Reader:
    """Reads a message by recursive descent."""

    def __init__(self, text: str) -> None:
        self.characters = text

    def text(self, start: int, *, level: int, plural: str) -> MessageText:
        """Return the text from an offset to its closing brace, or to the end of the message.

        Args:
            start: offset of its first character.
            level: number of arguments around it.
            plural: kind of the nearest plural around it, if any.
        """
        if level > _MOST_LEVELS:
            raise MessageError(f"more than {_MOST_LEVELS} levels")
        characters = self.characters
        parts: list[MessageItem] = []
        here = start
        while here < len(characters) and characters[here] != "}":
            part = self._part(here, level, plural)
            if part is not None:
                parts.append(part)
            here = here + 1 if part is None else part.end
        if here == len(characters) and level:
            raise MessageError("a brace is not closed")
        return MessageText(start, here, tuple(parts))

    def _part(self, here: int, level: int, plural: str) -> MessageItem | None:
        """Return the part that begins at an offset, or None for plain text."""
        character = self.characters[here]
        if character == "{":
            foreign = _FOREIGN.match(self.characters, here)
            if foreign is not None:
                return MessageItem(here, foreign.end(), "argument")
            return self._argument(here, level, plural)
        if character == "#" and plural:
            # The letters of "#st" are an ordinal ending, which depends on the language.
            ending = _ENDING.match(self.characters, here + 1) if plural != "plural" else None
            return MessageItem(here, here + 1 if ending is None else ending.end(), "number")
        if self.characters.startswith("''", here):
            return MessageItem(here, here + 2, "apostrophe")
        if character == "'" and (quoted := _QUOTED.match(self.characters, here)) is not None:
            return MessageItem(here, quoted.end(), "quoted")
        return None

    def _argument(self, start: int, level: int, plural: str) -> MessageItem:
        match = _ARGUMENT.match(self.characters, start)
        if match is None:
            raise MessageError(f"no argument after the brace at character {start + 1}")
        complex = _COMPLEX.match(self.characters, start)
        if complex is None:
            return MessageItem(start, self._style_end(match.end()), "argument")
        kind = complex[1].lower()
        here = complex.end()
        if (offset := _OFFSET.match(self.characters, here)) is not None:
            here = offset.end()
        branches: list[MessageText] = []
        while (selector := _SELECTOR.match(self.characters, here)) is not None:
            inner = plural if kind == "select" else kind
            branches.append(self.text(selector.end(), level=level + 1, plural=inner))
            here = branches[-1].end + 1
        end = re.compile(r"\s*\}").match(self.characters, here)
        if end is None or not branches:
            raise MessageError(f"no branch of a {kind} at character {here + 1}")
        return MessageItem(start, end.end(), "argument", tuple(branches))

    def _style_end(self, start: int) -> int:
        """Return the end of a simple argument, whose style may contain braces."""
        depth, here = 1, start
        while depth and here < len(self.characters):
            quoted = _QUOTED.match(self.characters, here)
            depth += {"{": 1, "}": -1}.get(self.characters[here], 0)
            here = here + 1 if quoted is None else quoted.end()
        if depth:
            raise MessageError("a brace is not closed")
        return here
