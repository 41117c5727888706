"""Validation: the loss over real tokens, and a task's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import parametrize

from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.train.objective import Context, Objective

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.train.run_settings import ValidationSettings
    from heedful.train.update import Batch


@dataclass(frozen=True)
class Scores:
    """The result of a validation.

    Args:
        values: figures by name: `loss` in nats per token, `perplexity`, `bits_per_token` and the
            metrics.
        score: the one that decides, larger is better.
        sentences: how many were translated; 0 when only the loss was wanted.
        signatures: sacreBLEU's, by metric.
    """

    values: Mapping[str, float]
    score: float
    sentences: int
    signatures: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """The figures in a line."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


@dataclass(frozen=True)
class Measured:
    """Metrics by name, and the signature of each that has one."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """The metrics of a task beside its loss.

    Args:
        total: how many validation examples there are.
        score: measures a model in eval mode on the first examples, of a given number.
    """

    total: int
    score: Callable[[Any, int, Precision], Measured]


class Validator:
    """Scores a model on validation data.

    Args:
        batches: the data, iterated once a validation.
        objective: whose loss is measured; without label smoothing, as the model is in eval mode.
        settings: which score decides.
        precision: of the loss's forward passes.
        measure: the task's own metrics.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        objective: Objective,
        settings: ValidationSettings,
        *,
        precision: Precision,
        measure: Measure | None = None,
    ) -> None:
        self.batches = batches
        self.objective = objective
        self.settings = settings
        self.precision = precision
        self.measure = measure

    def __call__(self, model: Any, *, everything: bool = False) -> Scores:
        """Score a model in eval mode.

        Args:
            model: with the weights to judge.
            everything: measure on all examples, whatever the settings say for training.
        """
        count = self.sentences(everything=everything)
        # An adapted model's matrices are put together once, not at each step of the decoder.
        with torch.no_grad(), parametrize.cached():
            values = self._loss(model)
            measured = self._measured(model, count)
        values |= measured.values
        chosen = self.settings.choose_by
        score = -values["loss"] if chosen == "loss" else values[chosen]
        return Scores(values, score, count, measured.signatures)

    def sentences(self, *, everything: bool = False) -> int:
        """The number of examples measured beside the loss, which is that of all."""
        if self.measure is None or not self.settings.metrics:
            return 0
        limit, total = self.settings.max_sentences, self.measure.total
        return total if everything or limit is None else min(limit, total)

    def _measured(self, model: Any, count: int) -> Measured:
        if self.measure is None or not count:
            return Measured({})
        return self.measure.score(model, count, self.precision)

    def _loss(self, model: Any) -> dict[str, float]:
        device = next(model.parameters()).device
        nll, tokens = 0.0, 0
        for batch in self.batches:
            with self.precision.autocast():
                result = self.objective.loss(model, batch.to(device), Context(step=0))
            nll += float(result.extras["nll"])
            tokens += result.tokens
        return {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "bits_per_token": bits_per_unit(nll, tokens),
        }
