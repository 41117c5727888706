"""Preferences: a model learns which of two answers is better, as a language model or as a judge."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import numpy as np
import torch

from heedful.data.batch_plan import Indices, plan_files, plan_once
from heedful.data.chat_corpus import PreferenceReader
from heedful.data.encoded_texts import EncodedTexts, make_windows
from heedful.data.padding import pad
from heedful.errors import ConfigError, DataError
from heedful.models.encoder_spec import RewardHeadSpec
from heedful.train.batch_source import Batch, EpochBatches, FixedBatches
from heedful.train.preferences.preference_objective import (
    PairObjective,
    PreferenceBatch,
    PreferenceObjective,
    RewardBatch,
    RewardObjective,
    preference_measure,
)
from heedful.train.task import Setup, Task
from heedful.train.tasks.answer_models import causal_model, conversing, reference_model
from heedful.train.tasks.encoder_task import (
    document_readers,
    encode_and_note,
    new_encoder,
    weighted_fingerprint,
)


def prepare(setup: Setup) -> Task:
    """Read, check and encode preferences.

    Raises:
        DataError: when a line is no preference, or longer than the model reads.
        ConfigError: when there is no initial model, a batch has no room for a pair, or the
            reference has another vocabulary.
    """
    settings, data = setup.settings, setup.settings.data
    template, tokenizers = conversing(setup)
    rewarding = settings.base_task == "reward"

    def pairs(name: str, role: Literal["train", "valid"]) -> _Pairs:
        readers = [PreferenceReader(each.path, template) for each in document_readers(setup, role)]
        texts = encode_and_note(setup, name, readers, tokenizers.source, "answer")
        found = (_RewardedPairs if rewarding else _Pairs)(texts)
        found.check(data.max_length, data.budget)
        return found

    new_model = causal_model(setup, tokenizers)
    if rewarding:
        head = RewardHeadSpec(dropout=settings.model.dropout)
        new_model = new_encoder(setup, tokenizers, head)
    training = pairs("training", "train")
    objective: PairObjective = RewardObjective()
    if not rewarding:
        reference = reference_model(settings, tokenizers, new_model)
        objective = PreferenceObjective(settings.objective.beta, reference)
    validation, measure = None, None
    if data.valid:
        held_out = pairs("validation", "valid")
        validation = FixedBatches(plan_once(held_out.sizes, data), held_out.batch)
        measure = preference_measure(objective, validation, len(held_out.sizes))
    bounds = np.searchsorted(training.starts, training.texts.starts)
    return Task(
        tokenizers,
        weighted_fingerprint(setup, training.texts),
        EpochBatches(
            lambda epoch: plan_files(training.sizes, bounds, data, seed=settings.seed, epoch=epoch),
            lambda numbers, _: training.batch(numbers),
            training.texts.line_of,
        ),
        new_model,
        objective,
        validation,
        measure,
    )


class _Pairs:
    """Encoded preferences: two texts each, the chosen answer's first.

    Args:
        texts: stream of the texts.

    Attributes:
        starts, ends: number of the first token of each pair, and of the token after it [N].
    """

    def __init__(self, texts: EncodedTexts) -> None:
        self.texts = texts
        self.starts, self.ends = texts.bounds[:-1:2], texts.bounds[2::2]

    @property
    def sizes(self) -> Indices:
        """Positions of each pair in a batch [N]: the last end token is predicted, and not read."""
        return self.ends - self.starts - 1

    def check(self, max_length: int, budget: int) -> None:
        """Refuse texts that are too long.

        Args:
            max_length: most tokens of a text, its begin token counted.
            budget: most positions of a batch.

        Raises:
            DataError: naming the longest text, when it is longer.
            ConfigError: when a batch has no room for a pair.
        """
        lengths = np.diff(self.texts.bounds) - 1
        if (size := int(lengths.max())) > max_length:
            raise DataError(
                f"A prompt with its answer has {size:,} tokens, more than {max_length:,}",
                where=self.texts.line_of(int(self.texts.bounds[lengths.argmax()])),
                remedy=f"Set data.max_length to {size}, or leave the line out",
            )
        if (size := int(self.sizes.max())) > budget:
            raise ConfigError(
                f"A batch of {budget} tokens has no room for a pair of {size}",
                where="data.batch_tokens",
                remedy=f"Raise it to {size} or more",
            )

    def batch(self, numbers: Indices) -> Batch:
        """Make a batch of pairs, given their numbers [B]."""
        starts, longest = self.starts[numbers], int(self.sizes[numbers].max())
        window = make_windows(self.texts, starts, longest, self.ends[numbers])
        values = {each.name: getattr(window, each.name) for each in fields(window)}
        return PreferenceBatch(**values | {"target_tokens": len(numbers)})


class _RewardedPairs(_Pairs):
    """Encoded preferences for a reward model, which reads the two conversations apart."""

    @property
    def sizes(self) -> Indices:
        """Positions of each pair in a batch [N]: the two conversations have the same length."""
        lengths = np.diff(self.texts.bounds)
        return 2 * np.maximum(lengths[::2], lengths[1::2])

    def batch(self, numbers: Indices) -> Batch:
        bounds = self.texts.bounds
        texts = np.stack([2 * numbers, 2 * numbers + 1], 1).ravel()
        rows = [self.texts.span(bounds[each], bounds[each + 1]) for each in texts]
        ids, positions = pad(rows, 0)
        count = len(numbers)
        indices = torch.from_numpy(self.starts[numbers])
        return RewardBatch(ids.view(count, -1), positions.view(count, -1), indices, count)
