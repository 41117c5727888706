"""Metrics of models that write texts of other tasks than translation: summaries, answers, names.

All are from 0 to 100, and a higher one is better, as BLEU is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from heedful.errors import ConfigError
from heedful.evaluate.registered_metric import CountedF1, RegisteredMetric
from heedful.evaluate.task_metrics import answer_exact_match, answer_f1


class _Mean(RegisteredMetric):
    """Base of metrics that are means of the scores of examples."""

    def statistics(self, output: str, references: Sequence[Any]) -> Sequence[float]:
        """Return the score of an example against the nearest reference, and 1."""
        # Files of references have the same number of lines: an empty one stands for none.
        return self.score_one(output, [text for text in references if text] or [""]), 1

    def score(self, sums: Sequence[float]) -> float:
        total, count = sums
        return 100 * total / count

    def score_one(self, output: str, references: Sequence[str]) -> float:
        """Return the score of an example, 0 to 1."""
        raise NotImplementedError


class Rouge1(_Mean):
    """ROUGE-1 (Lin 2004): F1 of the words of a summary, by the library rouge-score, with stems."""

    name: ClassVar[str] = "rouge1"

    def score_one(self, output: str, references: Sequence[str]) -> float:
        """Return F1 against the nearest reference.

        Raises:
            ConfigError: when the library is not installed.
        """
        scorer = _rouge_scorer(self.name)
        return max(float(scorer.score(text, output)[self.name].fmeasure) for text in references)

    def get_signature(self) -> str:
        return f"{self.name}|library:rouge-score|stems:yes|references:nearest"


class Rouge2(Rouge1):
    """ROUGE-2: F1 of pairs of words."""

    name: ClassVar[str] = "rouge2"


class RougeL(Rouge1):
    """ROUGE-L: F1 of the longest common subsequence of words."""

    name: ClassVar[str] = "rougeL"


class AnswerExact(_Mean):
    """The share of answers that equal one of the references, as SQuAD's script compares them."""

    name: ClassVar[str] = "answer_exact"

    def score_one(self, output: str, references: Sequence[str]) -> float:
        return answer_exact_match([output], [references])


class AnswerF1(_Mean):
    """F1 of the words of answers, as SQuAD's script counts them."""

    name: ClassVar[str] = "answer_f1"

    def score_one(self, output: str, references: Sequence[str]) -> float:
        return answer_f1([output], [references])


class EntityF1(CountedF1):
    """F1 of named entities that are written as `person: Ada Lovelace ; location: London`.

    An entity is right if its kind and its words are. A text without a colon names none.
    """

    name: ClassVar[str] = "entity_f1"

    def statistics(self, output: str, references: Sequence[Any]) -> Sequence[float]:
        """Return the numbers of right entities, of those in the output, and in the reference."""
        found, right = _entities(output), _entities(references[0])
        return (found & right).total(), found.total(), right.total()


def _entities(text: str) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for part in text.split(" ; "):
        kind, colon, words = part.partition(":")
        if colon:
            found[kind.strip(), " ".join(words.split())] += 1
    return found


@cache
def _rouge_scorer(name: str) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            "ROUGE needs the library rouge-score, which is not installed",
            where="metrics",
            remedy="pip install 'heedful[rouge]' adds it",
        ) from None
    return RougeScorer([name], use_stemmer=True)
