"""Validation: the loss over real tokens, and what a task measures besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.utils import parametrize

from heedful.evaluate.perplexity import bits_per_unit, perplexity
from heedful.train.objective import Context, Objective

if TYPE_CHECKING:
    from heedful.device import Precision
    from heedful.train.settings import ValidationSettings
    from heedful.train.update import Batch


@dataclass(frozen=True)
class Scores:
    """What a validation came to.

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
    """Metrics by name, and how each was computed."""

    values: Mapping[str, float]
    signatures: Mapping[str, str]


class Measure(Protocol):
    """What is measured of a model beside its loss."""

    def count(self, *, everything: bool) -> int:
        """How many examples are looked at: all, or those that are wanted while training."""
        ...

    def __call__(self, model: Any, count: int) -> Measured:
        """Measure a model in eval mode on the first examples."""
        ...


class Validator:
    """Scores a model on validation data.

    Args:
        batches: the data, gone through anew each time.
        objective: whose loss is measured; without label smoothing, as the model is in eval mode.
        settings: which score decides.
        precision: of the loss's forward passes.
        measure: what to measure besides.
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
            measured = self.measure(model, count) if self.measure and count else Measured({}, {})
        values |= measured.values
        chosen = self.settings.choose_by
        score = -values["loss"] if chosen == "loss" else values[chosen]
        return Scores(values, score, count, measured.signatures)

    def sentences(self, *, everything: bool = False) -> int:
        """How many examples are measured beside the loss, which is that of all."""
        return self.measure.count(everything=everything) if self.measure is not None else 0

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
