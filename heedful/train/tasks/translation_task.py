"""Translation: an encoder-decoder trained on sentence pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from heedful.data.batches import make_batch
from heedful.data.corpus_check import check_corpora
from heedful.data.encoded_pairs import (
    EncodedPairs,
    encode_corpora,
    validation_batches,
)
from heedful.text.sentences import learned_reading
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_pair
from heedful.train.batch_source import FixedBatches, Source
from heedful.train.objective import TranslationObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.pair_source import encoded_pairs, new_translator, read_terms
from heedful.train.tasks.pipeline_scores import translation_measure
from heedful.train.tasks.streamed_corpora import (
    pair_stream,
    sampled_sources,
    side_texts,
    stream_fingerprint,
    streamed_pairs,
    target_texts,
)


def prepare(setup: Setup) -> Task:
    """Read, check and encode the corpora.

    Raises:
        DataError: when the corpora are unusable.
    """
    settings, data = setup.settings, setup.settings.data
    stream = pair_stream(setup) if data.is_streamed else None

    def train_new() -> TokenizerPair:
        sources, targets = side_texts(setup, stream)
        pair = train_pair(settings.tokenizer, sources, targets, setup.events.warn)
        pair = replace(pair, reading=learned_reading(*sampled_sources(setup, stream)))
        kinds = settings.protected_kinds
        # Reserved characters get their tokens after training, so they take none from the text.
        pair = pair.protecting(kinds) if kinds else pair
        return pair if settings.soft_terms is None else pair.with_soft_terms()

    tokenizers = setup.tokenizers(train_new)
    if setup.saved_tokenizers is None:  # a resumed run has the words from its start
        tokenizers = tokenizers.having_seen(target_texts(setup, stream))
    terms = read_terms(settings, tokenizers)
    pairs = None if stream is not None else _encode(setup, "train", tokenizers)
    valid = _encode(setup, "valid", tokenizers) if data.valid else None
    # Overlaps of training and validation data are reported before hours are spent on them.
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
        source: Source = streamed_pairs(setup, stream, tokenizers, terms)
    else:
        assert pairs is not None
        fingerprint, source = pairs.fingerprint, encoded_pairs(setup, pairs, terms)
    # Terms change what updates are computed from, as the corpora do.
    if terms is not None:
        fingerprint = f"{fingerprint}-{terms.fingerprint}"
    return Task(
        tokenizers,
        fingerprint,
        source,
        lambda: new_translator(setup, tokenizers),
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
