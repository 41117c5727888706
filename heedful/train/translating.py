"""How good a translator's translations are, by the real decoder that `heedful translate` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heedful.decode.pipeline import TranslationPipeline
from heedful.decode.settings import SearchSettings
from heedful.evaluate.metrics import build_metric, corpus_scores
from heedful.train.validation import Measured

if TYPE_CHECKING:
    from heedful.data.encoded import EncodedPairs
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.text.pair import TokenizerPair
    from heedful.train.settings import ValidationSettings


class TranslationMeasure:
    """Translates validation sentences and scores them.

    Args:
        pairs: the validation pairs.
        tokenizers: of the model.
        settings: beam, length penalty, metrics.
        precision: of the forward passes.
        events: told how far it is.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        tokenizers: TokenizerPair,
        settings: ValidationSettings,
        precision: Precision,
        events: Events,
    ) -> None:
        self.pairs = pairs
        self.tokenizers = tokenizers
        self.settings = settings
        self.precision = precision
        self.events = events
        for name in settings.metrics:  # an unknown tokenizer is to be found out before training
            build_metric(name, tokenize=settings.tokenize, lowercase=settings.lowercase)

    def count(self, *, everything: bool) -> int:
        """How many sentences are translated."""
        if not self.settings.metrics:
            return 0
        limit = self.settings.max_sentences
        return len(self.pairs) if everything or limit is None else min(limit, len(self.pairs))

    def __call__(self, model: Any, count: int) -> Measured:
        """Score translations of the first sentences."""
        settings = self.settings
        texts = [self.pairs.text_of(i) for i in range(count)]
        found = corpus_scores(
            self._translate(model, [source for source, _ in texts]),
            [target for _, target in texts],
            settings.metrics,
            tokenize=settings.tokenize,
            lowercase=settings.lowercase,
        )
        return Measured(
            {name: metric.score for name, metric in found.items()},
            {name: metric.signature for name, metric in found.items()},
        )

    def _translate(self, model: Any, sources: list[str]) -> list[str]:
        pipeline = TranslationPipeline(model, self.tokenizers, precision=self.precision)
        search = SearchSettings(
            beam=self.settings.beam, length_penalty=self.settings.length_penalty
        )

        def told(done: int, total: int) -> None:
            self.events.progress(done, total, "translating")

        return [str(text) for text in pipeline.translate(sources, settings=search, progress=told)]
