"""Translation as a task: sentence pairs in, a translator out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from torch import nn

from heedful.data.batches import BpeDropout, make_batch
from heedful.data.corpus_check import check_corpora
from heedful.data.encoded_pairs import (
    EncodedPairs,
    encode_corpora,
    epoch_batches,
    select_pairs,
    validation_batches,
)
from heedful.errors import ConfigError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_pair
from heedful.train.batch_source import EpochBatches, FixedBatches, Source
from heedful.train.objective import TranslationObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.pipeline_scores import translation_measure
from heedful.train.tasks.streamed_corpora import (
    pair_stream,
    side_texts,
    stream_fingerprint,
    streamed_pairs,
)

if TYPE_CHECKING:
    from heedful.data.batch_plan import Indices
    from heedful.data.batches import PairBatch


def prepare(setup: Setup) -> Task:
    """Read, check and encode the corpora.

    Raises:
        DataError: when the corpora cannot be used.
    """
    settings, data = setup.settings, setup.settings.data
    stream = pair_stream(setup) if data.is_streamed else None

    def train_new() -> TokenizerPair:
        pair = train_pair(settings.tokenizer, *side_texts(setup, stream))
        kinds = settings.protected_kinds
        return pair.protecting(kinds) if kinds else pair

    tokenizers = setup.tokenizers(train_new)
    pairs = None if stream is not None else _encode(setup, "train", tokenizers)
    valid = _encode(setup, "valid", tokenizers) if data.valid else None
    for line in check_corpora(pairs, valid, data, seed=settings.seed).lines():
        setup.events.note(line)
    validation = measure = None
    if valid is not None:
        items = validation_batches(valid, data)
        validation = FixedBatches(items, partial(make_batch, valid))

        def progress(done: int, total: int) -> None:
            setup.events.progress(done, total, "translating")

        measure = translation_measure(
            settings.validation, tokenizers, len(valid), valid.text_of, progress
        )
    if stream is not None:
        fingerprint = stream_fingerprint(stream, tokenizers)
        source: Source = streamed_pairs(setup, stream, tokenizers)
    else:
        assert pairs is not None
        fingerprint, source = pairs.fingerprint, _source(setup, pairs)
    return Task(
        tokenizers,
        fingerprint,
        source,
        lambda: _new_model(setup, tokenizers),
        TranslationObjective(settings.objective),
        validation,
        measure,
    )


def _encode(
    setup: Setup, role: Literal["train", "valid"], tokenizers: TokenizerPair
) -> EncodedPairs:
    label = "encoding" if role == "train" else "encoding validation"
    return encode_corpora(
        getattr(setup.settings.data, role),
        tokenizers,
        setup.cache,
        progress=lambda done, total: setup.events.progress(done, total, label),
        notice=setup.events.warn,
    )


def _source(setup: Setup, pairs: EncodedPairs) -> EpochBatches[Indices]:
    settings, data, seed = setup.settings, setup.settings.data, setup.settings.seed
    selection = select_pairs(pairs, data)
    probability = settings.objective.bpe_dropout
    longest = min(data.max_length, data.budget - 1)

    def make(indices: Indices, epoch: int) -> PairBatch:
        dropout = BpeDropout(probability, seed, epoch, longest) if probability else None
        return make_batch(pairs, indices, bpe_dropout=dropout)

    return EpochBatches(
        lambda epoch: epoch_batches(pairs, selection, data, seed=seed, epoch=epoch),
        make,
        pairs.line_of,
    )


def _new_model(setup: Setup, tokenizers: TokenizerPair) -> nn.Module:
    settings = setup.settings
    shape, longest = settings.model, settings.data.max_length
    if settings.init is None and shape.positions == "learned" and longest > shape.max_length:
        raise ConfigError(
            f"data.max_length = {longest} is more than the {shape.max_length} positions the model "
            "learns",
            where="model.max_length",
            remedy="Raise model.max_length or lower data.max_length",
        )
    spec = shape.expand(tokenizers.source.size, tokenizers.target.size)
    return setup.new_model(spec, tokenizers)
