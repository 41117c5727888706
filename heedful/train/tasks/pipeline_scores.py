"""Scores of models on their tasks, for validation and for `heedful evaluate`.

Models run through the pipelines of the command line, so a validation score is what a user gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from heedful.data.text_corpus import LabelledText, Question, TaggedSentence
from heedful.device import Precision
from heedful.errors import DataError
from heedful.evaluate.corpus_metrics import build_metric, corpus_scores, describe_degenerate
from heedful.evaluate.task_metrics import (
    accuracy,
    answer_exact_match,
    answer_f1,
    macro_f1,
    mark_spans,
    scores_by_name,
    span_f1,
)
from heedful.events import Sample
from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.validation import Measure, Measured
from heedful.train.validation_settings import ValidationSettings

_ANSWER_METRICS: Mapping[str, Callable[[Sequence[str], Sequence[Sequence[str]]], float]] = {
    "exact_match": answer_exact_match,
    "f1": answer_f1,
}

MOST_SAMPLES = 8
"""Number of translations that a validation keeps, spread evenly over its sentences."""

MOST_WORST = 10
"""Number of translations with the lowest chrF that a validation keeps."""


def tag_metrics(requested: Iterable[str], tags: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of a tagger: the requested ones, and span_f1 if its tags mark spans.

    Args:
        requested: names of the requested metrics, `accuracy` or `span_f1`.
        tags: all tags.

    Raises:
        DataError: when span_f1 is requested and the tags mark no spans.
    """
    names, requested = sorted(set(tags)), tuple(requested)
    if mark_spans(names):
        # Accuracy is dominated by O, the tag of words outside of spans.
        return (*requested, *({"span_f1"} - set(requested)))
    if "span_f1" in requested:
        raise DataError(
            f"span_f1 needs tags that mark spans (O, B-… and I-…); these are {', '.join(names)}",
            where="validation.metrics",
            remedy="Leave it out",
        )
    return requested


def tag_scores(
    pipeline: EncoderPipeline,
    sentences: Sequence[TaggedSentence],
    metrics: Iterable[str],
    **options: Unpack[EncodingOptions],
) -> dict[str, float]:
    """Score a tagger; a word without tokens counts as wrong.

    Args:
        pipeline: pipeline of the tagger.
        sentences: sentences with their true tags.
        metrics: names of the metrics: `accuracy` (of words), `span_f1`, registered ones.
        **options: options of the pipeline, such as batch size and precision.
    """
    # Tags of words, not of tokens: windows are joined by the pipeline, as for users.
    result = pipeline.tag([sentence.words for sentence in sentences], **options)
    predictions = [[word.label for word in words] for words in result]
    right = [sentence.tags for sentence in sentences]
    pairs = [
        pair
        for ours, theirs in zip(predictions, right, strict=True)
        for pair in zip(ours, theirs, strict=True)
    ]
    values = {
        "accuracy": lambda: sum(ours == theirs for ours, theirs in pairs) / len(pairs),
        "span_f1": lambda: span_f1(predictions, right),
    }
    return scores_by_name(metrics, values, predictions, [[tags] for tags in right])


def label_scores(
    pipeline: EncoderPipeline,
    examples: Sequence[LabelledText],
    **options: Unpack[EncodingOptions],
) -> dict[str, float]:
    """Score a classifier; examples with a label unknown to it count as wrong.

    Args:
        pipeline: pipeline of the classifier.
        examples: texts with their true labels.
        **options: options of the pipeline, such as batch size and precision.
    """
    result = pipeline.classify([example.text for example in examples], **options)
    predictions = [labels[0].label for labels in result]
    right = [example.label for example in examples]
    # Numbered over both: the test set may have labels that the model never saw.
    numbers = {name: number for number, name in enumerate(sorted({*predictions, *right}))}
    ours, theirs = ([numbers[name] for name in names] for names in (predictions, right))
    return {"accuracy": accuracy(ours, theirs), "macro_f1": macro_f1(ours, theirs)}


