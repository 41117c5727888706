"""Base class of metrics from outside the package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from heedful.errors import ConfigError


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

    def score_of(self, outputs: Iterable[Any], references: Iterable[Sequence[Any]]) -> float:
        """Return the score of outputs.

        Args:
            outputs: outputs of the model.
            references: right outputs of each example.

        Raises:
            ConfigError: when the metric fails, or its score is no finite number.
        """
        rows = self._rows(outputs, references)
        with self._blamed():
            score = float(self.score([sum(column) for column in zip(*rows, strict=True)]))
            # No score would ever be better than NaN, so the best model would never be found.
            if not math.isfinite(score):
                raise ValueError(f"the score is {score}")
        return score

    def _rows(
        self, outputs: Iterable[Any], references: Iterable[Sequence[Any]]
    ) -> list[Sequence[float]]:
        with self._blamed():
            examples = zip(outputs, references, strict=True)
            return [self.statistics(output, right) for output, right in examples]

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """A context whose errors name the metric, so that nobody seeks them in Heedful."""
        try:
            yield
        except Exception as error:
            raise ConfigError(
                f"The metric {self.name} fails: {type(error).__name__}: {error}",
                where=f"{type(self).__module__}.{type(self).__qualname__}",
                remedy="Correct it, or leave it out of the metrics",
            ) from error

    # The methods by which sacreBLEU's metrics are used here, its private ones included.
    def corpus_score(self, outputs: Sequence[Any], references: Sequence[Sequence[Any]]) -> _Score:
        """Score outputs against lists of references, each as long as the outputs."""
        return _Score(self.score_of(outputs, zip(*references, strict=True)))

    def get_signature(self) -> str:
        """Return what the score depends on: the metric's name and its class."""
        return f"{self.name}|class:{type(self).__module__}.{type(self).__qualname__}"

    def _extract_corpus_statistics(
        self, outputs: Sequence[Any], references: Sequence[Sequence[Any]]
    ) -> list[Sequence[float]]:
        return self._rows(outputs, zip(*references, strict=True))

    def _compute_score_from_stats(self, sums: Sequence[float]) -> _Score:
        return _Score(float(self.score(sums)))


class CountedF1(RegisteredMetric):
    """Base of metrics that are F1 of counts over all examples, 0 to 100.

    `statistics` gives the numbers of right things, of those in the output, and of those in the
    reference.
    """

    def score(self, sums: Sequence[float]) -> float:
        """Return F1; 100 where nothing was to be found and nothing was."""
        both, found, wanted = sums
        return 200 * both / (found + wanted) if found + wanted else 100.0
