"""Classification as a task: texts with labels in, an encoder that labels a text out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.data.labelled import LabelledReader, labelled_reader
from heedful.data.rows import RowBatch, first_rows, frame_rows, plan_rows, validation_rows
from heedful.errors import DataError
from heedful.models.family import SequenceHeadSpec
from heedful.models.shapes import encoder_spec
from heedful.train.beginning import first_labels, first_model, tokenizers_for
from heedful.train.labels import LabelMeasure, LabelObjective
from heedful.train.language_model import all_texts, encode_and_tell, weighted_fingerprint
from heedful.train.masked import encoder_tokenizers
from heedful.train.objective import with_penalty
from heedful.train.task_settings import check_room, check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heedful.data.encoded import Indices
    from heedful.data.stream import EncodedTexts
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.text.pair import TokenizerPair
    from heedful.text.protocol import TextTokenizer
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


class LabelledTexts:
    """Encoded texts and their labels.

    Args:
        texts: the stream.
        labels: number of each text's label [N] int64.
        tokenizer: of the stream.
        max_length: what goes past so many tokens, the frame counted, is left out.
    """

    def __init__(
        self, texts: EncodedTexts, labels: Indices, tokenizer: TextTokenizer, max_length: int
    ) -> None:
        self.texts = texts
        self.labels = labels
        self.tokenizer = tokenizer
        self.rows = first_rows(texts, tokenizer, max_length)

    def batch(self, indices: Indices) -> RowBatch:
        """Texts side by side; the label of each is its target."""
        starts, counts = self.rows.starts[indices], self.rows.counts[indices]
        spans = zip(starts.tolist(), counts.tolist(), strict=True)
        pieces = [self.texts.span(start, start + count) for start, count in spans]
        ids, positions = frame_rows(pieces, self.tokenizer)
        return RowBatch(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            torch.from_numpy(self.labels[indices]),
            torch.from_numpy(starts),
            len(indices),
        )


class ClassifierTask:
    """Labelled texts, read and encoded.

    Args:
        settings: of the run.
        tokenizers: the same one twice.
        names: of the labels.
        data: to train on.
        valid: to validate on, or None.
        events: told what of a model that training begins with is left out.
    """

    def __init__(
        self,
        settings: RunSettings,
        tokenizers: TokenizerPair,
        names: Sequence[str],
        data: LabelledTexts,
        valid: LabelledTexts | None,
        events: Events,
    ) -> None:
        self.settings = settings
        self.tokenizers = tokenizers
        self.names = tuple(names)
        self.valid = valid
        self.events = events
        content = f"{weighted_fingerprint(data.texts, settings)} {names!r}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.source = LabelledSource(data, settings)

    def new_model(self) -> nn.Module:
        """The model with its first weights, a function of the seed."""
        settings = self.settings
        head = SequenceHeadSpec(labels=self.names, source="first", dropout=settings.model.dropout)
        size = self.tokenizers.source.size
        spec = encoder_spec(settings.model, size, settings.data.max_length, (head,))
        return first_model(spec, settings, self.tokenizers, self.events)

    def objective(self) -> LabelObjective:
        """Cross-entropy of the labels."""
        return LabelObjective(text_scores, self.settings.objective.label_smoothing)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """Loss and metrics on the validation texts."""
        if self.valid is None:
            return None
        settings = self.settings
        batches = ValidationTexts(self.valid, settings)
        measure = LabelMeasure(
            text_scores,
            self.valid.batch,
            self._by_length,
            self.valid.labels,
            settings.validation,
            precision=precision,
        )
        return Validator(
            batches, objective, settings.validation, precision=precision, measure=measure
        )

    def _by_length(self, count: int) -> Iterator[Indices]:
        """The first validation texts in batches, those of like length side by side."""
        assert self.valid is not None
        data = self.settings.data
        size = max(1, data.budget // data.max_length)
        order = np.argsort(self.valid.rows.counts[:count], kind="stable")
        yield from (order[first : first + size] for first in range(0, count, size))


def text_scores(model: Any, batch: RowBatch) -> tuple[Tensor, Tensor | float]:
    """Scores [B, labels] of texts, and what the model's layers add to the loss."""
    states, added = with_penalty(model, batch.ids, batch.positions, None)
    return model.sequence_logits(states, batch.positions), added


