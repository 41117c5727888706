"""Parts of a text that a translation keeps as they are: addresses, placeholders, tags, code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.quality.reports import CheckResult, Evidence, Side, counted

Kind = Literal["url", "email", "placeholder"]


@dataclass(frozen=True)
class ProtectedSpan:
    """A part of a text that must stay.

    Args:
        kind: what it is.
        start: index of its first character.
        end: index after its last character.
        text: what stands there.
    """

    kind: Kind
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """The part that must stay the same: of :role:`text <target>` the role and its target."""
        role = _ROLE.fullmatch(self.text)
        if role is None:
            return self.text
        target = _TARGET.search(role[2])
        return role[1] + (target[1] if target else role[2])


_ROLE = re.compile(r"(:[\w:+-]+:)`[~!]?([^`]+)`")
_TARGET = re.compile(r"<([^<>]+)>$")
_URL = r"(?:https?|ftps?|file|mailto):[^\s<>\"“”«»`]+|\bwww\.[^\s<>\"“”«»`]+"
_EMAIL = r"[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+"
_PLACEHOLDERS = (
    r"\{\{.*?\}\}|\{%.*?%\}",  # Jinja, Mustache
    r"\$\{[^{}\s]*\}|\$\([^()\s]*\)",  # shells, JavaScript
    r"%\([^()\s]+\)[-+#0]*\d*(?:\.\d+)?[sdifFeEgGxXor]",  # %(name)s
    # %s, %1$s, %5.2f, but no "100 %" and no "50%discount"
    r"(?<![\d%\w])%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlz])?[sdiufFeEgGxXorcp@](?![^\W\d_])",
    r"\{[^\W\d]?[\w.\[\]!]*(?::[^{}\s]*)?\}",  # {}, {0}, {name!r:>10}
    r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>(?!`)|<!--.*?-->",  # tags, but no `text <target>`
    r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#[xX][\dA-Fa-f]{1,5});",  # entities
    r"``[^`]+``",  # code of reStructuredText and Markdown
    r":[A-Za-z][\w:+-]*:`[^`]+`",  # roles of reStructuredText
    r"(?<![\w|])\|[A-Za-z]\w*\|(?![\w|])",  # substitutions
    r"(?<!\w)__[A-Za-z0-9]+__(?!\w)",
    r"[\U0001F300-\U0001FAFF\u2600-\u27BF](?:[\u200d\ufe0f\U0001F3FB-\U0001F3FF]"
    r"|(?<=\u200d)[\U0001F300-\U0001FAFF\u2600-\u27BF])*",  # emoji
)
_ANY = re.compile(f"(?P<url>{_URL})|(?P<email>{_EMAIL})|(?P<placeholder>{'|'.join(_PLACEHOLDERS)})")
_PLACEHOLDER: Kind = "placeholder"
_HINT = re.compile(r"[{}%<>&`|_@$:\u2600-\u27BF\U0001F300-\U0001FAFF]|www\.")
_AFTER_URL = ".,;:!?…'’*_"
_PAIRS = {")": "(", "]": "[", "}": "{"}


def protected_spans(text: str) -> list[ProtectedSpan]:
    """Return the parts of a text that a translation keeps, in their order, none within another."""
    if _HINT.search(text) is None:  # most texts, and much faster
        return []
    spans = []
    for match in _ANY.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        found = match[0]
        if kind == "url":
            found = _trimmed(found)
        start = match.start()
        spans.append(ProtectedSpan(kind, start, start + len(found), found))  # type: ignore[arg-type]
    return spans


def blanked(text: str, spans: Iterable[ProtectedSpan]) -> str:
    """Return the text with spaces in the place of spans, so that all else keeps its index."""
    characters = list(text)
    for span in spans:
        characters[span.start : span.end] = " " * (span.end - span.start)
    return "".join(characters)


def _trimmed(url: str) -> str:
    """Return an address without the marks of the sentence around it."""
    while url:
        last = url[-1]
        unopened = last in _PAIRS and url.count(last) > url.count(_PAIRS[last])
        if last not in _AFTER_URL and not unopened:
            break
        url = url[:-1]
    return url


def check_urls(source: Sequence[ProtectedSpan], target: Sequence[ProtectedSpan]) -> CheckResult:
    """Compare the URLs and e-mail addresses of a text and its translation.

    Args:
        source: protected spans of the text.
        target: those of its translation.
    """
    left, right = (
        [span for span in side if span.kind != _PLACEHOLDER] for side in (source, target)
    )
    return counted("urls", [*_surplus(left, right, "source"), *_surplus(right, left, "target")])


def check_placeholders(
    source: Sequence[ProtectedSpan], target: Sequence[ProtectedSpan], text: str
) -> CheckResult:
    """Compare placeholders, tags, entities, code and emoji: each as often as in the source.

    Args:
        source: protected spans of the text.
        target: those of its translation.
        text: the source. A translation may set as code what stands there as plain text.
    """
    left, right = (
        [span for span in side if span.kind == _PLACEHOLDER] for side in (source, target)
    )
    more = [each for each in _surplus(right, left, "target") if not _is_marked_up(each, left, text)]
    return counted("placeholders", [*_surplus(left, right, "source"), *more])


def _is_marked_up(evidence: Evidence, source: Sequence[ProtectedSpan], text: str) -> bool:
    """Return True for code in a translation that is plain text in the source."""
    if not evidence.text.startswith("``") or evidence.note != "added":
        return False
    plain = blanked(text, source)
    return evidence.text.strip("`\"'") in plain


def _surplus(spans: list[ProtectedSpan], others: list[ProtectedSpan], side: Side) -> list[Evidence]:
    """Return the spans that there are more of than in the other text."""
    room = Counter(span.key for span in others)
    known = set(room)
    evidence = []
    for span in spans:
        if room[span.key] > 0:
            room[span.key] -= 1
            continue
        if side == "source":
            note = "too few in the translation" if span.key in known else "missing"
        else:
            note = "too many" if span.key in known else "added"
        evidence.append(Evidence(side, span.start, span.end, span.text, note))
    return evidence
