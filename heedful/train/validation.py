"""Validation: the loss over real tokens, and a task's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils import parametrize

from heedful.engines.training.training_engine import prepare_training
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.evaluate.task_metrics import accuracy, macro_f1
from heedful.train.objective import CarriedState, LossContext, Objective, Scorer

if TYPE_CHECKING:
    from heedful.data.batch_plan import Indices
    from heedful.device import Precision
    from heedful.events import Sample
    from heedful.train.batch_source import Batch
    from heedful.train.run_settings import ValidationSettings


@dataclass(frozen=True)
class Scores:
    """The result of a validation.

    Args:
        values: figures by name: `loss` in nats per token, `perplexity`, `bits_per_token` and the
            metrics.
        score: the one that decides, larger is better.
        sentences: how many were translated; 0 when only the loss was wanted.
        signatures: sacreBLEU's, by metric.
        samples: texts that were written, of the same few examples each time.
    """

    values: Mapping[str, float]
    score: float
    sentences: int
    signatures: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    def describe(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


@dataclass(frozen=True)
class Measured:
    """Metrics by name, the signature of each that has one, and a few of the texts."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Measure:
    """The metrics of a task beside its loss.

    Args:
        total: how many validation examples there are.
        score: measures a model in eval mode on the first examples, of a given number; calls its
            last argument after each batch.
    """

    total: int
    score: Callable[[Any, int, Precision, Callable[[], None]], Measured]


class Validator:
    """Scores a model on validation data.

    Args:
        batches: the data, iterated once a validation.
        objective: whose loss is measured; without label smoothing, as the model is in eval mode.
        settings: which score decides.
        precision: of the loss's forward passes.
        measure: the task's own metrics.
        on_batch: called after each batch.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        objective: Objective,
        settings: ValidationSettings,
        *,
        precision: Precision,
        measure: Measure | None = None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self.batches = batches
        self.objective = objective
        self.settings = settings
        self.precision = precision
        self.measure = measure
        self.on_batch = on_batch

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
            measured = Measured({})
            if self.measure is not None and count:
                measured = self.measure.score(model, count, self.precision, self.on_batch)
        values |= measured.values
        chosen = self.settings.choose_by
        score = -values["loss"] if chosen == "loss" else values[chosen]
        return Scores(values, score, count, measured.signatures, measured.samples)

    def sentences(self, *, everything: bool = False) -> int:
        """The number of examples measured beside the loss, which is that of all."""
        if self.measure is None or not self.settings.metrics:
            return 0
        limit, total = self.settings.max_sentences, self.measure.total
        return total if everything or limit is None else min(limit, total)

    def _loss(self, model: Any) -> dict[str, float]:
        device = next(model.parameters()).device
        nll, tokens = 0.0, 0
        carried: CarriedState = {}
        engine = prepare_training(model, device)
        for batch in self.batches:
            with self.precision.autocast(), engine.active():
                context = LossContext(0, carried, engine.losses)
                result = self.objective.loss(model, batch.to(device), context)
            carried = result.carried_state
            nll += float(result.extras["nll"])
            tokens += result.tokens
            self.on_batch()
        return {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "bits_per_token": bits_per_unit(nll, tokens),
        }


_LABEL_METRICS: Mapping[str, Callable[[Sequence[int], Sequence[int]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
}


def label_measure(
    metrics: Iterable[str],
    scorer: Scorer,
    labels: Indices,
    plan: Callable[[int], Iterable[Indices]],
    make: Callable[[Indices], Any],
) -> Measure:
    """Metrics of the labels that a model gives examples.

    Args:
        metrics: `accuracy`, `macro_f1`.
        scorer: runs the model.
        labels: the right label of each example [N] int64.
        plan: the numbers below a count, in batches; an example's label does not depend on which.
        make: a batch of examples by their numbers.
    """

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        device = next(model.parameters()).device
        engine = prepare_training(model, device)
        predictions = np.zeros(count, np.int64)
        for indices in plan(count):
            batch = make(indices).to(device)
            with precision.autocast(), engine.active():
                scores, _ = scorer(model, batch)
            predictions[indices] = scores.argmax(-1).cpu().numpy()
            on_batch()
        ours, right = predictions.tolist(), labels[:count].tolist()
        return Measured({name: _LABEL_METRICS[name](ours, right) for name in metrics})

    return Measure(len(labels), score)
