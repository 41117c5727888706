"""Protected spans: placeholders, addresses, code and markup that a translation keeps exactly.

A model that is trained for it reads and writes a reserved token for each span. In a training pair
the spans that occur on both sides are replaced. Reserved tokens are numbered, and the content of a
text decides its first number, so that all of them are trained. They are characters for private use
in Unicode, which are whole tokens of the tokenizer.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from heedful.errors import ConfigError, suggest

SpanKind = Literal["urls", "emails", "tags", "markup", "code", "placeholders", "emoji"]
SPAN_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)

RESERVED = tuple(chr(0xF0000 + number) for number in range(32))
"""Reserved characters; few lines hold more protected spans."""

_EMOJI = (
    "[\U0001f300-\U0001faff\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff"
    "\U0001f004\U0001f0cf\U0001f170-\U0001f1e5\U0001f201-\U0001f251]"
)
_EMAIL = r"\b[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+"
_IN_URL = r"[^\s<>\"“”«»`()\[\]{}]|\([^\s<>\"“”«»`()]*\)|\{\w+\}|\{\{[^{}\n]*\}\}|\[[\w-]+\](?=/)"
_BEFORE_NAME = r"(?<![^\s(\[\"'“„«>¿¡])"
_PATTERNS: dict[SpanKind, str] = {
    # A full stop or bracket after an address does not belong to it, but "c_(d)" does.
    "urls": (
        rf"(?:https?|ftps?|file)://(?:{_IN_URL})*"
        r"(?:[^\s<>\"“”«»`.,;:!?…'’*_()\[\]{}]|\([^\s<>\"“”«»`()]*\)|\{\w+\}"
        r"|\{\{[^{}\n]*\}\})"
        rf"|\bmailto:{_EMAIL}|\bwww\.[\w.-]+\.\w+(?:/[\w/.-]*\w)?"
        r"|(?<![\w@./-])(?:[a-z\d-]+\.)+(?:com|org|net|edu|gov|io|dev|app)(?![\w@-]|\.\w)"
        r"(?:/(?:[\w/.~%?=&#-]*\w)?)?"
    ),
    "emails": _EMAIL,
    # `text <target>` of reStructuredText is no span here: a backquote follows.
    "tags": (
        r"</?(?:[A-Za-z][\w:.-]*|\d+)(?:\s[^<>\n]*)?/?>(?!`)|<!--[^\n]*?-->|<%(?:.|\n){0,200}?%>"
        r"|&(?:[A-Za-z]\w{1,30}|#\d{1,6}|#[xX][\da-fA-F]{1,5});"
    ),
    # Roles, substitutions and footnotes of reStructuredText.
    "markup": (
        r":[A-Za-z][\w:+.-]*:`[^`\n]+`|(?<![\w|])\|[A-Za-z][\w-]*\|(?![\w|])|\[(?:\d+|#\w*)\]_"
    ),
    # The backquote that ends `a link`_ begins no code.
    "code": r"``[^\n]+?``(?!`)|(?<![`\w])`(?![\s_`])[^`\n]*[^`\s]`(?![`\w])",
    "placeholders": (
        # Mustache, GitHub and Jinja; long ones are written on several lines.
        r"\{\{\{[^{}]*\}\}\}|\$?\{\{(?:[^{}]|\{[^{}]*\})*\}\}|\{%(?:.|\n){0,400}?%\}"
        r"|\$t\([^()\n]*\)"  # i18next
        r"|[$#%]\{[^{}\s]*\}|\$\([^()\s]*\)"  # shells, JavaScript, Ruby
        r"|\{[^\W\d]?[\w.\[\]!-]*=?(?::[^{}\s]*)?\}"  # {}, {0}, {name!r:>10}
        r"|\{ ?[$-]?[^\W\d][\w.-]* ?\}"  # Fluent, Angular, Smarty
        r"|\{ ?\w+ ?, ?(?:number|date|time|ordinal|spellout|duration) ?(?:,[^{}\n]*)?\}"  # ICU
        r"|%\([^()\s]+\)[-+#0]*\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
        r"|%(?:\d+\$)?#@\w+@"  # plural forms of Apple
        r"|%<\w+>[-+#0]*\d*(?:\.\d+)?[a-zA-Z]"  # Ruby
        # %s, %1$s, %5.2f, %Y-%m, but no "100 %" and no "50%discount"
        r"|(?:(?<![\d%\w])|(?<=%[sdicuxf]))%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlqjzt])?"
        r"[diouxXeEfFgGcrsap@nYmHMSBbAIyZ](?![^\W\d_])"
        r"|(?<![\d%\w])%L?\d{1,2}(?![\w%]|\.\d)"  # Qt
        r"|(?<![\w%])%%?[A-Za-z_][\w.]*%%?(?![\w%])"  # Symfony
        r"|(?<!\w)__[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*__(?!\w)"
        r"|(?<![\w$])\$[A-Za-z_]\w*(?:\$(?!\w))?"  # $name, $NAME$
        r"|(?<![\w@])@(?:\.\w+)?:(?:\w+(?:[.-]\w+)*|\{'[^'{}\n]*'\}|\([^()\s]*\))"  # Vue
        rf"|{_BEFORE_NAME}[@:][A-Za-z_]\w+(?![\w:@]|\.\w)"  # Laravel, Drupal
        r"|\[(?=[A-Z_]*\d)[A-Z\d_]+\](?![(\[_])"  # [X7X], [1]
    ),
    "emoji": (
        rf"(?:(?:{_EMOJI}\ufe0f?[\U0001f3fb-\U0001f3ff]?[\U000e0020-\U000e007f]*"
        rf"(?:\u200d{_EMOJI}\ufe0f?[\U0001f3fb-\U0001f3ff]?)*)"
        r"|[\U0001f1e6-\U0001f1ff]{1,2}|[#*\d]\ufe0f?\u20e3"
        rf"|{_BEFORE_NAME}:(?:[a-z][a-z\d_+-]*|[+-]1):(?![\w:`]))"
    ),
}
RESERVED_CLASS = f"[{RESERVED[0]}-{RESERVED[-1]}]"


def span_kinds(names: Iterable[str]) -> tuple[SpanKind, ...]:
    """Return kinds of spans by their names, in the order of `SPAN_KINDS`; `all` is every kind.

    Raises:
        ConfigError: when a kind does not exist.
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
    """Return the regular expression of some kinds of spans, with a group for each kind.

    Training, checking and documents all use this expression, so they keep the same spans.
    """
    chosen = set(kinds)
    return "|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in SPAN_KINDS if kind in chosen)


