"""Scores of a model of any kind on examples, in memory or in files, in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from heedful.apps.evaluation.record_likelihood import (
    answer_scores,
    read_records,
    record_likelihood,
    record_scores,
)
from heedful.apps.evaluation.text_likelihood import pseudo_likelihood, text_likelihood
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.in_memory import examples, file_spec, write_records
from heedful.data.pair_corpus import CorpusReader
from heedful.data.text_corpus import DocumentReader, LabelledText, Unit, labelled_reader
from heedful.errors import DataError, ModelError
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.any_pipeline import load_pipeline
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.train.tasks.pipeline_scores import label_scores

T = TypeVar("T")


def evaluate(
    model: Any,
    data: Any,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    documents: Unit = "file",
    **options: Any,
) -> dict[str, Any]:
    """Score a model on examples; the command `heedful evaluate` has more to say of them.

    The model is measured: numbers stay as it writes them, also those of a loaded translator that
    corrects them otherwise.

    Args:
        model: translator, language model, masked language model, classifier of text, model of
            token sequences or of images and texts, loaded or by its directory or name.
        data: pairs for a translator, texts with labels for a classifier, texts for a language
            model, records for a model of token sequences, images with captions for one of images
            and texts; in memory or in files, in the forms of `heedful.train`.
        metrics: metrics of translations, out of bleu, chrf and ter.
        documents: unit of a file of text for a language model, which is read as one text: `file`,
            `paragraph` or `line`; a `.jsonl` file holds one text a line.
        **options: options of the search of translations, such as `beam=5`; of windows over texts,
            such as `length=128`; or of batches.

    Returns:
        The scores by name: in percent for translations, shares for labels, and the measures of
        texts, such as the perplexity; for records nats and bits of all values together, and of
        each field in the table `fields`. For images and texts the recall both ways, 0 to 1.

    Raises:
        ModelError: when the model is of another kind.
        DataError: when an example or a file is wrong.
        ConfigError: when a metric or an option does not exist.
    """
    pipeline = load_pipeline(model) if isinstance(model, str | Path) else model
    if "translate" in pipeline.verbs:
        pairs = _pairs(data)
        # The model itself is measured, also by a pipeline that would correct its numbers.
        sources = [source for source, _ in pairs]
        translations = TranslationPipeline.translate(pipeline, sources, **options)
        found = corpus_scores(translations, [target for _, target in pairs], metrics)
        return {name: each.score for name, each in found.items()}
    if "generate" in pipeline.verbs and isinstance(pipeline.tokenizer, FieldTokenizer):
        records = _on_files(data, partial(read_records, pipeline))
        losses = record_likelihood(pipeline, records, **options)
        return record_scores(losses, answer_scores(pipeline, records))
    if "generate" in pipeline.verbs:
        return dict(text_likelihood(pipeline, _texts(data, documents), **options).scores)
    if "recall" in pipeline.verbs:
        images, captions = _on_files(data, lambda corpus: pipeline.read(corpus.plain()))
        return dict(pipeline.recall(images, captions, **options))
    if "embed" in pipeline.verbs:
        if "classify" in pipeline.verbs:
            return dict(label_scores(pipeline, _labelled(data), **options))
        pipeline.require("masked_lm")
        return dict(pseudo_likelihood(pipeline, _texts(data, documents), **options).scores)
    raise ModelError(
        f"Models of images are not scored here, but by their predictions: {pipeline!r}",
        remedy="Compare the labels of classify with your own",
    )


def _pairs(data: Any) -> list[tuple[str, ...]]:
    files = file_spec(data)
    if files is None:
        pairs = list(examples(data, ("source", "target")))
        if not pairs:
            raise DataError("There are no pairs", remedy="Give at least one")
        return pairs
    return [(pair.source, pair.target) for pair in CorpusReader(CorpusSpec.parse(files))]


def _labelled(data: Any) -> list[LabelledText]:
    files = file_spec(data)
    if files is not None:
        return list(labelled_reader(CorpusSpec.parse(files)).examples())
    rows = enumerate(examples(data, ("text", "label")), start=1)
    return [LabelledText(number, *row) for number, row in rows]


def _on_files(data: Any, read: Callable[[CorpusSpec], T]) -> T:
    """Return what a function reads from files of records, which are written if in memory."""
    files = file_spec(data)
    if files is not None:
        return read(CorpusSpec.parse(files))
    # The model's reader may change what it reads, and it reads files.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "examples.jsonl"
        write_records(data, path)
        return read(CorpusSpec(file=str(path)))


def _texts(data: Any, documents: Unit) -> list[str]:
    files = file_spec(data)
    if files is None:
        return [text for (text,) in examples(data, ("text",))]
    if set(files) != {"file"}:
        raise DataError(
            "A language model reads one file of text",
            where=", ".join(files),
            remedy="Give its path, or a list of texts",
        )
    return [document.text for document in DocumentReader(Path(files["file"]), documents)]