class LabelledSource:
    """Batches of labelled texts; which ones is a function of the seed, the epoch and the place.

    Args:
        data: the texts.
        settings: of the run: budget, seed, weights of the files.
    """

    def __init__(self, data: LabelledTexts, settings: RunSettings) -> None:
        self.data = data
        self.settings = settings
        self._epoch: tuple[int, list[Indices]] | None = None

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._batches(epoch))

    def batch(self, epoch: int, number: int) -> RowBatch:
        """One batch of an epoch."""
        return self.data.batch(self._batches(epoch)[number])

    def lines(self, indices: Sequence[int]) -> list[str]:
        """`file:line` of texts."""
        return [self.data.texts.line_of(index) for index in indices]

    def _batches(self, epoch: int) -> list[Indices]:
        if self._epoch is None or self._epoch[0] != epoch:
            spec, seed = self.settings.data, self.settings.seed
            weights = [corpus.weight for corpus in spec.train]
            rows, texts = self.data.rows, self.data.texts
            planned = plan_rows(rows, texts, weights, spec, seed=seed, epoch=epoch)
            self._epoch = (epoch, planned)
        return self._epoch[1]


class ValidationTexts:
    """The batches of validation texts, the same ones in the same order each time.

    Args:
        data: the texts.
        settings: of the run: budget.
    """

    def __init__(self, data: LabelledTexts, settings: RunSettings) -> None:
        self.data = data
        self.batches = validation_rows(data.rows, data.texts, settings.data)

    def __iter__(self) -> Iterator[RowBatch]:
        for indices in self.batches:
            yield self.data.batch(indices)


def prepare_classifier(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> ClassifierTask:
    """Read, check and encode labelled texts; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the texts or labels cannot be used.
        ConfigError: when a batch has no room for a text, or a setting is for another task.
    """
    check_task_settings(settings)
    check_room(settings)
    data = settings.data
    train = [labelled_reader(spec) for spec in data.train]
    valid_readers = [labelled_reader(spec) for spec in data.valid]
    names = first_labels(settings, "sequence", _label_names(train))
    events.note(f"{len(names)} labels: {', '.join(names[:10])}{' …' * (len(names) > 10)}")
    valid_labels = _labels(valid_readers, names)  # what is unknown is told before any work
    tokenizers = tokenizers_for(
        settings, tokenizers, lambda: encoder_tokenizers(settings, all_texts(train)), events
    )
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"

    def encoded(name: str, readers: list[LabelledReader], labels: Indices) -> LabelledTexts:
        texts = encode_and_tell(name, readers, tokenizers, cache, events)
        found = LabelledTexts(texts, labels, tokenizers.source, data.max_length)
        # In the stream bos and eos stand around each text.
        cut = int((np.diff(texts.bounds) - 2 > found.rows.counts).sum())
        if cut:
            events.note(f"{name}: {cut:,} texts are cut at data.max_length = {data.max_length}")
        return found

    training = encoded("training", train, _labels(train, names))
    valid = encoded("validation", valid_readers, valid_labels) if valid_readers else None
    return ClassifierTask(settings, tokenizers, names, training, valid, events)


def _label_names(readers: Sequence[LabelledReader]) -> list[str]:
    """The labels of the training data, sorted."""
    names = sorted({example.label for reader in readers for example in reader.examples()})
    if len(names) < 2:
        raise DataError(
            f"There is nothing to tell apart: the only label is {names[0]!r}"
            if names
            else "There are no labelled texts",
            where=", ".join(str(reader.path) for reader in readers),
            remedy="Give training data with at least two labels",
        )
    return names


def _labels(readers: Sequence[LabelledReader], names: Sequence[str]) -> Indices:
    """The number of each text's label."""
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for reader in readers:
        for line, _, label in reader.examples():
            if label not in numbers:
                raise DataError(
                    f"No training text has the label {label!r}",
                    where=f"{reader.path}:{line}",
                    remedy="Mend the label, leave the line out, or train on such texts too",
                )
            found.append(numbers[label])
    return np.array(found, np.int64)
