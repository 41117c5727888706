"""Metrics of classifiers, taggers and question answering: accuracy, F1, span F1, SQuAD's scores."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from heedful.registry import find

OUTSIDE = "O"  # the tag of a word outside of all spans

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(predictions: Sequence[int], references: Sequence[int]) -> float:
    """Return the share of texts with the right label, 0 to 1.

    Args:
        predictions: predicted label of each text, at least one.
        references: correct label of each text.
    """
    pairs = zip(predictions, references, strict=True)
    return sum(predicted == right for predicted, right in pairs) / len(references)


def macro_f1(predictions: Sequence[int], references: Sequence[int]) -> float:
    """Return the mean over labels of F1, the harmonic mean of precision and recall, 0 to 1.

    Every label has the same weight, however rare. A label that occurs neither in predictions nor in
    references has no F1 and is left out.

    Args:
        predictions: predicted label of each text, at least one.
        references: correct label of each text.
    """
    scores = []
    for label in sorted({*predictions, *references}):
        pairs = zip(predictions, references, strict=True)
        both = sum(predicted == right == label for predicted, right in pairs)
        # F1 = 2 TP / (predicted + actual), which needs no case for a precision of 0 / 0.
        scores.append(2 * both / (predictions.count(label) + references.count(label)))
    return sum(scores) / len(scores)


def word_error_rate(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Return the words to change, add and leave out, by the words of the references; 0 is best.

    Args:
        predictions: text of each example, at least one.
        references: correct text of each example.
    """
    pairs = zip(predictions, references, strict=True)
    errors = sum(_edits(predicted.split(), right.split()) for predicted, right in pairs)
    return errors / max(1, sum(len(right.split()) for right in references))


def _edits(ours: Sequence[str], right: Sequence[str]) -> int:
    """Return the smallest number of changes that make one sequence the other (Levenshtein)."""
    # Edits between the words of `ours` so far and each beginning of `right`.
    row = list(range(len(right) + 1))
    for count, word in enumerate(ours, start=1):
        before, row = row, [count]
        for place, other in enumerate(right):
            replaced = before[place] + (word != other)
            row.append(min(replaced, before[place + 1] + 1, row[place] + 1))
    return row[-1]


class Span(NamedTuple):
    """A span of consecutive words.

    Args:
        start: index of the first word.
        end: index after the last word.
        kind: label of the span, such as `PER`.
    """

    start: int
    end: int
    kind: str


def mark_spans(tags: Iterable[str]) -> bool:
    """Return True if tags mark spans: all are O, B-… or I-…, and at least one is not O."""
    names = set(tags) - {OUTSIDE}
    return bool(names) and all(tag[:2] in ("B-", "I-") and len(tag) > 2 for tag in names)


def spans_of(tags: Sequence[str | None]) -> list[Span]:
    """Return the spans of B- and I- tags (Tjong Kim Sang 2000).

    A span begins at B-, or at I- after a word of another kind, so that an I- without its B- is not
    lost. It continues over each following I- of its kind.

    Args:
        tags: tags of a sentence's words; None is O.
    """
    spans: list[Span] = []
    start, kind = 0, None
    for index, tag in enumerate([*tags, None]):  # the last one closes an open span
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

    A span is correct if its first word, its last word and its kind are. Without any spans in
    predictions and references the score is 1.

    Args:
        predictions: predicted tags of each sentence.
        references: correct tags of each sentence.
    """
    # Micro-averaged as by CoNLL's script: spans are counted over all sentences.
    both = num_predicted = num_right = 0
    for predicted_tags, right_tags in zip(predictions, references, strict=True):
        predicted, right = set(spans_of(predicted_tags)), set(spans_of(right_tags))
        both += len(predicted & right)
        num_predicted += len(predicted)
        num_right += len(right)
    return 2 * both / (num_predicted + num_right) if num_predicted + num_right else 1.0


def normalized_answer(text: str) -> str:
    """Normalise as SQuAD's script: lower case, no punctuation and articles, single spaces."""
    # Punctuation first, as in the script: the a of `a.m.` is no article.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the share of predictions that equal an annotated answer, 0 to 1 (Rajpurkar 2016, 6.1).

    Args:
        predictions: predicted answers, empty for no answer; at least one.
        references: annotated answers of each question; none for a question without an answer.
    """

    def equal(predicted: str, right: str) -> float:
        return float(normalized_answer(predicted) == normalized_answer(right))

    return _mean_of_best(predictions, references, equal)


def answer_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the mean over questions of the word F1 against the most similar answer, 0 to 1.

    Args:
        predictions: predicted answers, empty for no answer; at least one.
        references: annotated answers of each question; none for a question without an answer.
    """
    return _mean_of_best(predictions, references, _word_f1)


def _mean_of_best(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    score: Callable[[str, str], float],
) -> float:
    best = [
        # A question without an answer is answered rightly by nothing (SQuAD 2.0, Rajpurkar 2018).
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


def scores_by_name(
    names: Iterable[str],
    own: Mapping[str, Callable[[], float]],
    outputs: Sequence[Any],
    references: Sequence[Sequence[Any]],
) -> dict[str, float]:
    """Compute metrics of a task, its own and registered ones.

    Args:
        names: names of the metrics.
        own: functions that compute the task's own metrics.
        outputs: outputs of the model, for registered metrics.
        references: right outputs of each example.

    Raises:
        ValueError: when no metric has a name.
        ConfigError: when a registered metric fails.
    """
    values = {}
    for name in names:
        if name in own:
            values[name] = own[name]()
        else:
            values[name] = find("metric", name, tuple(own))().score_of(outputs, references)
    return values
