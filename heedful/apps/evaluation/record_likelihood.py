"""Likelihood of records under a model of token sequences, field by field."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from heedful.apps.evaluation.text_losses import (
    BATCH_TOKENS,
    FramedTexts,
    LossWindow,
    Progress,
    losses_of_windows,
)
from heedful.data.corpus_spec import CorpusSpec, RecordSpec
from heedful.data.record_files import record_reader
from heedful.errors import DataError, ModelError
from heedful.evaluate.corpus_metrics import bits_per_unit
from heedful.evaluate.task_metrics import word_error_rate
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.pipelines.record_answers import RecordPipeline
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer

END = "end"
"""Name of the end of sequences of any length among the fields."""


@dataclass(frozen=True)
class FieldLoss:
    """The loss of a field, or of the ends of sequences.

    Args:
        nats: negative log-likelihood, summed over all records.
        values: number of values, such as pixels or notes.
        records: number of records.
    """

    nats: float
    values: int
    records: int

    def plain(self) -> dict[str, float]:
        """Return the measures by name; a value of an image is a dimension."""
        return {
            "nats_per_value": self.nats / self.values,
            "bits_per_value": bits_per_unit(self.nats, self.values),
            "nats_per_record": self.nats / self.records,
            "values": self.values,
        }


def fields_of(pipeline: GenerationPipeline) -> FieldTokenizer:
    """Return the fields of a model of token sequences.

    Raises:
        ModelError: when the model is one of texts.
    """
    if not isinstance(pipeline.tokenizer, FieldTokenizer):
        raise ModelError(
            "This model reads texts, and not the fields of token sequences",
            where=pipeline.name or None,
            remedy="Measure it by --text FILE",
        )
    return pipeline.tokenizer


def read_records(pipeline: GenerationPipeline, corpus: CorpusSpec) -> list[str]:
    """Read records as the training of a model did.

    Args:
        pipeline: model of token sequences.
        corpus: corpus of one file or folder, in the form of the model's training files.

    Returns:
        The records as lines of JSON.

    Raises:
        ModelError: when the model is one of texts.
        DataError: when the corpus cannot be read.
    """
    reading = RecordSpec.parse(fields_of(pipeline).reading)
    return [each.text for each in record_reader(corpus, reading)]


def record_likelihood(
    pipeline: GenerationPipeline,
    records: Sequence[str],
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> dict[str, FieldLoss]:
    """Measure the likelihood of records.

    The conditions are read and not measured. An end is measured where it does not follow from the
    shape of the fields.

    Args:
        pipeline: model of token sequences.
        records: records as lines of JSON.
        batch_tokens: positions of a batch; they do not change the result.
        progress: receiver of (done, total) records.

    Returns:
        The loss of each learned field, in the order of the fields, and of the end.

    Raises:
        ModelError: when the model is one of texts.
        DataError: when there is no record, or one is not of the model's fields or is too long.
    """
    fields = fields_of(pipeline)
    if not records:
        raise DataError("There is no record to measure", remedy="Give a file with records in it")
    arguments = (records, batch_tokens, progress)
    if pipeline.answers:
        measured = _answer_losses(cast("RecordPipeline", pipeline), *arguments)
    else:
        measured = _sequence_losses(pipeline, *arguments)
    names = np.array([*(field.name for field in fields.fields), END])
    nats: defaultdict[str, float] = defaultdict(float)
    values: defaultdict[str, int] = defaultdict(int)
    for targets, losses in measured:
        learned = fields.learned[targets]
        numbers = fields.field_numbers(targets)
        for number in np.unique(numbers[learned]):
            chosen = learned & (numbers == number)
            nats[names[number]] += float(losses[chosen].sum())
            values[names[number]] += int(chosen.sum())
    return {
        str(name): FieldLoss(nats[name], values[name], len(records))
        for name in names
        if values[name]
    }


def _sequence_losses(
    pipeline: GenerationPipeline,
    records: Sequence[str],
    batch_tokens: int,
    progress: Progress | None,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Yield the ids of each record with its end, and their losses under a causal model."""
    fields = fields_of(pipeline)
    ids = [
        [fields.bos, *_encoded(fields, record, number), fields.eos]
        for number, record in enumerate(records, start=1)
    ]
    framed = FramedTexts(ids, records, unknown=0, lossless=True)
    most = pipeline.spec.longest_text or pipeline.spec.max_length
    if most is not None and (longest := max(framed.predictions)) > most:
        raise DataError(
            f"A sequence has {longest:,} tokens, and the model reads {most:,}",
            where=f"record {framed.predictions.index(longest) + 1}",
            remedy="Leave it out, or train with a larger data.max_length",
        )
    windows = [
        LossWindow(text=number, start=0, stop=count, scored=0)
        for number, count in enumerate(framed.predictions)
    ]
    for window, losses in losses_of_windows(pipeline, framed, windows, batch_tokens, progress):
        yield np.array(framed.ids[window.text][1:]), losses


