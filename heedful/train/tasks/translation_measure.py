"""Translation metrics in validation, through the decoder that `heedful translate` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.evaluate.corpus_metrics import build_metric, corpus_scores
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings
from heedful.train.validation import Measure, Measured

if TYPE_CHECKING:
    from heedful.data.encoded_pairs import EncodedPairs
    from heedful.device import Precision
    from heedful.text.tokenizer_pair import TokenizerPair
    from heedful.train.task import Setup


def translation_measure(setup: Setup, pairs: EncodedPairs, tokenizers: TokenizerPair) -> Measure:
    """Score translations of the validation sources.

    Args:
        setup: of the task; its settings say beam, length penalty and metrics.
        pairs: the validation pairs.
        tokenizers: of the model.
    """
    settings = setup.settings.validation
    tokenize, lowercase = settings.tokenize, settings.lowercase
    for name in settings.metrics:  # an unknown sacreBLEU tokenizer is refused before training
        build_metric(name, tokenize=tokenize, lowercase=lowercase)
    search = SearchSettings(beam=settings.beam, length_penalty=settings.length_penalty)

    def progress(done: int, total: int) -> None:
        setup.events.progress(done, total, "translating")

    def score(model: Any, count: int, precision: Precision) -> Measured:
        texts = [pairs.text_of(i) for i in range(count)]
        pipeline = TranslationPipeline(model, tokenizers, precision=precision)
        sources = [source for source, _ in texts]
        translations = pipeline.translate(sources, settings=search, progress=progress)
        scores = corpus_scores(
            [str(text) for text in translations],
            [target for _, target in texts],
            settings.metrics,
            tokenize=tokenize,
            lowercase=lowercase,
        )
        return Measured(
            {name: metric.score for name, metric in scores.items()},
            {name: metric.signature for name, metric in scores.items()},
        )

    return Measure(len(pairs), score)
