"""What training asks of a task: data to learn from, a model, a loss, and a judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

    from heedful.device import Precision
    from heedful.events import Events
    from heedful.text.pair import TokenizerPair
    from heedful.train.objective import Objective
    from heedful.train.settings import RunSettings
    from heedful.train.trainer import BatchSource
    from heedful.train.validation import Validator


class Task(Protocol):
    """A task whose data is read, checked and encoded."""

    @property
    def tokenizers(self) -> TokenizerPair | None:
        """Trained from the data, or those of the run; None where the examples are no text."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the training data or the tokenizers do."""
        ...

    @property
    def source(self) -> BatchSource:
        """The training batches."""
        ...

    def new_model(self) -> nn.Module:
        """The model with its first weights, a function of the seed.

        Raises:
            ConfigError: when the model cannot hold what the data asks for.
        """
        ...

    def objective(self) -> Objective:
        """What is minimised."""
        ...

    def validator(
        self, objective: Objective, precision: Precision, events: Events
    ) -> Validator | None:
        """What scores a model; None without validation data.

        Args:
            objective: whose loss is measured.
            precision: of the forward passes.
            events: told how far it is.
        """
        ...


def prepare_task(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> Task:
    """Read, check and encode the data of the task that the settings name.

    Args:
        run_dir: where encoded data is kept unless `data.cache` is set.
        settings: of the run.
        tokenizers: those of the run when it is resumed; trained from the data if None, unless
            there is no text in it.
        events: who is told about progress and doubtful data.

    Raises:
        DataError: when the data cannot be used.
    """
    if settings.task == "causal_lm":
        from heedful.train.language_model import prepare_language_model

        return prepare_language_model(run_dir, settings, tokenizers, events)
    if settings.task == "masked_lm":
        from heedful.train.masked import prepare_masked

        return prepare_masked(run_dir, settings, tokenizers, events)
    if settings.task in ("span_corruption", "denoising"):
        from heedful.train.denoise import prepare_denoising

        return prepare_denoising(run_dir, settings, tokenizers, events)
    if settings.task == "classify":
        from heedful.train.classify import prepare_classifier

        return prepare_classifier(run_dir, settings, tokenizers, events)
    if settings.task == "images":
        from heedful.train.images import prepare_images

        return prepare_images(run_dir, settings, events)
    if settings.task == "tag":
        from heedful.train.tag import prepare_tagger

        return prepare_tagger(settings, tokenizers, events)
    if settings.task == "answer":
        from heedful.train.answer import prepare_reader

        return prepare_reader(settings, tokenizers, events)
    from heedful.train.translation import prepare_translation

    return prepare_translation(run_dir, settings, tokenizers, events)