@dataclass(frozen=True)
class Protection:
    """The replacement of protected spans by reserved characters.

    Args:
        kinds: kinds of the spans, such as `urls`.
    """

    kinds: tuple[SpanKind, ...]

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each span, from left to right.

        A reserved character in the text itself is a span, too, as it would otherwise be restored as
        another span.
        """
        pattern = re.compile(f"{span_pattern(self.kinds)}|{RESERVED_CLASS}")
        return [match.span() for match in pattern.finditer(text)]

    def protect(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Replace all spans of a text.

        Args:
            text: text to translate.

        Returns:
            The text with a reserved character for each span, and the content of the spans.
        """
        spans = self.find(text)
        first = _first_number(text)
        marks = [RESERVED[(first + i) % len(RESERVED)] for i in range(len(spans))]
        return _replace_spans(text, spans, marks), tuple(text[start:end] for start, end in spans)

    def protect_pair(self, source: str, target: str) -> tuple[str, str]:
        """Replace the spans of a training pair that both sides have, as often as both have them."""
        spans = self.find(source), self.find(target)
        if not any(spans):
            return source, target
        own = [source[start:end] for start, end in spans[0]]
        others = [target[start:end] for start, end in spans[1]]
        left = Counter(others)  # spans of the target that are not matched yet
        marks: dict[str, deque[str]] = defaultdict(deque)
        chosen: list[str | None] = []
        number = _first_number(source)
        for part in own:
            mark = None
            if left[part] and sum(map(bool, chosen)) < len(RESERVED):
                left[part] -= 1
                mark = RESERVED[number % len(RESERVED)]
                number += 1
                marks[part].append(mark)
            chosen.append(mark)
        # A span has the same mark on both sides, which the model is trained to copy.
        copied = [marks[part].popleft() if marks[part] else None for part in others]
        return (
            _replace_spans(source, spans[0], _marks_or_parts(chosen, own)),
            _replace_spans(target, spans[1], _marks_or_parts(copied, others)),
        )


