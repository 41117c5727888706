"""Checks of the model's probabilities, its attention, and the influence of the source."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.apps.quality.reports import CheckResult, Evidence
from heedful.search.alignment import Alignment

FEWEST_LETTERS = 3
"""Letters below which a word of the source, such as an article, may get no attention."""


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
        tokens: its tokens, for evidence.
        token_scores: log-probability of every token and end token, in nats.
        least_mean: mean log-probability below which the check of the whole fails.
        least_token: log-probability of a token below which the check of words fails.

    Returns:
        The results of the check of the whole and of the check of words.
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
    from heedful.text.pretokenization import MARK

    evidence = []
    end = 0
    for token, score in zip(tokens, token_scores, strict=False):
        piece = token.replace(MARK, " ").strip()
        start = target.find(piece, end) if piece else -1
        if start < 0:
            continue
        end = start + len(piece)
        if score < least:
            evidence.append(Evidence("target", start, end, piece, f"log-probability {score:.1f}"))
    return tuple(evidence)


def check_coverage(
    source: str, alignment: Alignment, *, least_attention: float, most_uncovered: float
) -> CheckResult:
    """Find words of the source that got little attention.

    Args:
        source: source text.
        alignment: alignment between its words and those of the translation.
        least_attention: sum of attention, over all words of the translation, from which a word is
            covered; 1 is the whole attention of one word.
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
    target: str, token_scores: Sequence[float], without_source: Sequence[float], *, least: float
) -> CheckResult:
    """Compare the probabilities of a translation with and without its source.

    Args:
        target: text of the translation.
        token_scores: log-probability of every token and end token given the source, in nats.
        without_source: log-probabilities given an empty source, in nats.
        least: difference of the means below which the translation ignores its source.
    """
    count = max(len(token_scores), 1)
    value = (sum(token_scores) - sum(without_source)) / count
    failed = value < least
    whole = (Evidence("target", 0, len(target), target, "as probable without the source"),)
    return CheckResult("detached", failed, value, least, whole if failed else ())
