"""Validation: the loss over real tokens, and translations by the real decoder with their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from heedful.data.batches import make_batch
from heedful.data.order import plan_batches
from heedful.data.selection import select_pairs
from heedful.evaluate.metrics import build_metric, corpus_scores
from heedful.evaluate.perplexity import bits_per_unit, perplexity
from heedful.train.objective import Context, Objective

if TYPE_CHECKING:
    from heedful.data.encoded import EncodedPairs
    from heedful.data.spec import DataSpec
    from heedful.device import Precision
    from heedful.models.translator import Translator
    from heedful.train.settings import ValidationSettings

Translate = Callable[["Translator", list[str]], list[str]]


@dataclass(frozen=True)
class Scores:
    """What a validation came to.

    Args:
        values: figures by name: `loss` in nats per token, `perplexity`, `bits_per_token` and the
            metrics.
        score: the one that decides, larger is better.
        sentences: how many were translated; 0 when only the loss was wanted.
        signatures: sacreBLEU's, by metric.
    """

    values: Mapping[str, float]
    score: float
    sentences: int
    signatures: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """The figures in a line."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())


class Validator:
    """Scores a translator on the validation pairs.

    Args:
        pairs: the encoded validation corpora.
        objective: whose loss is measured; without label smoothing, as the model is in eval mode.
        settings: metrics and how to translate.
        data: the limits of a batch.
        precision: of the loss's forward passes.
        translate: turns sentences into translations with the model given.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        objective: Objective,
        settings: ValidationSettings,
        data: DataSpec,
        *,
        precision: Precision,
        translate: Translate,
    ) -> None:
        self.pairs = pairs
        self.objective = objective
        self.settings = settings
        self.precision = precision
        self.translate = translate
        for name in settings.metrics:  # an unknown tokenizer is to be found out before training
            build_metric(name, tokenize=settings.tokenize, lowercase=settings.lowercase)
        self.batches = plan_batches(
            pairs.source_lengths,
            pairs.target_lengths,
            [(select_pairs(pairs, data).kept, 1.0)],
            batch_tokens=data.batch_tokens,
            pool_batches=max(1, len(pairs)),
            seed=0,
            epoch=0,
        )

    def __call__(self, model: Translator, *, everything: bool = False) -> Scores:
        """Score a model in eval mode.

        Args:
            model: with the weights to judge.
            everything: translate all sentences, whatever `max_sentences` says.
        """
        with torch.no_grad():
            values = self._loss(model)
            metrics = self.settings.metrics
            count = self.sentences(everything=everything) if metrics else 0
            signatures: dict[str, str] = {}
            if metrics:
                texts = [self.pairs.text_of(i) for i in range(count)]
                found = corpus_scores(
                    self.translate(model, [source for source, _ in texts]),
                    [target for _, target in texts],
                    metrics,
                    tokenize=self.settings.tokenize,
                    lowercase=self.settings.lowercase,
                )
                values |= {name: metric.score for name, metric in found.items()}
                signatures = {name: metric.signature for name, metric in found.items()}
        chosen = self.settings.choose_by
        score = -values["loss"] if chosen == "loss" else values[chosen]
        return Scores(values, score, count, signatures)

    def sentences(self, *, everything: bool = False) -> int:
        """How many sentences are translated."""
        limit = self.settings.max_sentences
        return len(self.pairs) if everything or limit is None else min(limit, len(self.pairs))

    def _loss(self, model: Translator) -> dict[str, float]:
        device = next(model.parameters()).device
        nll, tokens = 0.0, 0
        for indices in self.batches:
            batch = make_batch(self.pairs, indices).to(device)
            with self.precision.autocast():
                result = self.objective.loss(model, batch, Context(step=0))
            nll += float(result.extras["nll"])
            tokens += result.tokens
        return {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
            "bits_per_token": bits_per_unit(nll, tokens),
        }