def answer_scores(
    pipeline: EncoderPipeline,
    questions: Sequence[Question],
    metrics: Iterable[str] = tuple(_ANSWER_METRICS),
    **options: Unpack[EncodingOptions],
) -> dict[str, float]:
    """Score a question answerer.

    Args:
        pipeline: pipeline of the question answerer.
        questions: questions with their true answers.
        metrics: names of the metrics: `exact_match`, `f1`, registered ones.
        **options: options of the pipeline, such as batch size and precision.
    """
    result = pipeline.answer([(item.question, item.context) for item in questions], **options)
    predictions = [answer.text for answer in result]
    right = [[answer.text for answer in item.answers] for item in questions]
    own = {name: partial(metric, predictions, right) for name, metric in _ANSWER_METRICS.items()}
    return scores_by_name(metrics, own, predictions, right)


def translation_measure(
    settings: ValidationSettings,
    tokenizers: TokenizerPair,
    total: int,
    text_of: Callable[[int], tuple[str, str]],
    progress: Callable[[int, int], None],
) -> Measure:
    """Make the measure that scores translations of the validation sources.

    Args:
        settings: beam size, length penalty and metrics.
        tokenizers: tokenizers of the model.
        total: number of validation pairs.
        text_of: function from a pair's number to its source and target text.
        progress: callback with the number of finished translations and their total.
    """
    tokenize, lowercase = settings.tokenize, settings.lowercase
    for name in settings.metrics:  # an unknown sacreBLEU tokenizer is refused before training
        build_metric(name, tokenize=tokenize, lowercase=lowercase)
    search = SearchSettings(beam=settings.beam, length_penalty=settings.length_penalty)

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        def after_batch(done: int, total: int) -> None:
            progress(done, total)
            on_batch()

        # The first `count` pairs, always the same ones, so that scores of a run are comparable.
        sources, targets = zip(*map(text_of, range(count)), strict=True)
        pipeline = TranslationPipeline(model, tokenizers, precision=precision)
        translations = pipeline.translate(sources, settings=search, progress=after_batch)
        texts = [str(text) for text in translations]
        scores = corpus_scores(
            texts, targets, settings.metrics, tokenize=tokenize, lowercase=lowercase
        )
        # Rounded up, so that at most MOST_SAMPLES are shown.
        shown = range(0, count, -(-count // MOST_SAMPLES))
        return Measured(
            {name: metric.score for name, metric in scores.items()},
            {name: metric.signature for name, metric in scores.items()},
            tuple(Sample(sources[i], targets[i], texts[i]) for i in shown),
            worst_samples([Sample(*each) for each in zip(sources, targets, texts, strict=True)]),
            describe_degenerate(texts, sources, targets),
        )

    return Measure(total, score)


def worst_samples(samples: Sequence[Sample], count: int = MOST_WORST) -> tuple[Sample, ...]:
    """Return the samples with the lowest chrF, worst first; those that are right are left out."""
    metric = build_metric("chrf")
    # chrF has characters, so it ranks single sentences better than BLEU, whose 4-grams most lack.
    scored = [
        (metric.corpus_score([each.text], [[each.reference]]).score, number)
        for number, each in enumerate(samples)
        if each.text != each.reference
    ]
    return tuple(samples[number] for _, number in sorted(scored)[:count])


def pipeline_measure(
    examples: Sequence[Any],
    scores_of: Callable[..., Mapping[str, float]],
    metrics: Sequence[str],
    tokenizers: TokenizerPair,
    batch_tokens: int,
) -> Measure:
    """Make the metrics of an encoder that runs through the pipeline of the command line.

    Args:
        examples: validation examples.
        scores_of: function from a pipeline, examples and metric names to scores by name.
        metrics: names of the metrics.
        tokenizers: pair of the same tokenizer twice.
        batch_tokens: number of tokens in a batch.
    """

    def score(
        model: Any, count: int, precision: Precision, on_batch: Callable[[], None]
    ) -> Measured:
        pipeline = EncoderPipeline(model, tokenizers.source, precision=precision)
        options: EncodingOptions = {"batch_tokens": batch_tokens, "on_batch": on_batch}
        return Measured(scores_of(pipeline, examples[:count], metrics, **options))

    return Measure(len(examples), score)
