"""Checks by what the model thought: probabilities, attention, and what the source was good for."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.apps.quality.reports import CheckResult, Evidence
from heedful.search.alignment import Alignment

FEWEST_LETTERS = 3
"""Shorter words of a source, such as articles, may well be attended to by nobody."""


def check_probabilities(
    target: str,
    tokens: Sequence[str],
    token_scores: Sequence[float],
    *,
    least_mean: float,
    least_token: float,
) -> tuple[CheckResult, CheckResult]:
    """Look at the probabilities of a translation's tokens.

    Args:
        target: the translation.
        tokens: pieces that it is made of, for evidence.
        token_scores: natural-log probability of every token and end token.
        least_mean: mean below which the model was unsure.
        least_token: score of one token below which the model was unsure of a word.

    Returns:
        Whether it was unsure of the whole, and whether of a word.
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
    """Return the places of unlikely tokens, where the pieces spell the text."""
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
    """Find words of the source that the translation hardly attended to.

    Args:
        source: the text.
        alignment: of its words and those of the translation.
        least_attention: a word is covered if the words of the translation attended to it that much
            altogether; 1 is the whole attention of one word.
        most_uncovered: share of words that need not be covered.
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
    """Compare the probability of a translation with the one that it has without its source.

    Args:
        target: the translation.
        token_scores: natural-log probability of every token and end token, given the source.
        without_source: the same, given an empty source.
        least: difference of the means below which the translation owes nothing to its source.
    """
    count = max(len(token_scores), 1)
    value = (sum(token_scores) - sum(without_source)) / count
    failed = value < least
    whole = (Evidence("target", 0, len(target), target, "as probable without the source"),)
    return CheckResult("detached", failed, value, least, whole if failed else ())
