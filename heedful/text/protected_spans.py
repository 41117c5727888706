"""Parts of a text that a translation keeps byte for byte: placeholders, addresses, code, markup.

A model that was trained for it reads and writes a reserved token in the place of each. In a pair of
the training corpus those parts are replaced that stand on both sides. The reserved tokens are
numbered, and a text begins with a number that its content decides, so that all of them are trained.
They are characters of a private area of Unicode, which a tokenizer has as whole tokens.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from heedful.errors import ConfigError, suggest

SpanKind = Literal["urls", "emails", "tags", "markup", "code", "placeholders", "emoji"]
SPAN_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)

RESERVED = tuple(chr(0xF0000 + number) for number in range(32))
"""Few lines hold more such parts."""

_EMOJI = "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b50\u2b55\u231a\u231b]"
_EMAIL = r"\b[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+"
_IN_URL = r"[^\s<>\"“”«»`()\[\]{}]|\([^\s<>\"“”«»`()]*\)"
_PATTERNS: dict[SpanKind, str] = {
    # A full stop or bracket after an address is not of it, but "c_(d)" is.
    "urls": (
        rf"(?:https?|ftps?|file)://(?:{_IN_URL})*"
        r"(?:[^\s<>\"“”«»`.,;:!?…'’*_()\[\]{}]|\([^\s<>\"“”«»`()]*\))"
        rf"|\bmailto:{_EMAIL}|\bwww\.[\w.-]+\.\w+(?:/[\w/.-]*\w)?"
    ),
    "emails": _EMAIL,
    # No `text <target>` of reStructuredText.
    "tags": (
        r"</?[A-Za-z][\w:-]*(?:\s[^<>\n]*)?/?>(?!`)|<!--[^\n]*?-->"
        r"|&(?:[A-Za-z]\w{1,30}|#\d{1,6}|#[xX][\da-fA-F]{1,5});"
    ),
    # Of reStructuredText: roles, substitutions, footnotes.
    "markup": (
        r":[A-Za-z][\w:+.-]*:`[^`\n]+`|(?<![\w|])\|[A-Za-z][\w-]*\|(?![\w|])|\[(?:\d+|#\w*)\]_"
    ),
    # The backquote that ends `a link`_ begins no code.
    "code": r"``[^\n]+?``(?!`)|(?<![`\w])`(?![\s_`])[^`\n]*[^`\s]`(?![`\w])",
    "placeholders": (
        r"\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}"  # Jinja, Mustache
        r"|[$#]\{[^{}\s]*\}|\$\([^()\s]*\)"  # shells, JavaScript, Ruby
        r"|\{[^\W\d]?[\w.\[\]!-]*=?(?::[^{}\s]*)?\}"  # {}, {0}, {name!r:>10}
        r"|%\([^()\s]+\)[-+#0]*\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
        # %s, %1$s, %5.2f, but no "100 %" and no "50%discount"
        r"|(?<![\d%\w])%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlqjzt])?"
        r"[diouxXeEfFgGcrsap@](?![^\W\d_])"
        r"|(?<!\w)__[A-Za-z0-9]+__(?!\w)"
    ),
    "emoji": rf"(?:{_EMOJI}\ufe0f?[\U0001f3fb-\U0001f3ff]?(?:\u200d{_EMOJI}\ufe0f?)*)",
}
_RESERVED_CLASS = f"[{RESERVED[0]}-{RESERVED[-1]}]"


def span_kinds(names: Iterable[str]) -> tuple[SpanKind, ...]:
    """Kinds by their names, in their own order; `all` is every kind.

    Raises:
        ConfigError: when there is no such kind.
    """
    known = ("all", *SPAN_KINDS)
    asked = {name for text in names for name in text.split(",") if name}
    for name in sorted(asked):
        if name not in known:
            raise ConfigError(
                f"No parts of texts are called {name!r}",
                where="protect",
                remedy=suggest(name, known),
            )
    return tuple(kind for kind in SPAN_KINDS if "all" in asked or kind in asked)


def span_pattern(kinds: Iterable[SpanKind]) -> str:
    """Return the regular expression of some kinds of parts, each a group of its name.

    Training, checking and documents keep the same parts of a text, by this expression.
    """
    chosen = set(kinds)
    return "|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in SPAN_KINDS if kind in chosen)


@dataclass(frozen=True)
class Protection:
    """Replaces protected parts of texts by reserved characters, and puts them back.

    Args:
        kinds: of the parts, such as `urls`.
    """

    kinds: tuple[SpanKind, ...]

    def find(self, text: str) -> list[tuple[int, int]]:
        """The start and end of each part, from left to right.

        A reserved character that a text holds is such a part too, or it would be taken for another.
        """
        pattern = re.compile(f"{span_pattern(self.kinds)}|{_RESERVED_CLASS}")
        return [match.span() for match in pattern.finditer(text)]

    def protect(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Replace all parts.

        Args:
            text: to be translated.

        Returns:
            The text with a reserved character for each part, and the parts, in their order.
        """
        spans = self.find(text)
        first = _first(text)
        marks = [RESERVED[(first + i) % len(RESERVED)] for i in range(len(spans))]
        return _replaced(text, spans, marks), tuple(text[start:end] for start, end in spans)

    def protect_pair(self, source: str, target: str) -> tuple[str, str]:
        """Replace the parts of a training pair that stand on both sides, as often as on both."""
        spans = {"source": self.find(source), "target": self.find(target)}
        if not any(spans.values()):
            return source, target
        left = Counter(target[start:end] for start, end in spans["target"])
        marks: dict[str, deque[str]] = defaultdict(deque)
        chosen: list[str | None] = []
        number = _first(source)
        for start, end in spans["source"]:
            part, mark = source[start:end], None
            if left[part] and sum(map(bool, chosen)) < len(RESERVED):
                left[part] -= 1
                mark = RESERVED[number % len(RESERVED)]
                number += 1
                marks[part].append(mark)
            chosen.append(mark)
        own = [source[start:end] for start, end in spans["source"]]
        others = [target[start:end] for start, end in spans["target"]]
        return (
            _replaced(source, spans["source"], _kept(chosen, own)),
            _replaced(
                target,
                spans["target"],
                _kept([marks[o].popleft() if marks[o] else None for o in others], others),
            ),
        )


def restored(text: str, marks: Sequence[str], parts: Sequence[str]) -> str:
    """Put parts back.

    Args:
        text: with reserved characters.
        marks: those of the source, in its order.
        parts: what each stands for.
    """
    waiting: dict[str, deque[str]] = defaultdict(deque)
    for mark, part in zip(marks, parts, strict=True):
        waiting[mark].append(part)
    return re.sub(
        _RESERVED_CLASS,
        lambda match: waiting[match[0]].popleft() if waiting[match[0]] else "",
        text,
    )


def reserved_marks(text: str) -> list[str]:
    """The reserved characters of a text, in their order."""
    return re.findall(_RESERVED_CLASS, text)


def _first(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % len(RESERVED)


def _kept(marks: Iterable[str | None], parts: Iterable[str]) -> list[str]:
    """Marks, and parts themselves where there is none; a reserved character is no text."""
    return [
        mark or re.sub(_RESERVED_CLASS, "\ufffd", part)
        for mark, part in zip(marks, parts, strict=True)
    ]


def _replaced(text: str, spans: Sequence[tuple[int, int]], marks: Sequence[str]) -> str:
    parts, place = [], 0
    for (start, end), mark in zip(spans, marks, strict=True):
        parts += [text[place:start], mark]
        place = end
    return "".join([*parts, text[place:]])
