"""Checks of the model's probabilities, its attention, and the influence of the source."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.apps.quality.reports import CheckResult, Evidence
from heedful.apps.quality.wording_checks import word_keys
from heedful.search.alignment import Alignment

FEWEST_LETTERS = 3
"""Number of letters below which a source word, such as an article, may get no attention."""


def check_probabilities(
    target: str,
    tokens: Sequence[str],
    token_scores: Sequence[float],
    *,
    least_mean: float,
    least_token: float,
) -> tuple[CheckResult, CheckResult]:
    """Check the probabilities of a translation's tokens.

    Args:
        target: text of the translation.
        tokens: tokens of the translation, for evidence.
        token_scores: log-probability of every token and end token, in nats.
        least_mean: mean log-probability below which the check of the whole translation fails.
        least_token: log-probability of a token below which the check of words fails.

    Returns:
        The results of the check of the whole translation and of the check of words.
    """
    mean = sum(token_scores) / max(len(token_scores), 1)
    lowest = min(token_scores, default=0.0)
    whole = (Evidence("target", 0, len(target), target, "unlikely"),)
    return (
        CheckResult("unsure", mean < least_mean, mean, least_mean, whole * (mean < least_mean)),
        CheckResult(
            "unsure_word",
            lowest < least_token,
            lowest,
            least_token,
            _unlikely_tokens(target, tokens, token_scores, least_token),
        ),
    )


def _unlikely_tokens(
    target: str, tokens: Sequence[str], token_scores: Sequence[float], least: float
) -> tuple[Evidence, ...]:
    """Return the ranges of unlikely tokens, if the tokens spell the text."""
    return tuple(
        Evidence("target", a, b, target[a:b], f"log-probability {token_scores[number]:.1f}")
        for number, a, b in token_spans(target, tokens)
        if token_scores[number] < least
    )


def check_coverage(
    source: str, alignment: Alignment, *, least_attention: float, most_uncovered: float
) -> CheckResult:
    """Find words of the source that got little attention.

    Args:
        source: source text.
        alignment: alignment between its words and those of the translation.
        least_attention: minimum attention to a covered word, summed over all words of the
            translation; 1 is the whole attention of one of them.
        most_uncovered: share of words that may stay uncovered.
    """
    received = covered(alignment)
    words = alignment.source_words
    counting = [i for i, word in enumerate(words) if sum(map(str.isalpha, word)) >= FEWEST_LETTERS]
    missed = [i for i in counting if received[i] < least_attention]
    value = len(missed) / max(len(counting), 1)
    failed = value > most_uncovered
    return CheckResult(
        "uncovered", failed, value, most_uncovered, _places(source, words, missed) if failed else ()
    )


def covered(alignment: Alignment) -> list[float]:
    """Return the attention that each word of a source got from all words of its translation."""
    if not alignment.matrix:
        return [0.0] * len(alignment.source_words)
    return [sum(column) for column in zip(*alignment.matrix, strict=True)]


def _places(source: str, words: Sequence[str], chosen: Sequence[int]) -> tuple[Evidence, ...]:
    evidence = []
    wanted = set(chosen)
    end = 0
    for i, word in enumerate(words):
        start = source.find(word, end)
        if start < 0:
            continue
        end = start + len(word)
        if i in wanted:
            evidence.append(Evidence("source", start, end, word, "hardly attended to"))
    return tuple(evidence)


def check_detached(
    source: str,
    target: str,
    gains: Sequence[float],
    *,
    least: float,
) -> CheckResult:
    """Check that the source makes a translation more probable than other sources do.

    In an unfamiliar domain a model gains little from any source. Names, numbers and loanwords that
    both texts share are then better evidence than the model.

    Args:
        source: source text.
        target: text of the translation.
        gains: mean gains in log-probability of a token from the source, compared with each of the
            other sources or in each direction, in nats.
        least: gain below which the target counts as the translation of another text.
    """
    shared = min(len(word_keys(source, _KEY) & word_keys(target, _KEY)), _MOST_SHARED)
    value = sum(gains) / max(len(gains), 1) + _SHARED_WORD * shared
    failed = value < least
    whole = (Evidence("target", 0, len(target), target, "as probable with another source"),)
    return CheckResult("detached", failed, value, least, whole if failed else ())


# Letters that a shared word begins with: Persians, Perser. Five gave twice as many false alarms.
_KEY = 4
_SHARED_WORD = 0.4
_MOST_SHARED = 3


def token_spans(target: str, tokens: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return the index and the span of each token that spells a part of the text."""
    from heedful.text.pretokenization import MARK

    found, end = [], 0
    for number, token in enumerate(tokens):
        piece = token.replace(MARK, " ").strip()
        start = target.find(piece, end) if piece else -1
        if start >= 0:
            end = start + len(piece)
            found.append((number, start, end))
    return found
