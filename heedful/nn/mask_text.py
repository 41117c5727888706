"""Masks written as an expression: `causal & window(4) | prefix(2)`. No torch here.

The words are the kinds of masks, with their settings in brackets in the order of the fields; `&`
binds more tightly than `|`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import NamedTuple

from heedful.errors import ConfigError, suggest
from heedful.nn.attention.masks import KINDS, AllOf, AnyOf, Everything, Mask

LONGEST = 300
# The parser recurses once for each bracket: 16 levels stay far from Python's recursion limit.
_DEEPEST = 16
# Six digits are enough for positions. `bad` takes any other character, so that it is a token too
# and an error can point at it.
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<number>\d{1,6})|(?P<sign>[&|(),])|(?P<bad>\S))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def mask_kinds() -> dict[str, type[Mask]]:
    """Return the class of each word of the language."""
    joined = ("all_of", "any_of")  # written as `&` and `|`
    return {kind: resolve_name(name) for kind, name in KINDS.items() if kind not in joined}


def parse_mask(text: str, *, where: str | None = None) -> Mask:
    """Parse the expression of a mask; an empty expression stands for every key.

    Args:
        text: mask expression, such as `causal & window(4)`.
        where: name of the setting that holds the expression, for errors.

    Raises:
        ConfigError: when the text is no expression; the error points at the mistake.
    """
    if len(text) > LONGEST:
        raise ConfigError(
            f"The mask has {len(text):,} characters; at most {LONGEST} are read", where=where
        )
    if not text.strip():
        return Everything()
    reader = _Reader(text, where)
    # Recursive descent: an `either` is one or more `both` around `|`, a `both` one or more `one`.
    mask = reader.either(0)
    reader.expect_end()
    return mask


def write_mask(mask: Mask) -> str:
    """Return the expression of a mask, from which `parse_mask` makes the same mask."""
    if mask.kind == "any_of":
        return " | ".join(map(write_mask, mask.disjuncts))
    if mask.kind == "all_of":
        # `|` binds less tightly than `&`, so only a union inside an intersection needs brackets.
        parts = ((part.kind == "any_of", write_mask(part)) for part in mask.conjuncts)
        return " & ".join(f"({text})" if is_union else text for is_union, text in parts)
    values = [str(getattr(mask, name)) for name in mask.setting_names()]
    return f"{mask.kind}({', '.join(values)})" if values else mask.kind


class _Reader:
    """A recursive descent parser of mask expressions."""

    def __init__(self, text: str, setting: str | None) -> None:
        self.text = text
        self.setting = setting
        self.tokens = [*_tokens(text), _Token("end", "the end", len(text))]
        self.place = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.place]

    def take(self, sign: str) -> bool:
        """Skip a sign if it comes next, and return whether it did."""
        # The end is a token as well, so there is always a next one to look at.
        if self.next.kind == "sign" and self.next.text == sign:
            self.place += 1
            return True
        return False

    def either(self, depth: int) -> Mask:
        parts = [self.both(depth)]
        while self.take("|"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else AnyOf(parts=tuple(parts))

    def both(self, depth: int) -> Mask:
        parts = [self.one(depth)]
        while self.take("&"):
            parts.append(self.one(depth))
        return parts[0] if len(parts) == 1 else AllOf(parts=tuple(parts))

    def one(self, depth: int) -> Mask:
        if depth > _DEEPEST:
            raise self.error("brackets are nested too deeply")
        if self.take("("):
            inner = self.either(depth + 1)
            self.expect(")")
            return inner
        word = self.next
        if word.kind != "word":
            raise self.error("a mask is expected")
        kinds = mask_kinds()
        if word.text not in kinds:
            raise ConfigError(
                f"No mask is called {word.text!r}",
                where=self.where(),
                remedy=suggest(word.text, kinds),
            )
        self.place += 1
        names = kinds[word.text].setting_names()
        values = self.arguments(word.text, names)
        # The mask checks ranges itself; its errors get the word and its settings as their place.
        where = self.in_setting(f"{word.text}({', '.join(names)})")
        return Mask.parse({"kind": word.text, **values}, where=where)

    def arguments(self, word: str, names: tuple[str, ...]) -> dict[str, int]:
        needed = f"{word} needs {', '.join(names) or 'no numbers'}"
        values: list[int] = []
        if self.take("("):
            while not self.take(")"):
                if values:
                    self.expect(",")
                if self.next.kind != "number":
                    raise self.error(f"a number is expected: {needed}")
                values.append(int(self.next.text))
                self.place += 1
        if len(values) > len(names):
            raise self.error(needed)
        # Fewer values than names: the mask's defaults fill them, or it reports what is missing.
        return dict(zip(names, values, strict=False))

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.error(f"{sign!r} is expected")

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.error("'&' or '|' is expected")

    def where(self) -> str:
        # The expression with a mark before the token that could not be parsed.
        return self.in_setting(f"{self.text[: self.next.at]}▸{self.text[self.next.at :]}")

    def in_setting(self, place: str) -> str:
        return place if self.setting is None else f"{self.setting}: {place}"

    def error(self, reason: str) -> ConfigError:
        return ConfigError(
            f"The mask cannot be understood at {self.next.text[:20]!r}: {reason}",
            where=self.where(),
            remedy="For example: causal & window(4) | prefix(2)",
        )


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is not None:
            yield _Token(kind, match[kind], match.start(kind))
