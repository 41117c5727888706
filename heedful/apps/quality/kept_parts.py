"""Parts of a text that a translation keeps unchanged: addresses, placeholders, tags, code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.apps.quality.reports import CheckResult, Evidence, Side, counted
from heedful.text.protected_spans import SPAN_KINDS, span_pattern

Kind = Literal["url", "email", "placeholder"]


@dataclass(frozen=True)
class ProtectedSpan:
    """A part of a text that a translation must keep.

    Args:
        kind: kind of the part.
        start: index of its first character.
        end: index after its last character.
        text: characters of the part.
    """

    kind: Kind
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """The text by which two parts are compared.

        For :role:`text <target>` it is the role and its target, for a role around words the role
        alone, and for code its content without quotes and without spaces around punctuation.
        """
        role = _ROLE.fullmatch(self.text)
        if role is None:
            return _plain_code(self.text.strip("`")) if self.text.startswith("`") else self.text
        if role[1].lower() in _TEXT_ROLES:
            return role[1].lower()
        target = _TARGET.search(role[2])
        name = (target[1] if target else role[2]).lstrip("~!.").removesuffix("()")
        return role[1].lower() + name  # docutils ignores the case of role names

    @property
    def is_typography(self) -> bool:
        """True for roles that only raise or lower characters, as in the French "1er"."""
        return self.key in (":sup:", ":sub:")


def _plain_code(text: str) -> str:
    """Return code without the quotes and spaces around punctuation that translators change."""
    quoted = re.fullmatch(r"(['\"])(.*)\1", text.strip())
    text = (quoted[2] if quoted else text).replace("…", "...")
    return re.sub(r"\s*([^\w\s])\s*", r"\1", text).strip()


_TEXT_ROLES = frozenset(
    f":{name}:"
    for name in (
        *("abbr", "dfn", "emphasis", "guilabel", "kbd", "menuselection", "strong", "sub", "sup"),
        # Terms of the glossary of a documentation are translated.
        "term",
    )
)
_ROLE = re.compile(r"(?::py)?(:[\w:+-]+:)`[~!]?([^`]+)`")
_TARGET = re.compile(r"<([^<>]+)>$")
_ANY = re.compile(span_pattern(SPAN_KINDS))
_KINDS: dict[str, Kind] = {"urls": "url", "emails": "email"}
_PLACEHOLDER: Kind = "placeholder"
_HINT = re.compile(r"[{}%<>&`|_@$:\[\u231a-\u2bff\U0001f1e6-\U0001faff]|www\.")


def protected_spans(text: str) -> list[ProtectedSpan]:
    """Return the parts of a text that a translation keeps, in order and without overlap."""
    if _HINT.search(text) is None:  # a fast path for most texts
        return []
    return [
        ProtectedSpan(_KINDS.get(match.lastgroup or "", _PLACEHOLDER), *match.span(), match[0])
        for match in _ANY.finditer(text)
    ]


def blanked(text: str, spans: Iterable[ProtectedSpan]) -> str:
    """Return the text with spaces in place of spans, so that other characters keep their index."""
    spans = list(spans)
    if not spans:
        return text
    characters = list(text)
    for span in spans:
        characters[span.start : span.end] = " " * (span.end - span.start)
    return "".join(characters)


def only_in(text: str, spans: Iterable[ProtectedSpan], others: Iterable[ProtectedSpan]) -> str:
    """Return a text with spaces for all but the protected parts that another text lacks.

    Args:
        text: text with the parts.
        spans: protected parts of the text.
        others: protected parts of the other text.
    """
    known = {span.key for span in others}
    kept = [span for span in spans if span.key not in known]
    characters = [" "] * (len(text) if kept else 0)
    for span in kept:
        characters[span.start : span.end] = span.text
    return "".join(characters)


def without_numbers(
    spans: Iterable[ProtectedSpan], others: Iterable[ProtectedSpan]
) -> list[ProtectedSpan]:
    """Return protected parts, except numbers set as code that are plain text in the other text."""
    known = {span.key for span in others}
    return [s for s in spans if s.key in known or not re.fullmatch(r"`+[-+]?[\d.,]+`+", s.text)]


def check_urls(source: Sequence[ProtectedSpan], target: Sequence[ProtectedSpan]) -> CheckResult:
    """Compare the URLs and e-mail addresses of a text and its translation.

    Args:
        source: protected spans of the text.
        target: protected spans of its translation.
    """
    left, right = (
        [span for span in side if span.kind != _PLACEHOLDER] for side in (source, target)
    )
    return counted("urls", [*_surplus(left, right, "source"), *_surplus(right, left, "target")])


def check_placeholders(
    source: Sequence[ProtectedSpan],
    target: Sequence[ProtectedSpan],
    text: str,
    translation: str,
) -> CheckResult:
    """Check that placeholders, tags, entities, code and emoji occur as often as in the source.

    Args:
        source: protected spans of the text.
        target: protected spans of its translation.
        text: source text; its plain words may be set as code in the translation.
        translation: translation, which may mark code of the source in another way.
    """
    left, right = (
        [span for span in side if span.kind == _PLACEHOLDER and not span.is_typography]
        for side in (source, target)
    )
    missing, added = _surplus(left, right, "source"), _surplus(right, left, "target")
    marked_up = [each for each in added if _is_plain_in(text, each)]
    in_code = " ".join(_plain_code(each.text) for each in added)
    missing = [
        each
        for each in missing
        # `__del__` may be set as code together with the characters around it.
        if each.text.startswith("`") or _plain_code(each.text) not in in_code
        if not _is_set_apart(blanked(translation, target), each)
    ]
    return counted("placeholders", [*missing, *(each for each in added if each not in marked_up)])


def _is_plain_in(text: str, evidence: Evidence) -> bool:
    """Return True for code whose words are in the other text without the code marks."""
    if not evidence.text.startswith("`") or evidence.note != "added":
        return False
    text = re.sub(r"\\([*_`|])", r"\1", text)  # escapes of reStructuredText
    return _plain_code(evidence.text.strip("`")).casefold() in _plain_code(text).casefold()


def _is_set_apart(text: str, evidence: Evidence) -> bool:
    """Return True for code that the other text marks in another way: *code*, « code »."""
    if not evidence.text.startswith("`") or evidence.note != "missing":
        return False
    code = re.escape(evidence.text.strip("`").strip("'\""))
    return re.search(rf"(?:[*`'\"“„]|«\s?){code}(?:[*`'\"”“]|\s?»)", text) is not None


def _surplus(spans: list[ProtectedSpan], others: list[ProtectedSpan], side: Side) -> list[Evidence]:
    """Return the spans that occur more often than in the other text."""
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


def stays_in(words: str, text: str) -> bool:
    """Return True if words of one text stand in the other text unchanged, as whole words.

    Args:
        words: words of one text.
        text: the other text.
    """
    return re.search(rf"\b{re.escape(words)}\b", text) is not None
