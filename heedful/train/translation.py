"""Translation as a task: sentence pairs in, a translator out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from heedful.data.batches import make_batch
from heedful.data.check import check_corpora
from heedful.data.corpus import CorpusTexts
from heedful.data.encoded import EncodedPairs, encode_corpora
from heedful.data.order import plan_batches
from heedful.data.selection import Selection, select_pairs
from heedful.errors import ConfigError
from heedful.text.pair import TokenizerPair, train_pair
from heedful.train.beginning import first_model, tokenizers_for
from heedful.train.objective import TranslationObjective
from heedful.train.source import PairSource
from heedful.train.task_settings import check_task_settings
from heedful.train.translating import TranslationMeasure
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heedful.data.batches import PairBatch
    from heedful.data.spec import CorpusSpec, DataSpec
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


class TranslationTask:
    """Sentence pairs, read and encoded.

    Args:
        settings: of the run.
        pairs: the training pairs.
        selection: which of them can be trained on.
        valid: the validation pairs, or None.
    """

    def __init__(
        self,
        settings: RunSettings,
        pairs: EncodedPairs,
        selection: Selection,
        valid: EncodedPairs | None,
    ) -> None:
        self.settings = settings
        self.valid = valid
        self.tokenizers: TokenizerPair = pairs.tokenizers
        self.fingerprint = pairs.fingerprint
        self.source = PairSource(pairs, selection, settings)

    def new_model(self) -> nn.Module:
        """The translator with its first weights, a function of the seed.

        Raises:
            ConfigError: when the model cannot hold what the data asks for.
        """
        shape, data = self.settings.model, self.settings.data
        fresh = self.settings.init is None
        if fresh and shape.positions == "learned" and data.max_length > shape.max_length:
            raise ConfigError(
                f"data.max_length = {data.max_length} is more than the {shape.max_length} "
                "positions the model learns",
                where="model.max_length",
                remedy="Raise model.max_length or lower data.max_length",
            )
        spec = shape.expand(self.tokenizers.source.size, self.tokenizers.target.size)
        return first_model(spec, self.settings, self.tokenizers)

    def objective(self) -> TranslationObjective:
        """Label-smoothed cross-entropy and its regularisers."""
        return TranslationObjective(self.settings.objective)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """Loss and translation metrics on the validation pairs."""
        if self.valid is None:
            return None
        settings = self.settings.validation
        measure = TranslationMeasure(self.valid, self.tokenizers, settings, precision, events)
        batches = ValidationPairs(self.valid, self.settings.data)
        return Validator(batches, objective, settings, precision=precision, measure=measure)


class ValidationPairs:
    """The batches of validation pairs, the same ones in the same order each time.

    Args:
        pairs: encoded.
        data: the limits of a pair and of a batch.
    """

    def __init__(self, pairs: EncodedPairs, data: DataSpec) -> None:
        self.pairs = pairs
        self.planned = plan_batches(
            pairs.source_lengths,
            pairs.target_lengths,
            [(select_pairs(pairs, data).kept, 1.0)],
            batch_tokens=data.budget,
            pool_batches=max(1, len(pairs)),
            seed=0,
            epoch=0,
        )

    def __iter__(self) -> Iterator[PairBatch]:
        for indices in self.planned:
            yield make_batch(self.pairs, indices)


def prepare_translation(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> TranslationTask:
    """Read, check and encode the corpora; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the corpora cannot be used.
        ConfigError: when a setting is for another task.
    """
    check_task_settings(settings)
    data = settings.data

    def train_new() -> TokenizerPair:
        sources, targets = CorpusTexts(data.train, "source"), CorpusTexts(data.train, "target")
        return train_pair(settings.tokenizer, sources, targets)

    tokenizers = tokenizers_for(settings, tokenizers, train_new, events)
    cache = Path(data.cache) if data.cache is not None else run_dir / "data"
    pairs = _encode(data.train, tokenizers, cache, events, "encoding")
    valid = None
    if data.valid:
        valid = _encode(data.valid, tokenizers, cache, events, "encoding validation")
    for line in check_corpora(pairs, valid, data, seed=settings.seed).lines():
        events.note(line)
    return TranslationTask(settings, pairs, select_pairs(pairs, data), valid)


def _encode(
    specs: Sequence[CorpusSpec],
    tokenizers: TokenizerPair,
    cache: Path,
    events: Events,
    label: str,
) -> EncodedPairs:
    return encode_corpora(
        specs,
        tokenizers,
        cache,
        progress=lambda done, total: events.progress(done, total, label),
        notice=events.warn,
    )
