"""Tasks on corrupted text: an encoder predicts masked tokens, an encoder-decoder restores texts.

Masked language modelling is that of BERT (Devlin 2019). T5's span corruption (Raffel 2020) and
BART's denoising (Lewis 2020) share everything except how a row of tokens becomes source and target.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from torch import nn

from heedful.data.corruption import (
    CorruptedRows,
    Corruption,
    Masking,
    denoising,
    masked_batch,
    sentinels_needed,
    span_corruption,
)
from heedful.data.encoded_texts import frame_size
from heedful.errors import ConfigError
from heedful.models.encoder_spec import MaskedLMHeadSpec
from heedful.models.shape_to_spec import translator_spec
from heedful.text.tokenizer import SPECIALS
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.objective import MaskedObjective, TranslationObjective
from heedful.train.run_settings import RunSettings
from heedful.train.task import Setup, Task
from heedful.train.tasks.encoder_task import (
    all_texts,
    document_readers,
    encoder_tokenizers,
    new_encoder,
    row_task,
)


def prepare(setup: Setup) -> Task:
    """Read, check and encode texts.

    Raises:
        DataError: when the texts are unusable.
        ConfigError: when a batch has no room for a row, or the tokenizer of the initial model has
            no mask token or no sentinel tokens.
    """
    if setup.settings.base_task == "masked_lm":
        return _prepare_masking(setup)
    training = document_readers(setup, "train")
    tokenizers = setup.tokenizers(lambda: _new_tokenizers(setup, all_texts(setup, training)))
    rows = _corrupted_rows(setup.settings, tokenizers)
    loss = TranslationObjective(setup.settings.objective)
    new_model = partial(_new_model, setup, rows)
    return row_task(setup, tokenizers, training, rows.sizes, rows.batch, new_model, loss)


def _prepare_masking(setup: Setup) -> Task:
    settings, objective = setup.settings, setup.settings.objective
    training = document_readers(setup, "train")
    tokenizers = setup.tokenizers(lambda: encoder_tokenizers(setup, all_texts(setup, training)))
    tokenizer = tokenizers.source
    masking = Masking(tokenizer, objective.mask_share, whole_words=objective.whole_words)
    # BERT's head multiplies by the embedding table; "none" gives the head a matrix of its own.
    tied = settings.model.share_embeddings != "none"
    head = MaskedLMHeadSpec(activation="gelu", tied=tied)
    return row_task(
        setup,
        tokenizers,
        training,
        lambda rows: rows.sizes,
        # Masks are drawn when a batch is made, anew in every epoch (RoBERTa's dynamic masking).
        lambda texts, rows, seed, epoch: masked_batch(
            texts, rows, masking, tokenizer, seed=seed, epoch=epoch
        ),
        new_encoder(setup, tokenizers, head),
        MaskedObjective(objective.label_smoothing),
    )


def _corrupted_rows(settings: RunSettings, tokenizers: TokenizerPair) -> CorruptedRows:
    """Make the corrupted rows that the settings describe.

    Raises:
        ConfigError: when they contradict the tokenizers or the token budget.
    """
    objective, data = settings.objective, settings.data
    tokenizer, share, mean = tokenizers.source, objective.mask_share, objective.mean_span
    if not tokenizers.joint:
        raise ConfigError(
            "The model has two tokenizers, and source and target of this task are one text",
            where="init",
            remedy="Begin with a model that has one, or leave out init",
        )
    # Begin and end tokens of the row count against `data.max_length`.
    most_pieces = max(1, data.max_length - frame_size(tokenizer))
    corruption: Corruption
    if settings.base_task == "denoising":
        permuted = objective.permute_sentences
        corruption = denoising(tokenizer, share, mean, permute_sentences=permuted)
    else:
        corruption = span_corruption(tokenizer, share, mean, most_pieces)
    rows = CorruptedRows(corruption, tokenizers, most_pieces)
    # Checked on the longest possible row, not on the data: a run must not fail in its tenth epoch.
    if rows.longest > data.budget:
        raise ConfigError(
            f"A batch of {data.budget} tokens has no room for a target of {rows.longest}",
            where="data.batch_tokens",
            remedy="Raise it, or lower data.max_length or objective.mask_share",
        )
    return rows


def _new_model(setup: Setup, rows: CorruptedRows) -> nn.Module:
    settings, size = setup.settings, rows.tokenizers.source.size
    model = setup.new_model(translator_spec(settings.model, size, size), rows.tokenizers)
    # A target with its sentinels may be longer than its row of text.
    positions = cast("Any", model).spec.embedding.positions.max_length
    if positions is not None and rows.longest > positions:
        raise ConfigError(
            f"Texts of data.max_length = {settings.data.max_length} tokens need {rows.longest} "
            f"positions, and the model learns {positions}",
            where="data.max_length",
            remedy="Lower it" + (", or raise model.max_length" if settings.init is None else ""),
        )
    return model


def _new_tokenizers(setup: Setup, texts: list[str]) -> TokenizerPair:
    """Train one tokenizer for both sides, with enough sentinels for the longest row or one mask."""
    settings = setup.settings
    spec, objective = settings.tokenizer, settings.objective
    count = 1
    if settings.base_task == "span_corruption":
        # T5's rows end with an end token and have no begin token.
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
    # Sentinels are part of the vocabulary size that the settings ask for.
    smaller = spec.model_copy(update={"vocabulary_size": spec.vocabulary_size - count})
    tokenizer = train_tokenizer(smaller, texts, setup.events.warn).with_sentinels(count)
    return TokenizerPair(tokenizer, tokenizer)