def restored(text: str, marks: Sequence[str], parts: Sequence[str]) -> str:
    """Restore the spans of a translation.

    Args:
        text: translation with reserved characters.
        marks: reserved characters of the source, in its order.
        parts: content of the span of each mark.
    """
    waiting: dict[str, deque[str]] = defaultdict(deque)
    for mark, part in zip(marks, parts, strict=True):
        waiting[mark].append(part)
    return re.sub(
        RESERVED_CLASS,
        # A reserved character that the source lacks stands for nothing, and is removed.
        lambda match: waiting[match[0]].popleft() if waiting[match[0]] else "",
        text,
    )


def reserved_marks(text: str) -> list[str]:
    """Return the reserved characters of a text, in their order."""
    return re.findall(RESERVED_CLASS, text)


def _first_number(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % len(RESERVED)


def _marks_or_parts(marks: Iterable[str | None], parts: Iterable[str]) -> list[str]:
    """Return the mark of each part, or the part itself, with U+FFFD for reserved characters."""
    return [
        mark or re.sub(RESERVED_CLASS, "\ufffd", part)
        for mark, part in zip(marks, parts, strict=True)
    ]


def _replace_spans(text: str, spans: Sequence[tuple[int, int]], marks: Sequence[str]) -> str:
    parts, place = [], 0
    for (start, end), mark in zip(spans, marks, strict=True):
        parts += [text[place:start], mark]
        place = end
    return "".join([*parts, text[place:]])


# Bullets, marks of headings and of emphasis at the edges of a line, but not "#1".
_EDGE = r"(?m:^(?:[*~_•·▪►|=©®™§¶†‡]+|#+(?!\d))(?=\s|\w)|(?<=[\w\s.!?…])[*~_|=]+$|(?<=\s)#+$)"
# Tags, entities, references to notes, emoji, and other signs, but not `{}`.
_WORDLESS = re.compile(r"[<&](?!%).*|\[\d+\]_?|[^\w{%$@]+|:[\w+-]+:|[#*\d]\ufe0f?\u20e3", re.DOTALL)


@lru_cache
def _pattern(kinds: tuple[SpanKind, ...]) -> re.Pattern[str]:
    return re.compile(f"{span_pattern(kinds)}|{_EDGE}|{RESERVED_CLASS}")


class KeptKinds(Protection):
    """Protection of plain text; a part is merged with the word or the part that it touches."""

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each part, from left to right."""
        # `heedful train --help` reads the kinds of spans, and does without the tokenizers' library.
        from heedful.text.pretokenization import is_of_word

        spans: list[tuple[int, int]] = []
        done = 0
        for match in _pattern(self.kinds).finditer(text):
            start, end = match.span()
            if not is_wordless(match[0]):
                while start > done and is_of_word(text[start - 1]):
                    start -= 1
                while end < len(text) and is_of_word(text[end]):
                    end += 1
                if spans and start <= done and not is_wordless(text[slice(*spans[-1])]):
                    start = spans.pop()[0]
            if start < end:
                spans.append((start, end))
                done = end
        return spans


def is_wordless(part: str) -> bool:
    """Return True for a part that stands for no word: a tag, an entity, a sign."""
    return _WORDLESS.fullmatch(part) is not None
