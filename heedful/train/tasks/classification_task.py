"""Text classification: an encoder that predicts a label for each text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data.batch_plan import Indices, plan_files, plan_once
from heedful.data.batches import RowBatch
from heedful.data.encoded_texts import LabelledRows, first_rows
from heedful.data.text_corpus import LabelledReader, labelled_reader
from heedful.errors import DataError
from heedful.models.encoder_spec import SequenceHeadSpec
from heedful.train.batch_source import EpochBatches, FixedBatches
from heedful.train.objective import LabelObjective, PenaltyCapture
from heedful.train.task import Setup, Task, check_several, counted_labels
from heedful.train.tasks.encoder_task import (
    all_texts,
    encode_and_note,
    encoder_tokenizers,
    new_encoder,
    weighted_fingerprint,
)
from heedful.train.validation import label_measure


def prepare(setup: Setup) -> Task:
    """Read, check and encode labelled texts.

    Raises:
        DataError: when texts or labels are unusable.
    """
    settings, data = setup.settings, setup.settings.data
    readers = [labelled_reader(spec) for spec in data.train]
    valid_readers = [labelled_reader(spec) for spec in data.valid]
    # Sorted: the order of files must not decide which output belongs to which label.
    labelled = (
        (example.label, f"{reader.path}:{example.line}")
        for reader in readers
        for example in reader.examples()
    )
    labels = counted_labels(setup.events, labelled, "label")
    where = ", ".join(str(reader.path) for reader in readers)
    check_several(labels, "label", "labelled texts", where)
    for reader in (*readers, *valid_readers):
        if reader.has_header:
            setup.events.note(f"{reader.path}: the first line names the columns and is left out")
    names = setup.labels("sequence", labels)
    valid_labels = _numbers(valid_readers, names)  # refuses unknown labels before any work
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, all_texts(setup, readers)))

    def encode(name: str, readers: list[LabelledReader], labels: Indices) -> LabelledRows:
        texts = encode_and_note(setup, name, readers, tokenizers.source)
        rows = first_rows(texts, tokenizers.source, data.max_length)
        # A text is one example with one label, so it is cut rather than divided into windows.
        cut = int(np.count_nonzero(texts.text_spans[1] > rows.counts))
        if cut:
            setup.events.note(
                f"{name}: {cut:,} texts are cut at data.max_length = {data.max_length}"
            )
        return LabelledRows(texts, rows, labels, tokenizers.source)

    training = encode("training", readers, _numbers(readers, names))
    valid = encode("validation", valid_readers, valid_labels) if valid_readers else None
    bounds = training.rows.bounds(training.texts).tolist()

    def plan(epoch: int) -> list[Indices]:
        return plan_files(training.rows.sizes, bounds, data, seed=settings.seed, epoch=epoch)

    # Rows of a batch for metrics, counted as if all had the largest length.
    size = max(1, data.budget // data.max_length)
    # Labels belong to the data: with others the classifier's outputs would change their meaning.
    content = f"{weighted_fingerprint(setup, training.texts)} {list(names)!r}"
    head = SequenceHeadSpec(labels=names, source="first", dropout=settings.model.dropout)
    return Task(
        tokenizers,
        hashlib.sha256(content.encode()).hexdigest(),
        EpochBatches(plan, lambda indices, _: training.batch(indices), training.texts.line_of),
        new_encoder(setup, tokenizers, head),
        LabelObjective(text_scores, settings.objective.label_smoothing),
        None if valid is None else FixedBatches(plan_once(valid.rows.sizes, data), valid.batch),
        None
        if valid is None
        else label_measure(
            settings.validation.metrics,
            text_scores,
            valid.labels,
            names,
            lambda count: valid.by_length(count, size),
            valid.batch,
        ),
    )


def text_scores(model: Any, batch: RowBatch, capture: PenaltyCapture) -> Tensor:
    """Return scores [B, labels] of texts."""
    states: Tensor = model(batch.ids, batch.positions, None, capture=capture)
    scores: Tensor = model.sequence_logits(states, batch.positions)
    return scores


def _numbers(readers: Sequence[LabelledReader], names: Sequence[str]) -> Indices:
    numbers = {name: number for number, name in enumerate(names)}
    labels = []
    for reader in readers:
        for line, _, label in reader.examples():
            if label not in numbers:
                raise DataError(
                    f"No training text has the label {label!r}",
                    where=f"{reader.path}:{line}",
                    remedy="Mend the label, leave the line out, or train on such texts too",
                )
            labels.append(numbers[label])
    return np.array(labels, np.int64)
