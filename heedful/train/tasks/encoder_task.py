"""The shared half of tasks that train an encoder with one head: tokenizers, model, rows, labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.data.batch_plan import plan_epoch, plan_once
from heedful.data.encoded_texts import FramedRows
from heedful.evaluate.task_metrics import accuracy, macro_f1
from heedful.models.shape_to_spec import encoder_spec
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.objective import LabelObjective, Scorer
from heedful.train.task import EpochBatches, FixedBatches, Setup, Task
from heedful.train.validation import Measure, Measured

if TYPE_CHECKING:
    from torch import nn

    from heedful.data.batch_plan import Indices
    from heedful.device import Precision
    from heedful.models.family import HeadSpec
    from heedful.text.text_tokenizer import TextTokenizer

_LABEL_METRICS: Mapping[str, Callable[[Sequence[int], Sequence[int]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
}


def encoder_tokenizers(setup: Setup, texts: list[str]) -> TokenizerPair:
    """Train an encoder's tokenizer; return it twice. Its mask counts as one of the pieces."""
    spec = setup.settings.tokenizer
    smaller = spec.model_copy(update={"vocabulary_size": spec.vocabulary_size - 1})
    tokenizer = train_tokenizer(smaller, texts).for_encoder()
    return TokenizerPair(tokenizer, tokenizer)


def new_encoder(setup: Setup, tokenizers: TokenizerPair, head: HeadSpec) -> Callable[[], nn.Module]:
    """A function that makes the encoder with its first weights."""
    settings = setup.settings

    def new_model() -> nn.Module:
        size, length = tokenizers.source.size, settings.data.max_length
        return setup.new_model(encoder_spec(settings.model, size, length, (head,)), tokenizers)

    return new_model


@dataclass(frozen=True)
class PipelineMeasure:
    """Metrics of a model run through the pipeline that the command line uses.

    Args:
        examples: to validate on.
        score: figures by name, of a pipeline on some of the examples.
        metrics: names of the figures.
    """

    examples: Sequence[Any]
    score: Callable[..., Mapping[str, float]]
    metrics: Sequence[str]

    def with_tokenizer(self, tokenizer: TextTokenizer, batch_tokens: int) -> Measure:
        """The measure of a model with this tokenizer, in batches of so many tokens."""

        def score(model: Any, count: int, precision: Precision) -> Measured:
            pipeline = EncoderPipeline(model, tokenizer, precision=precision)
            examples = self.examples[:count]
            return Measured(self.score(pipeline, examples, self.metrics, batch_tokens=batch_tokens))

        return Measure(len(self.examples), score)


def framed_task(
    setup: Setup,
    tokenizers: TokenizerPair,
    head: HeadSpec,
    scorer: Scorer,
    training: FramedRows,
    valid: FramedRows | None,
    measure: PipelineMeasure | None,
) -> Task:
    """An encoder with one head, trained on rows in memory.

    Args:
        setup: of the task.
        tokenizers: the same one twice.
        head: what is predicted.
        scorer: runs the model; its scores are of `FramedBatch.targets`.
        training: rows to learn from.
        valid: rows whose loss is measured, or None.
        measure: metrics of the validation examples, or None.
    """
    settings, data = setup.settings, setup.settings.data
    weights = [corpus.weight for corpus in data.train]
    content = f"{tokenizers.fingerprint} {training.fingerprint} {weights} {head.plain()}"

    def plan(epoch: int) -> list[Indices]:
        bounds = training.starts.tolist()
        return plan_epoch(training.lengths, bounds, data, seed=settings.seed, epoch=epoch)

    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        EpochBatches(plan, lambda indices, _: training.batch(indices), training.where.__getitem__),
        new_encoder(setup, tokenizers, head),
        LabelObjective(scorer, settings.objective.label_smoothing),
        None if valid is None else FixedBatches(plan_once(valid.lengths, data), valid.batch),
        None if measure is None else measure.with_tokenizer(tokenizers.source, data.budget),
    )


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

    def score(model: Any, count: int, precision: Precision) -> Measured:
        device = next(model.parameters()).device
        predictions = np.zeros(count, np.int64)
        for indices in plan(count):
            batch = make(indices).to(device)
            with precision.autocast():
                scores, _ = scorer(model, batch)
            predictions[indices] = scores.argmax(-1).cpu().numpy()
        ours, right = predictions.tolist(), labels[:count].tolist()
        return Measured({name: _LABEL_METRICS[name](ours, right) for name in metrics})

    return Measure(len(labels), score)
