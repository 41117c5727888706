"""Base class of metrics from outside the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class _Score:
    """A score in the form of sacreBLEU's."""

    score: float


class RegisteredMetric:
    """Base class of metrics for `heedful.register`.

    A subclass sets `name` and implements `statistics` and `score`. Larger scores must be better.
    Scores are computed from sums over examples, as those of sacreBLEU, so that resamples for
    intervals and p-values cost a sum each. For a mean these are the values and the number 1.

    Attributes:
        name: name in settings.
        tasks: tasks of training whose outputs it scores.
    """

    family: ClassVar[str] = "metric"
    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = ("translation",)

    @classmethod
    def known_as(cls) -> str:
        """Return its name in settings."""
        return cls.name

    def statistics(self, output: Any, references: Sequence[Any]) -> Sequence[float]:
        """Return the numbers of one example that are summed over all examples.

        Args:
            output: text, label or tags of a sentence that the model wrote.
            references: right outputs of this example, at least one unless a question has none.
        """
        raise NotImplementedError

    def score(self, sums: Sequence[float]) -> float:
        """Return the score of all examples.

        Args:
            sums: sums of `statistics` over the examples.
        """
        raise NotImplementedError

    # The methods by which sacreBLEU's metrics are used here, its private ones included.
    def corpus_score(self, outputs: Sequence[Any], references: Sequence[Sequence[Any]]) -> _Score:
        """Score outputs against lists of references, each as long as the outputs."""
        rows = self._extract_corpus_statistics(outputs, references)
        return self._compute_score_from_stats([sum(column) for column in zip(*rows, strict=True)])

    def get_signature(self) -> str:
        """Return what the score depends on: the metric's name and its class."""
        return f"{self.name}|class:{type(self).__module__}.{type(self).__qualname__}"

    def _extract_corpus_statistics(
        self, outputs: Sequence[Any], references: Sequence[Sequence[Any]]
    ) -> list[Sequence[float]]:
        examples = zip(outputs, zip(*references, strict=True), strict=True)
        return [self.statistics(output, right) for output, right in examples]

    def _compute_score_from_stats(self, sums: Sequence[float]) -> _Score:
        return _Score(float(self.score(sums)))
