"""Denoising as a task: text in, an encoder-decoder that restores what it cannot see out.

T5's span corruption and BART's denoising differ in how a row of text becomes source and target,
and in nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from heedful.data.corruption import (
    CorruptedRows,
    Corruption,
    denoising,
    sentinels_needed,
    span_corruption,
)
from heedful.data.encoded_texts import frame_size
from heedful.errors import ConfigError
from heedful.text.tokenizer import SPECIALS
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.objective import TranslationObjective
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import (
    all_texts,
    document_readers,
    encode_documents,
    fixed_rows,
    row_source,
    weighted_fingerprint,
)

if TYPE_CHECKING:
    from torch import nn

    from heedful.train.run_settings import RunSettings


def prepare(setup: Setup) -> Task:
    """Read, check and encode texts.

    Raises:
        DataError: when the texts cannot be used.
        ConfigError: when a batch has no room for a row, or the tokenizer of the initial model has
            no tokens for gaps.
    """
    settings = setup.settings
    training = document_readers(setup, "train")
    tokenizers = setup.tokenizers(lambda: _new_tokenizers(settings, all_texts(setup, training)))
    tokenizer = tokenizers.source
    rows = _corrupted_rows(settings, tokenizers)
    texts, valid = encode_documents(setup, training, tokenizer)
    return Task(
        tokenizers,
        weighted_fingerprint(setup, texts),
        row_source(setup, texts, tokenizer, rows.sizes, rows.batch),
        lambda: _new_model(setup, rows),
        TranslationObjective(settings.objective),
        fixed_rows(setup, valid, tokenizer, rows.sizes, rows.batch),
    )


def _corrupted_rows(settings: RunSettings, tokenizers: TokenizerPair) -> CorruptedRows:
    """The rows that the settings describe.

    Raises:
        ConfigError: when they do not fit the tokenizers or the token budget.
    """
    objective, data = settings.objective, settings.data
    tokenizer, share, mean = tokenizers.source, objective.mask_share, objective.mean_span
    if not tokenizers.joint:
        raise ConfigError(
            "The model has two tokenizers, and source and target of this task are one text",
            where="init",
            remedy="Begin with a model that has one, or leave out init",
        )
    most_pieces = max(1, data.max_length - frame_size(tokenizer))
    corruption: Corruption
    if settings.task == "denoising":
        permuted = objective.permute_sentences
        corruption = denoising(tokenizer, share, mean, permute_sentences=permuted)
    else:
        corruption = span_corruption(tokenizer, share, mean, most_pieces)
    rows = CorruptedRows(corruption, tokenizers, most_pieces)
    if rows.longest > data.budget:
        raise ConfigError(
            f"A batch of {data.budget} tokens has no room for a target of {rows.longest}",
            where="data.batch_tokens",
            remedy="Raise it, or lower data.max_length or objective.mask_share",
        )
    return rows


def _new_model(setup: Setup, rows: CorruptedRows) -> nn.Module:
    settings, size = setup.settings, rows.tokenizers.source.size
    model = setup.new_model(settings.model.expand(size, size), rows.tokenizers)
    positions = cast("Any", model).spec.embedding.positions.max_length
    if positions is not None and rows.longest > positions:
        raise ConfigError(
            f"Texts of data.max_length = {settings.data.max_length} tokens need {rows.longest} "
            f"positions, and the model learns {positions}",
            where="data.max_length",
            remedy="Lower it" + (", or raise model.max_length" if settings.init is None else ""),
        )
    return model


def _new_tokenizers(settings: RunSettings, texts: list[str]) -> TokenizerPair:
    """One tokenizer, twice: with a sentinel for each gap of the longest row, or a mask for all."""
    spec, objective = settings.tokenizer, settings.objective
    count = 1
    if settings.task == "span_corruption":
        # A row has nothing but its end token around it.
        most_pieces = max(1, settings.data.max_length - 1)
        count = objective.sentinels or sentinels_needed(
            objective.mask_share, objective.mean_span, most_pieces
        )
    if spec.vocabulary_size <= len(SPECIALS) + count:
        raise ConfigError(
            f"Of {spec.vocabulary_size} pieces {count} would be sentinels and {len(SPECIALS)} "
            "special ones; there is no room for text",
            where="tokenizer.vocabulary_size",
            remedy="Raise it",
        )
    smaller = spec.model_copy(update={"vocabulary_size": spec.vocabulary_size - count})
    tokenizer = train_tokenizer(smaller, texts).with_sentinels(count)
    return TokenizerPair(tokenizer, tokenizer)
