"""Metrics of classifiers, taggers and readers: accuracy, macro F1, F1 of spans, SQuAD's scores."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(predictions: Sequence[int], references: Sequence[int]) -> float:
    """Return the share of texts with the right label, 0 to 1.

    Args:
        predictions: the model's label of each text; at least one.
        references: the right label of each.
    """
    pairs = zip(predictions, references, strict=True)
    return sum(predicted == right for predicted, right in pairs) / len(references)


def macro_f1(predictions: Sequence[int], references: Sequence[int]) -> float:
    """Return the mean over labels of F1, the harmonic mean of precision and recall, 0 to 1.

    Every label counts alike, however rare. A label that neither the model nor the references use
    has no F1 and does not count.

    Args:
        predictions: the model's label of each text; at least one.
        references: the right label of each.
    """
    scores = []
    for label in sorted({*predictions, *references}):
        pairs = zip(predictions, references, strict=True)
        both = sum(predicted == right == label for predicted, right in pairs)
        scores.append(2 * both / (predictions.count(label) + references.count(label)))
    return sum(scores) / len(scores)


class Span(NamedTuple):
    """Consecutive words that belong together.

    Args:
        start: number of the first word.
        end: number of the one after the last.
        kind: the kind of span, such as `PER`.
    """

    start: int
    end: int
    kind: str


def mark_spans(tags: Iterable[str]) -> bool:
    """Return whether these tags mark spans: O, B-… and I-… only, and not O alone."""
    names = set(tags) - {OUTSIDE}
    return bool(names) and all(tag[:2] in ("B-", "I-") and len(tag) > 2 for tag in names)


def spans_of(tags: Sequence[str | None]) -> list[Span]:
    """Return the spans that B- and I- tags mark (Tjong Kim Sang 2000).

    A span begins at B-, and at I- where the word before is not of the same kind, so that an I-
    without its B- is not lost; it goes on over each I- of its kind.

    Args:
        tags: of a sentence's words; None, like O, is outside.
    """
    spans: list[Span] = []
    start, kind = 0, None
    for index, tag in enumerate([*tags, None]):
        tag_kind = None if tag is None or tag == OUTSIDE else tag[2:]
        continues = tag is not None and tag.startswith("I-") and tag_kind == kind
        if continues:
            continue
        if kind is not None:
            spans.append(Span(start, index, kind))
        start, kind = index, tag_kind
    return spans


def span_f1(
    predictions: Sequence[Sequence[str | None]], references: Sequence[Sequence[str]]
) -> float:
    """Return F1 of the spans over all sentences, 0 to 1.

    A span counts where its first word, its last and its kind are all right. Where there are no
    spans and none are predicted, all is right: 1.

    Args:
        predictions: the model's tags of each sentence.
        references: the right tags of each.
    """
    both = num_predicted = num_right = 0
    for predicted_tags, right_tags in zip(predictions, references, strict=True):
        predicted, right = set(spans_of(predicted_tags)), set(spans_of(right_tags))
        both += len(predicted & right)
        num_predicted += len(predicted)
        num_right += len(right)
    return 2 * both / (num_predicted + num_right) if num_predicted + num_right else 1.0


def normalized_answer(text: str) -> str:
    """Lower-case an answer, drop ASCII punctuation and English articles, use single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the share of questions answered as a person did, 0 to 1 (Rajpurkar 2016, 6.1).

    Args:
        predictions: the model's answers, empty where it finds none; at least one.
        references: people's answers to each question; none where the text does not answer.
    """

    def equal(predicted: str, right: str) -> float:
        return float(normalized_answer(predicted) == normalized_answer(right))

    return _mean_of_best(predictions, references, equal)


def answer_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the mean over questions of F1 of the words, against the nearest answer, 0 to 1.

    Args:
        predictions: the model's answers, empty where it finds none; at least one.
        references: people's answers to each question; none where the text does not answer.
    """
    return _mean_of_best(predictions, references, _word_f1)


def _mean_of_best(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    score: Callable[[str, str], float],
) -> float:
    best = [
        max(score(predicted, right) for right in answers or [""])
        for predicted, answers in zip(predictions, references, strict=True)
    ]
    return sum(best) / len(best)


def _word_f1(predicted: str, right: str) -> float:
    words, right_words = normalized_answer(predicted).split(), normalized_answer(right).split()
    if not words or not right_words:  # nothing to share: both must be empty
        return float(words == right_words)
    both = (Counter(words) & Counter(right_words)).total()
    return 2 * both / (len(words) + len(right_words))
