"""How well questions are answered, as SQuAD defines it (Rajpurkar 2016, section 6.1)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """A text in lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(given: Sequence[str], right: Sequence[Sequence[str]]) -> float:
    """The share of questions whose answer is one of those that people gave, 0 to 1.

    Args:
        given: the answers by the model, empty where it found none; at least one.
        right: people's answers to each question; none where the text does not answer.
    """
    return _mean(given, right, lambda ours, theirs: float(normalized(ours) == normalized(theirs)))


def word_f1(given: Sequence[str], right: Sequence[Sequence[str]]) -> float:
    """The mean over questions of F1 of the answer's words, against the nearest answer, 0 to 1.

    Args:
        given: the answers by the model, empty where it found none; at least one.
        right: people's answers to each question; none where the text does not answer.
    """
    return _mean(given, right, _overlap)


def _mean(
    given: Sequence[str], right: Sequence[Sequence[str]], score: Callable[[str, str], float]
) -> float:
    best = [
        max(score(ours, theirs) for theirs in several or [""])
        for ours, several in zip(given, right, strict=True)
    ]
    return sum(best) / len(best)


def _overlap(ours: str, theirs: str) -> float:
    ours_words, theirs_words = normalized(ours).split(), normalized(theirs).split()
    if not ours_words or not theirs_words:  # nothing to share: both must be empty
        return float(ours_words == theirs_words)
    both = (Counter(ours_words) & Counter(theirs_words)).total()
    return 2 * both / (len(ours_words) + len(theirs_words))
