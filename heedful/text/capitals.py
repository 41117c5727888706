"""Text in capitals: found, brought into sentence case, and put in capitals again.

Few training texts are in capitals, so a model knows their words as little as those of another
language. What is kept as it is, such as addresses and placeholders, has no say and is not changed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

from heedful.text.protected_spans import SPAN_KINDS, Protection
from heedful.text.respelling import Edit, Span

FEWEST_WORDS = 2
"""A single word in capitals is as likely a name, such as NASA."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Returns the number of tokens of each of several words."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+")
_WITH_DOTLESS_I = {"tr", "az"}


def kept_spans(text: str) -> list[Span]:
    """Parts of a text whose case means something: addresses, placeholders, markup, code."""
    return Protection(SPAN_KINDS).find(text)


def capital_parts(line: str) -> list[tuple[Span, bool]]:
    """Split a line where sentences in capitals begin or end.

    Args:
        line: any number of sentences.

    Returns:
        Runs of sentences without space around them, each with True if it is in capitals: it has
        two words at least that are not a single letter, and none in lower case. A line without
        such sentences is returned whole, as it is.
    """
    kept = kept_spans(line)
    ends = [m.end() for m in _SENTENCE_END.finditer(line) if not _within(m.span(), kept)]
    sentences = [(a, b) for a, b in pairwise([0, *ends, len(line)]) if a < b]
    runs = _joined([(span, _lacks_lower_case(line, span, kept)) for span in sentences])
    runs = _joined([(span, upper and _has_words(line, span, kept)) for span, upper in runs])
    if not any(upper for _, upper in runs):
        return [((0, len(line)), False)]
    return [(_stripped(line, span), upper) for span, upper in runs]


def sentence_case(
    text: str,
    language: str | None = None,
    *,
    count_tokens: CountTokens | None = None,
    kept: Sequence[Span] = (),
) -> list[Edit]:
    """Edits that bring a text in capitals into sentence case.

    A word becomes lower case, and the first letter of a sentence stays. With `count_tokens`, a word
    becomes that of its forms (lower case, first letter a capital, all capitals) which has the
    fewest tokens: a vocabulary has "Boston" and "TV", but not "boston" and "tv".

    Args:
        text: in capitals.
        language: its code; Turkish and Azeri have an i without a dot.
        count_tokens: of the source's tokenizer.
        kept: parts that stay as they are, beside `kept_spans`.
    """
    kept = [*kept_spans(text), *kept]
    words = [m for m in _WORD.finditer(text) if not _within(m.span(), kept)]
    forms = [_forms(match[0], language) for match in words]
    lengths = [0] * (3 * len(forms))
    if count_tokens is not None:
        lengths = list(count_tokens([form for row in forms for form in row]))
    edits: list[Edit] = []
    done = 0
    for number, (match, row) in enumerate(zip(words, forms, strict=True)):
        best = min(range(3), key=lambda i, n=number: (lengths[3 * n + i], i))  # type: ignore[misc]
        form = row[best]
        if (not done or _SENTENCE_END.search(text, done, match.start())) and best == 0:
            form = row[1]
        edits.append((*match.span(), form))
        done = match.end()
    return edits


def capitals(text: str, language: str | None = None, kept: Sequence[Span] = ()) -> list[Edit]:
    """Edits that put a text in capitals.

    The German ß becomes SS, as Unicode has it: every font and every reader knows it. Greek loses
    its accents, and Turkish i keeps its dot.

    Args:
        text: a translation.
        language: its code.
        kept: parts that stay as they are, beside `kept_spans`.
    """
    spans = [*kept_spans(text), *kept]
    return [
        (place, place + 1, new)
        for place, character in enumerate(text)
        if (new := _upper(character, language)) != character
        if not any(start <= place < end for start, end in spans)
    ]


def _upper(character: str, language: str | None) -> str:
    if language in _WITH_DOTLESS_I and character == "i":
        return "İ"
    if language == "el":
        letters = unicodedata.normalize("NFD", character)
        plain = letters.replace("\u0301", "")  # the accent; a diaeresis stays
        return unicodedata.normalize("NFC", plain).upper()
    return character.upper()


def _lower(word: str, language: str | None) -> str:
    if language in _WITH_DOTLESS_I:
        word = word.replace("I", "ı").replace("İ", "i")
    return word.lower()


def _forms(word: str, language: str | None) -> tuple[str, str, str]:
    """A word in lower case, with a first capital, and as it is."""
    lower = _lower(word, language)
    first = word[0] + _lower(word[1:], language)
    if language in (None, "en") and re.fullmatch(r"I(?:['’].*)?", word):  # the pronoun
        return first, first, first
    return lower, first, word


def _stripped(line: str, span: Span) -> Span:
    part = line[slice(*span)]
    start = span[0] + len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def _joined(runs: Sequence[tuple[Span, bool]]) -> list[tuple[Span, bool]]:
    """Put neighbours of one kind together."""
    joined: list[tuple[Span, bool]] = []
    for span, kind in runs:
        if joined and joined[-1][1] == kind:
            joined[-1] = ((joined[-1][0][0], span[1]), kind)
        else:
            joined.append((span, kind))
    return joined


def _lacks_lower_case(line: str, span: Span, kept: Sequence[Span]) -> bool:
    return not any(
        line[place].islower() and not any(a <= place < b for a, b in kept) for place in range(*span)
    )


def _has_words(line: str, span: Span, kept: Sequence[Span]) -> bool:
    words = [m for m in _WORD.finditer(line, *span) if not _within(m.span(), kept)]
    long = [m for m in words if m.end() - m.start() > 1 and any(c.isupper() for c in m[0])]
    return len(long) >= FEWEST_WORDS


def _within(span: Span, others: Sequence[Span]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in others)