def _answer_losses(
    pipeline: RecordPipeline,
    records: Sequence[str],
    batch_tokens: int,
    progress: Progress | None,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Yield the written ids of each record with their end, and their losses given what is read."""
    asked = [pipeline.asked(each, f"record {number}") for number, each in enumerate(records, 1)]
    plan = plan_batches(
        [max(len(each.source), len(each.target)) + 1 for each in asked],
        width=1,
        batch_tokens=batch_tokens,
        batch_size=None,
    )
    done = 0
    for part, found in split_on_oom(
        plan, lambda part: pipeline.token_scores([asked[i] for i in part])
    ):
        for number, scores in zip(part, found, strict=True):
            yield np.array([*asked[number].target[1:], pipeline.written.eos]), -np.array(scores)
        done += len(part)
        if progress is not None:
            progress(done, len(asked))


def answer_scores(
    pipeline: GenerationPipeline, records: Sequence[str], beam: int = 1
) -> dict[str, dict[str, float]]:
    """Return how well each field is written that an encoder does not read.

    Args:
        pipeline: model that reads records by an encoder; other models have no such scores.
        records: records as lines of JSON.
        beam: width of the search; 1 is greedy.

    Returns:
        `exact`, the share of records in which a field is exact, and `word_error_rate` of texts, by
        field; none where numbers are written, which have many good values.
    """
    if not pipeline.answers:
        return {}
    pipeline = cast("RecordPipeline", pipeline)
    written = [field for field in pipeline.written.fields if not field.given]
    if any(field.content == "numbers" for field in written):
        return {}
    known = [pipeline.asked(each, f"record {n}") for n, each in enumerate(records, 1)]
    wanted = [pipeline.written.decode_record(each.target) for each in known]
    given = [field.name for field in pipeline.written.fields if field.given]
    asked = [
        json.dumps({**each.read, **{name: whole[name] for name in given}})
        for each, whole in zip(known, wanted, strict=True)
    ]
    found = [json.loads(each.text) for each in pipeline.generate(asked, beam=beam)]
    scores: dict[str, dict[str, float]] = {"exact": {}, "word_error_rate": {}}
    for field in written:
        ours, theirs = ([record.get(field.name) for record in side] for side in (found, wanted))
        right = sum(our == their for our, their in zip(ours, theirs, strict=True))
        scores["exact"][field.name] = right / len(wanted)
        if field.content == "text":
            # An empty text has no tokens, and its field is not there.
            texts = ([text or "" for text in side] for side in (ours, theirs))
            scores["word_error_rate"][field.name] = word_error_rate(*texts)
    return {name: each for name, each in scores.items() if each}


def _encoded(fields: FieldTokenizer, record: str, number: int) -> list[int]:
    try:
        return fields.encode(record)
    except DataError as error:
        error.where = error.where or f"record {number}"
        raise


def summed(losses: dict[str, FieldLoss]) -> FieldLoss:
    """Return the loss of all fields together."""
    each = list(losses.values())
    total = sum(loss.nats for loss in each)
    return FieldLoss(total, sum(loss.values for loss in each), each[0].records)


def record_scores(
    losses: dict[str, FieldLoss], answers: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Return the measures of all fields and of each, as plain data.

    Args:
        losses: result of `record_likelihood`.
        answers: result of `answer_scores`.
    """
    fields = {name: loss.plain() for name, loss in losses.items()}
    return {**summed(losses).plain(), "fields": fields, **answers}
