"""Tasks whose examples are read into rows in memory: what tagging and answering share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from heedful.data.framed import FramedBatch, FramedRows
from heedful.decode.encoding import EncoderPipeline
from heedful.models.shapes import encoder_spec
from heedful.train.beginning import first_model
from heedful.train.labels import LabelObjective, Scorer
from heedful.train.validation import Measured, Validator

if TYPE_CHECKING:
    from heedful.data.encoded import Indices
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.models.family import HeadSpec
    from heedful.text.pair import TokenizerPair
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


@dataclass(frozen=True)
class Judge:
    """What is measured of a model on validation examples.

    Args:
        total: how many examples there are.
        scores: figures by name, of a model's pipeline on the first examples.
    """

    total: int
    scores: Callable[[EncoderPipeline, int], Mapping[str, float]]


@dataclass(frozen=True)
class FramedData:
    """Examples to learn from and to validate on.

    Args:
        train: rows to learn from.
        valid: rows whose loss is measured, or None.
        judge: what is measured besides, where there are validation rows.
    """

    train: FramedRows
    valid: FramedRows | None
    judge: Judge | None


class FramedTask:
    """An encoder with one head, trained on rows.

    Args:
        settings: of the run.
        tokenizers: the same one twice.
        head: what is predicted.
        scorer: runs the model; its scores are of `FramedBatch.targets`.
        data: the rows.
        events: told what of a model that training begins with is left out.
    """

    def __init__(
        self,
        settings: RunSettings,
        tokenizers: TokenizerPair,
        head: HeadSpec,
        scorer: Scorer,
        data: FramedData,
        events: Events,
    ) -> None:
        self.settings = settings
        self.tokenizers = tokenizers
        self.head = head
        self.scorer = scorer
        self.data = data
        self.events = events
        weights = [corpus.weight for corpus in settings.data.train]
        content = f"{tokenizers.fingerprint} {data.train.fingerprint} {weights} {head.plain()}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.source = FramedSource(data.train, settings)

    def new_model(self) -> nn.Module:
        """The model with its first weights, a function of the seed."""
        settings = self.settings
        size = self.tokenizers.source.size
        spec = encoder_spec(settings.model, size, settings.data.max_length, (self.head,))
        return first_model(spec, settings, self.tokenizers, self.events)

    def objective(self) -> LabelObjective:
        """Cross-entropy of the targets."""
        return LabelObjective(self.scorer, self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """Loss and metrics on the validation examples."""
        valid, judge = self.data.valid, self.data.judge
        if valid is None or judge is None:
            return None
        measure = FramedMeasure(judge, self.settings, self.tokenizers, precision)
        return Validator(
            FramedValidation(valid, self.settings),
            objective,
            self.settings.validation,
            precision=precision,
            measure=measure,
        )


class FramedMeasure:
    """Measures a model through the pipeline that the command line uses.

    Args:
        judge: what is measured.
        settings: of the run: how many examples, and the token budget.
        tokenizers: of the model.
        precision: of the forward passes.
    """

    def __init__(
        self,
        judge: Judge,
        settings: RunSettings,
        tokenizers: TokenizerPair,
        precision: Precision,
    ) -> None:
        self.judge = judge
        self.settings = settings.validation
        self.tokenizer = tokenizers.source
        self.precision = precision

    def count(self, *, everything: bool) -> int:
        """How many examples are looked at."""
        if not self.settings.metrics:
            return 0
        limit, total = self.settings.max_sentences, self.judge.total
        return total if everything or limit is None else min(limit, total)

    def __call__(self, model: Any, count: int) -> Measured:
        """Score the first examples."""
        pipeline = EncoderPipeline(model, self.tokenizer, precision=self.precision)
        return Measured(self.judge.scores(pipeline, count), {})


class FramedSource:
    """Batches of rows; which ones is a function of the seed, the epoch and the place.

    Args:
        rows: of all files.
        settings: of the run: budget, seed, weights of the files.
    """

    def __init__(self, rows: FramedRows, settings: RunSettings) -> None:
        self.rows = rows
        self.settings = settings
        self._epoch: tuple[int, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._batches(epoch))

    def batch(self, epoch: int, number: int) -> FramedBatch:
        """One batch of an epoch."""
        return self.rows.batch(self._batches(epoch)[number])

    def lines(self, indices: Sequence[int]) -> list[str]:
        """What rows are called: file and line, or file and question."""
        return [self.rows.where[index] for index in indices]

    def _batches(self, epoch: int) -> list[Indices]:
        if self._epoch is None or self._epoch[0] != epoch:
            data, seed = self.settings.data, self.settings.seed
            weights = [corpus.weight for corpus in data.train]
            self._epoch = (epoch, self.rows.plan(weights, data, seed=seed, epoch=epoch))
        return self._epoch[1]


class FramedValidation:
    """The batches of validation rows, the same ones in the same order each time.

    Args:
        rows: of all files.
        settings: of the run: budget.
    """

    def __init__(self, rows: FramedRows, settings: RunSettings) -> None:
        self.rows = rows
        self.batches = rows.plan_once(settings.data)

    def __iter__(self) -> Iterator[FramedBatch]:
        for indices in self.batches:
            yield self.rows.batch(indices)


def plural(count: int, name: str) -> str:
    """A number and what it is of."""
    return f"{count:,} {name}{'s' * (count != 1)}"
