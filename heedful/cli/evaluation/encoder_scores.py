"""`heedful evaluate --data`: score a classifier, tagger, question answerer, or model of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.cli.encoder_verbs import load_encoder
from heedful.cli.flags import Running
from heedful.cli.text_io import Report, show_values
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions


class TagColumns(NamedTuple):
    """Columns of a file of tagged words, counted from 1."""

    word: int
    tag: int | None


class _Scored(NamedTuple):
    """The number of examples, the noun for them in the plural, and the scores."""

    total: int
    name: str
    scores: dict[str, float]


def evaluate_encoder(
    model: Path, data: Path, columns: TagColumns, running: Running, report: Report
) -> None:
    """Score a classifier, tagger, question answerer or model of images on a file of examples.

    Args:
        model: the model's directory.
        data: file of examples in the format of training.
        columns: columns of a file of tagged words.
        running: device, precision and batches.
        report: report of the command.

    Raises:
        UserError: when the model is an ensemble.
        ModelError: when the model is none of these.
        DataError: for a line that is no example.
    """
    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    from heedful.interop.hugging_face import describe_any

    options = {"device": running.device, "precision": running.precision}
    kind = describe_any(model).spec.kind
    if kind == "two_towers":
        scored = _retrieval(model, data, running, options)
    elif kind == "autoencoder":
        scored = _reconstruction(model, data, options)
    elif kind == "denoiser":
        raise ModelError(
            "A model that draws is judged by its pictures",
            where=str(model),
            remedy="Draw some with heedful generate, and label them with heedful classify",
        )
    else:
        scored = _encoder(load_encoder(model, **options), model, data, columns, running)
    if not report.output.json:
        title = f"{scored.total:,} {scored.name}"
        show_values(title, ("metric", "score"), scored.scores, "{:.4f}".format)
    scores = {name: {"name": name, "score": score} for name, score in scored.scores.items()}
    report.finish({scored.name: scored.total, "scores": scores})


def _retrieval(model: Path, data: Path, running: Running, loading: Mapping[str, Any]) -> _Scored:
    from heedful.pipelines.any_pipeline import loaded_as

    pipeline = loaded_as("two_towers", model, **loading)
    images, captions = pipeline.read({"file": str(data)})
    sizes = {"batch_size": running.batch_size, "batch_tokens": running.positions(pipeline)}
    return _Scored(len(images), "images", pipeline.recall(images, captions, **sizes))


def _reconstruction(model: Path, data: Path, loading: Mapping[str, Any]) -> _Scored:
    import torch

    from heedful.data.corpus_spec import CorpusSpec, ImageSpec
    from heedful.data.image_files import image_reader
    from heedful.pipelines.any_pipeline import loaded_as
    from heedful.pipelines.image_input import pictures_of

    pipeline = loaded_as("autoencoder", model, **loading)
    size = ImageSpec(size=pipeline.spec.image_size, channels=pipeline.spec.channels)
    reader = image_reader(CorpusSpec(file=str(data)), size)
    pictures = [p for each in reader for p in pictures_of(torch.tensor(each.pixels)[None])]
    return _Scored(len(pictures), "images", pipeline.distortion(pictures))


def _encoder(
    pipeline: EncoderPipeline, model: Path, data: Path, columns: TagColumns, running: Running
) -> _Scored:
    scorers: dict[str, Callable[..., _Scored]] = {
        "sequence": _labels,
        "token": _tags,
        "span": _answers,
    }
    heads = [name for name in scorers if name in pipeline.engine.heads]
    if len(heads) != 1:
        raise ModelError(
            f"Of heads for labels, tags or answers the model has {len(heads)} and needs one",
            where=str(model),
            remedy="Give a classifier, tagger or question answerer",
        )
    options: EncodingOptions = {
        "batch_size": running.batch_size,
        "batch_tokens": running.positions(pipeline),
    }
    return scorers[heads[0]](pipeline, data, columns, options)


def _labels(
    pipeline: EncoderPipeline, data: Path, columns: TagColumns, options: EncodingOptions
) -> _Scored:
    from heedful.data.corpus_spec import CorpusSpec
    from heedful.data.text_corpus import labelled_reader
    from heedful.train.tasks.pipeline_scores import label_scores

    reader = labelled_reader(CorpusSpec(file=str(data)))
    next(iter(reader))  # raises an error if there is no text
    examples = list(reader.examples())
    return _Scored(len(examples), "texts", label_scores(pipeline, examples, **options))


def _tags(
    pipeline: EncoderPipeline, data: Path, columns: TagColumns, options: EncodingOptions
) -> _Scored:
    from heedful.data.text_corpus import TaggedReader
    from heedful.train.tasks.pipeline_scores import tag_metrics, tag_scores

    sentences = list(TaggedReader(data, columns.word, columns.tag))
    metrics = tag_metrics(["accuracy"], pipeline.labels("token"))
    return _Scored(len(sentences), "sentences", tag_scores(pipeline, sentences, metrics, **options))


def _answers(
    pipeline: EncoderPipeline, data: Path, columns: TagColumns, options: EncodingOptions
) -> _Scored:
    from heedful.data.text_corpus import QuestionReader
    from heedful.train.tasks.pipeline_scores import answer_scores

    questions = list(QuestionReader(data))
    return _Scored(len(questions), "questions", answer_scores(pipeline, questions, **options))
