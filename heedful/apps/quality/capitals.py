"""Text in capitals: detection, conversion to sentence case, and conversion back to capitals.

Few training texts are in capitals, so a model treats such words almost like a foreign language.
Protected parts, such as addresses and placeholders, are ignored in detection and never changed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

from heedful.apps.quality.respelling import Edit, Span
from heedful.text.protected_spans import SPAN_KINDS, Protection

FEWEST_WORDS = 2
"""Minimum number of words of a sentence in capitals: a single word may be a name, such as NASA."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Function from words to the number of tokens of each word."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+")
# In Turkish and Azeri, I is the capital of ı, and İ the capital of i.
_WITH_DOTLESS_I = {"tr", "az"}


def kept_spans(text: str) -> list[Span]:
    """Parts of a text with significant case: addresses, placeholders, markup, code."""
    return Protection(SPAN_KINDS).find(text)


def capital_parts(line: str) -> list[tuple[Span, bool]]:
    """Split a line into runs of sentences in capitals and other sentences.

    Args:
        line: text of any number of sentences.

    Returns:
        Spans of the runs without outer white space, each with True if it is in capitals, which
        means at least two words of two or more letters and no lower case. A line without sentences
        in capitals is one run, with its outer white space.
    """
    kept = kept_spans(line)
    ends = [m.end() for m in _SENTENCE_END.finditer(line) if not _within(m.span(), kept)]
    sentences = [(a, b) for a, b in pairwise([0, *ends, len(line)]) if a < b]
    runs = _merge_runs([(span, _lacks_lower_case(line, span, kept)) for span in sentences])
    # Runs are merged before words are counted: only as a whole "NO. YES." counts as in capitals.
    runs = _merge_runs([(span, upper and _has_words(line, span, kept)) for span, upper in runs])
    if not any(upper for _, upper in runs):
        return [((0, len(line)), False)]
    return [(_strip(line, span), upper) for span, upper in runs]


def sentence_case(
    text: str,
    language: str | None = None,
    *,
    count_tokens: CountTokens | None = None,
    kept: Sequence[Span] = (),
) -> list[Edit]:
    """Return the edits that convert a text in capitals to sentence case.

    Words become lower case, except for the first letter of a sentence. With `count_tokens`, a word
    takes the form with the fewest tokens: lower case, first letter capital, or all capitals; a
    vocabulary has "Boston" and "TV", but not "boston" and "tv".

    Args:
        text: text in capitals.
        language: code of its language; Turkish and Azeri have an i without a dot.
        count_tokens: token counter of the source's tokenizer.
        kept: further parts that stay as they are.
    """
    kept = [*kept_spans(text), *kept]
    words = [m for m in _WORD.finditer(text) if not _within(m.span(), kept)]
    forms = [_forms(match[0], language) for match in words]
    lengths = [0] * (3 * len(forms))
    if count_tokens is not None:
        # All forms of all words are counted in one call, since the tokenizer works in batches.
        lengths = list(count_tokens([form for row in forms for form in row]))
    edits: list[Edit] = []
    done = 0
    for number, (match, row) in enumerate(zip(words, forms, strict=True)):
        # Among equal numbers of tokens, lower case comes first, then a capital first letter.
        best = min(range(3), key=lambda i, n=number: (lengths[3 * n + i], i))  # type: ignore[misc]
        form = row[best]
        if (not done or _SENTENCE_END.search(text, done, match.start())) and best == 0:
            form = row[1]
        edits.append((*match.span(), form))
        done = match.end()
    return edits


def capitals(text: str, language: str | None = None, kept: Sequence[Span] = ()) -> list[Edit]:
    """Return the edits that put a text in capitals.

    German ß becomes SS, as in Unicode's mapping, since every font has it. Greek loses its accents,
    and Turkish i keeps its dot.

    Args:
        text: text of a translation.
        language: code of its language.
        kept: further parts that stay as they are.
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
        plain = letters.replace("\u0301", "")  # drops the accent; a diaeresis stays
        return unicodedata.normalize("NFC", plain).upper()
    return character.upper()


def _lower(word: str, language: str | None) -> str:
    if language in _WITH_DOTLESS_I:
        word = word.replace("I", "ı").replace("İ", "i")
    return word.lower()


def _forms(word: str, language: str | None) -> tuple[str, str, str]:
    """Return a word in lower case, with a capital first letter, and unchanged."""
    lower = _lower(word, language)
    first = word[0] + _lower(word[1:], language)
    if language in (None, "en") and re.fullmatch(r"I(?:['’].*)?", word):  # the pronoun "I"
        return first, first, first
    return lower, first, word


def _strip(line: str, span: Span) -> Span:
    part = line[slice(*span)]
    start = span[0] + len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def _merge_runs(runs: Sequence[tuple[Span, bool]]) -> list[tuple[Span, bool]]:
    """Merge adjacent runs of the same kind."""
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
