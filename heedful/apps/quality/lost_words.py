"""Words of a source that its translation lost, by contrast with the source without them.

A translation that says what a word says is less probable without the word. One that is as probable,
or more, was likely not made from it (Vamvas and Sennrich 2022, "As Little as Possible, as Much as
Necessary", ACL). It costs a pass of the model for each word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from heedful.apps.quality.reports import CheckResult, Evidence
from heedful.text.pretokenization import word_spans

if TYPE_CHECKING:
    from heedful.pipelines.text_splitting import Warn
    from heedful.pipelines.translation import TranslationPipeline

FEWEST_LETTERS = 4
"""Letters below which a word is not asked for: few articles and prepositions have a word of their
own in the translation. `engine/lost_words.js` has the same rules."""

_LARGEST = math.log(1e6)  # a larger ratio tells nothing more
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[.,;:!?…])")


class Shortened(NamedTuple):
    """A text without one of its words, which stood from `start` to `end`."""

    start: int
    end: int
    text: str


def without_each_word(text: str) -> list[Shortened]:
    """Return a text without each of its words of four letters and more, in their order.

    A word is what stands between spaces, without the marks around it. Contractions such as "don't"
    and numbers are no words here, nor is what is written without spaces; of a text of a single word
    nothing would be left.
    """
    spans = [_inner(text, *span) for span in word_spans(text)]
    if len(spans) < 2:
        return []
    return [
        Shortened(start, end, _joined(text[:start], text[end:]))
        for start, end in spans
        if _counts(text[start:end])
    ]


def gains_without_words(
    pipeline: TranslationPipeline, pairs: Sequence[tuple[str, str]], *, warn: Warn | None = None
) -> list[list[tuple[Shortened, float]]]:
    """Return how much more probable translations are without the words of their sources.

    Args:
        pipeline: translator that made the translations.
        pairs: each source and its translation, of one line each.
        warn: function called with a message when memory ran out and a batch was split.

    Returns:
        For each pair, the source without each word, and the change of the translation's
        log-probability then, in nats; below 0 for a word that it needs.

    Raises:
        DataError: when a text has more tokens than the model has learned positions.
    """
    shortened = [without_each_word(source) for source, _ in pairs]
    asked = [
        (text, target)
        for (source, target), words in zip(pairs, shortened, strict=True)
        if words
        for text in (source, *(each.text for each in words))
    ]
    scores = iter(pipeline.score(*zip(*asked, strict=True), warn=warn) if asked else ())
    result = []
    for words in shortened:
        whole = next(scores).score if words else 0.0
        result.append([(each, next(scores).score - whole) for each in words])
    return result


def check_lost_words(
    source: str, gains: Sequence[tuple[Shortened, float]], *, most_gain: float
) -> CheckResult:
    """Check that a translation does not become more probable when a word of its source is left out.

    Args:
        source: source text.
        gains: result of `gains_without_words` for it, with a word at least.
        most_gain: change above which the word counts as lost.
    """
    lost = tuple(
        Evidence("source", start, end, source[start:end], _note(gain))
        for (start, end, _), gain in gains
        if gain > most_gain
    )
    value = max(gain for _, gain in gains)
    return CheckResult("lost_words", bool(lost), value, most_gain, lost)


def _inner(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of a word without the marks around it; an empty one if it has no letter."""
    kept = [i for i in range(start, end) if text[i].isalnum()]
    return (kept[0], kept[-1] + 1) if kept else (start, start)


def _counts(word: str) -> bool:
    """Return True for a word that a translation should not do without."""
    plain = not any(sign in "'’" or sign.isdecimal() for sign in word)
    return plain and sum(map(str.isalpha, word)) >= FEWEST_LETTERS


def _joined(before: str, after: str) -> str:
    return _SPACE_BEFORE_MARK.sub("", " ".join(f"{before}{after}".split()))


def _note(gain: float) -> str:
    times = math.exp(min(gain, _LARGEST))
    shown = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
    return f"the translation is {shown} times as probable without it"
