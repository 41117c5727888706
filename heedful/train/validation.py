"""Validation: the loss over real tokens, and a task's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from heedful.data.batch_plan import Indices
from heedful.data.images.captioned_images import CaptionedImages
from heedful.device import Precision
from heedful.engines.training.training_engine import prepare_training
from heedful.evaluate.corpus_metrics import bits_per_unit, perplexity
from heedful.evaluate.retrieval import retrieval_recall
from heedful.evaluate.task_metrics import accuracy, macro_f1, scores_by_name
from heedful.events import Sample
from heedful.train.batch_source import Batch
from heedful.train.objective import CarriedState, LossContext, Objective, Scorer
from heedful.train.task_rules import TOKEN_TASKS
from heedful.train.validation_settings import ValidationSettings


@dataclass(frozen=True)
class Scores:
    """The result of a validation.

    Args:
        values: scores by name: `loss` in nats per token or label, for tokens of text `perplexity`
            and `bits_per_token`, and the metrics.
        score: deciding score, larger is better.
        sentences: number of examples with metrics; 0 if only the loss was computed.
        signatures: sacreBLEU's signatures, by metric.
        samples: outputs of the model for the same few examples each time.
        worst: the outputs with the lowest scores, worst first.
        fault: sentence on a defect of most outputs; None if there is none.
    """

    values: Mapping[str, float]
    score: float
    sentences: int
    signatures: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    worst: tuple[Sample, ...] = ()
    fault: str | None = None

    def facts(self) -> dict[str, Any]:
        """The result as it is stored with a model, JSON types."""
        return {
            "score": self.score,
            "sentences": self.sentences,
            "scores": dict(self.values),
            "signatures": dict(self.signatures),
        }

    def describe(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


@dataclass(frozen=True)
class Measured:
    """Metrics, signatures, a few outputs, the worst ones, and what is wrong with most."""

    values: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    worst: tuple[Sample, ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class Measure:
    """The metrics of a task beside its loss.

    Args:
        total: number of validation examples.
        score: function of a model in eval mode, the number of examples, the precision and a
            callback after each batch.
    """

    total: int
    score: Callable[[Any, int, Precision, Callable[[], None]], Measured]


class Validator:
    """Scores a model on validation data.

    Args:
        batches: validation batches, iterated once a validation.
        objective: loss, without label smoothing as the model is in eval mode.
        settings: metrics, and the score that decides.
        precision: number format of the forward passes.
        measure: metrics of the task; None for the loss alone.
        task: task of the run; the loss of some is one per label, which has no perplexity.
        on_batch: callback after each batch.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        objective: Objective,
        settings: ValidationSettings,
        *,
        precision: Precision,
        measure: Measure | None = None,
        task: str = "translation",
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self.batches = batches
        self.objective = objective
        self.settings = settings
        self.precision = precision
        self.measure = measure
        self.task = task
        self.on_batch = on_batch

    def __call__(self, model: Any, *, everything: bool = False) -> Scores:
        """Score a model in eval mode.

        Args:
            model: model with the weights to score.
            everything: use of all examples, whatever limit the settings have.
        """
        count = self.sentences(everything=everything)
        # A LoRA model's matrices W + s · B A are computed once, not at each step of the decoder.
        with torch.no_grad(), parametrize.cached():
            values = self._loss(model)
            measured = Measured({})
            if self.measure is not None and count:
                measured = self.measure.score(model, count, self.precision, self.on_batch)
        values |= measured.values
        chosen = self.settings.choose_by
        # Larger is better for every score.
        score = -values["loss"] if chosen == "loss" else values[chosen]
        more = (measured.signatures, measured.samples, measured.worst, measured.fault)
        return Scores(values, score, count, *more)

    def sentences(self, *, everything: bool = False) -> int:
        """Return the number of examples with metrics; the loss always covers all examples."""
        if self.measure is None or not self.settings.metrics:
            return 0
        limit, total = self.settings.max_sentences, self.measure.total
        return total if everything or limit is None else min(limit, total)

    def _loss(self, model: Any) -> dict[str, float]:
        device = next(model.parameters()).device
        nll, tokens = 0.0, 0
        # Segments of a memory model are validated in order, each with the memory of the one before.
        carried: CarriedState = {}
        engine = prepare_training(model, device)
        for batch in self.batches:
            with self.precision.autocast(), engine.active():
                context = LossContext(0, carried, engine.losses)
                result = self.objective.loss(model, batch.to(device), context)
            carried = result.carried_state
            # Sums of batches, divided once at the end: a mean of means would weigh short batches
            # more.
            nll += float(result.extras["nll"])
            tokens += result.tokens
            self.on_batch()
        if self.task not in TOKEN_TASKS:
            return {"loss": nll / tokens}
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
    names: Sequence[str],
    plan: Callable[[int], Iterable[Indices]],
    make: Callable[[Indices], Any],
) -> Measure:
    """Make the metrics of predicted labels.

    Args:
        metrics: names of the metrics (`accuracy`, `macro_f1`, registered ones).
        scorer: function that runs the model.
        labels: [N] int64, true label of each example.
        names: names of the labels, for registered metrics.
        plan: function from a count to batches of example numbers below it, in any order.
        make: function from example numbers to a batch.
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
                scores = scorer(model, batch, None)
            # Batches may be sorted by length: predictions go back to their examples' places.
            predictions[indices] = scores.argmax(-1).cpu().numpy()
            on_batch()
        ours, right = predictions.tolist(), labels[:count].tolist()
        own = {name: partial(metric, ours, right) for name, metric in _LABEL_METRICS.items()}
        outputs, references = [names[n] for n in ours], [[names[n]] for n in right]
        return Measured(scores_by_name(metrics, own, outputs, references))

    return Measure(len(labels), score)


def recall_measure(
    metrics: Iterable[str], valid: CaptionedImages, plan: Callable[[int], Iterable[Indices]]
) -> Measure:
    """Make the metrics of retrieval between images and captions.

    Args:
        metrics: names of the metrics: `recall`, the mean of both directions' recall at 1, and
            registered ones, for which the output is the nearest caption of each image.
        valid: images with captions.
        plan: function from a count to batches of numbers below it, in order.
    """

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        device = next(model.parameters()).device
        engine = prepare_training(model, device)
        # Only captions of the images that are measured are to be found.
        known, numbers = np.unique(valid.numbers[:count], return_inverse=True)
        images, texts = [], []
        with precision.autocast(), engine.active():
            for indices in plan(count):
                batch = valid.batch(indices).to(device)
                images.append(_array(model.image_vectors(batch.images)))
                on_batch()
            for places in plan(len(known)):
                ids, positions = valid.tokens(known[places])
                texts.append(_array(model.text_vectors(ids.to(device), positions.to(device))))
        of_images, of_texts = np.concatenate(images), np.concatenate(texts)

        def recall() -> float:
            return sum(retrieval_recall(of_images, of_texts, numbers, (1,)).values()) / 2

        nearest = known[(of_images @ of_texts.T).argmax(1)]
        outputs = [valid.captions[number] for number in nearest]
        references = [[valid.captions[number]] for number in valid.numbers[:count]]
        return Measured(scores_by_name(metrics, {"recall": recall}, outputs, references))

    return Measure(len(valid.numbers), score)


def _array(vectors: Tensor) -> Any:
    return vectors.float().cpu().numpy()
