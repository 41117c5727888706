"""Denoising as a task: text in, an encoder-decoder that puts back what it cannot see out.

T5's span corruption and BART's denoising differ in how a row of text becomes source and target,
and in nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.data.batches import pair_batch
from heedful.data.corruption import (
    Corruption,
    denoising,
    sentinels_needed,
    span_corruption,
)
from heedful.data.documents import document_reader
from heedful.data.rows import frame_size
from heedful.errors import ConfigError
from heedful.models.translator import Translator
from heedful.text.pair import TokenizerPair
from heedful.text.tokenizer import SPECIALS
from heedful.text.trainer import train_tokenizer
from heedful.train.beginning import first_model, tokenizers_for
from heedful.train.language_model import all_texts, encode_documents, weighted_fingerprint
from heedful.train.objective import TranslationObjective
from heedful.train.row_source import RowSource, ValidationRows
from heedful.train.task_settings import check_room, check_task_settings
from heedful.train.validation import Validator

if TYPE_CHECKING:
    from heedful.data.batches import PairBatch
    from heedful.data.encoded import Indices
    from heedful.data.rows import Rows
    from heedful.data.stream import EncodedTexts
    from heedful.device import Precision
    from heedful.events import Events
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings


class DenoisingTask:
    """Texts, read and encoded.

    Args:
        settings: of the run.
        rows: makes sources and targets.
        texts: to train on.
        valid: to validate on, or None.
        events: told about the model that training begins with.
    """

    def __init__(
        self,
        settings: RunSettings,
        rows: CorruptedRows,
        texts: EncodedTexts,
        valid: EncodedTexts | None,
        events: Events,
    ) -> None:
        self.settings = settings
        self.rows = rows
        self.valid = valid
        self.events = events
        self.tokenizers = rows.tokenizers
        self.fingerprint = weighted_fingerprint(texts, settings)
        self.source = RowSource(texts, rows, settings)

    def new_model(self) -> Translator:
        """The model with its first weights, a function of the seed.

        Raises:
            ConfigError: when it has learned fewer positions than the longest row needs.
        """
        settings, size = self.settings, self.tokenizers.source.size
        spec = settings.model.expand(size, size)
        model = first_model(spec, settings, self.tokenizers, self.events)
        assert isinstance(model, Translator)
        positions, needed = model.spec.embedding.positions.max_length, self.rows.longest
        if positions is not None and needed > positions:
            raise ConfigError(
                f"Texts of data.max_length = {settings.data.max_length} tokens need {needed} "
                f"positions, and the model learns {positions}",
                where="data.max_length",
                remedy="Lower it"
                + (", or raise model.max_length" if settings.init is None else ""),
            )
        return model

    def objective(self) -> TranslationObjective:
        """Cross-entropy of the targets."""
        return TranslationObjective(self.settings.objective)

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """The loss on the validation texts, with the same gaps each time."""
        if self.valid is None:
            return None
        batches = ValidationRows(self.valid, self.rows, self.settings)
        return Validator(batches, objective, self.settings.validation, precision=precision)


class CorruptedRows:
    """Rows with gaps as sources, and what belongs there as targets.

    Args:
        corruption: makes the gaps.
        tokenizers: the same one twice.
        most_pieces: of a row.
    """

    def __init__(self, corruption: Corruption, tokenizers: TokenizerPair, most_pieces: int) -> None:
        self.corruption = corruption
        self.tokenizers = tokenizers
        self.tokenizer = tokenizers.source
        self.longest = int(self._sizes(np.array([most_pieces]))[0])

    def sizes(self, rows: Rows) -> Indices:
        """The most tokens [N] of each row's source or target, special ones counted."""
        return self._sizes(rows.counts)

    def batch(
        self, texts: EncodedTexts, rows: Rows, indices: Indices, *, seed: int, epoch: int
    ) -> PairBatch:
        """See `RowWork`."""
        starts, counts = rows.starts[indices], rows.counts[indices]
        sources, targets = [], []
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            pieces = texts.span(start, start + count)
            source, target = self.corruption(pieces, seed=seed, epoch=epoch, start=start)
            sources.append(source)
            targets.append(target)
        return pair_batch(sources, targets, starts, self.tokenizers)

    def _sizes(self, counts: Indices) -> Indices:
        source, target = self.corruption.longest(counts)
        # The decoder reads a token before the target, and predicts one after it.
        return np.maximum(source + frame_size(self.tokenizer), target + 1)


def prepare_denoising(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> DenoisingTask:
    """Read, check and encode texts; arguments as `heedful.train.task.prepare_task`.

    Raises:
        DataError: when the texts cannot be used.
        ConfigError: when a batch has no room for a row, the tokenizer of the model to begin with
            has no tokens for gaps, or a setting is for another task.
    """
    check_task_settings(settings)
    check_room(settings)
    data = settings.data
    train = [document_reader(spec, data.documents) for spec in data.train]
    tokenizers = tokenizers_for(
        settings, tokenizers, lambda: _new_tokenizers(settings, all_texts(train)), events
    )
    rows = _corrupted_rows(settings, tokenizers)
    texts, valid = encode_documents(run_dir, settings, train, tokenizers, events)
    return DenoisingTask(settings, rows, texts, valid, events)


def _corrupted_rows(settings: RunSettings, tokenizers: TokenizerPair) -> CorruptedRows:
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


def _new_tokenizers(settings: RunSettings, texts: list[str]) -> TokenizerPair:
    """One tokenizer, twice: with a sentinel for each gap of the longest row, or a mask for all."""
    spec, objective = settings.tokenizer, settings.objective
    count = 1
    if settings.task == "span_corruption":
        # Around a row stands its end alone.
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
