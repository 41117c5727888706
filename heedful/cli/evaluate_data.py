"""`heedful evaluate --data`: how well a classifier, a tagger or a reader does on right answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import heedful
from heedful.cli.output import Report
from heedful.cli.running import Running
from heedful.cli.tables import show_table
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.decode.encoding import EncoderPipeline, EncodingOptions


class Columns(NamedTuple):
    """Which columns of a file of tagged words hold what, counted from 1."""

    word: int
    tag: int | None


class Judged(NamedTuple):
    """How many examples there are, what they are called, and the scores."""

    total: int
    name: str
    scores: dict[str, float]


def evaluate_data(
    model: Path, data: Path, columns: Columns, running: Running, report: Report
) -> None:
    """Run a model on examples of its kind and compare.

    Args:
        model: where it is.
        data: a file as training takes it.
        columns: of a file of tagged words.
        running: how the model is run.
        report: of the command.

    Raises:
        UserError: when the model is an ensemble.
        ModelError: when it is neither a classifier, nor a tagger, nor a reader.
        DataError: naming file and line, for what is no example.
    """
    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    pipeline = heedful.load_encoder(model, device=running.device, precision=running.precision)
    judges: dict[str, Callable[..., Judged]] = {
        "sequence": _labels,
        "token": _tags,
        "span": _answers,
    }
    heads = [name for name in judges if name in pipeline.model.heads]
    if len(heads) != 1:
        raise ModelError(
            f"Of sequence, token and span heads the model has {len(heads)} and needs one",
            where=str(model),
            remedy="Give a classifier, a tagger or a reader",
        )
    options: EncodingOptions = {
        "batch_size": running.batch_size,
        "batch_tokens": running.positions(pipeline),
    }
    judged = judges[heads[0]](pipeline, data, columns, options)
    if not report.output.json:
        rows = [(name, f"{score:.4f}") for name, score in judged.scores.items()]
        show_table(f"{judged.total:,} {judged.name}", ("metric", "score"), rows, numbers=1)
    scores = {name: {"name": name, "score": score} for name, score in judged.scores.items()}
    report.finish({judged.name: judged.total, "scores": scores})


def _labels(
    pipeline: EncoderPipeline, data: Path, columns: Columns, options: EncodingOptions
) -> Judged:
    from heedful.data.labelled import labelled_reader
    from heedful.data.spec import CorpusSpec
    from heedful.train.judging import label_scores

    reader = labelled_reader(CorpusSpec(file=str(data)))
    next(iter(reader))  # for its error where there is no text
    examples = list(reader.examples())
    return Judged(len(examples), "texts", label_scores(pipeline, examples, **options))


def _tags(
    pipeline: EncoderPipeline, data: Path, columns: Columns, options: EncodingOptions
) -> Judged:
    from heedful.data.tagged import TaggedReader
    from heedful.train.judging import tag_metrics, tag_scores

    sentences = list(TaggedReader(data, columns.word, columns.tag))
    metrics = tag_metrics(["accuracy"], pipeline.labels("token"))
    return Judged(len(sentences), "sentences", tag_scores(pipeline, sentences, metrics, **options))


def _answers(
    pipeline: EncoderPipeline, data: Path, columns: Columns, options: EncodingOptions
) -> Judged:
    from heedful.data.questions import QuestionReader
    from heedful.train.judging import answer_scores

    questions = list(QuestionReader(data))
    return Judged(len(questions), "questions", answer_scores(pipeline, questions, **options))
