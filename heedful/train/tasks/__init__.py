"""Training tasks, each prepared by a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.train.task import Setup, Task, check_forms, check_packing

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.text.tokenizer_pair import TokenizerPair
    from heedful.train.run_settings import RunSettings

__all__ = ["Task", "prepare_task"]


def prepare_task(
    run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> Task:
    """Read, check and encode the data of the task that the settings name.

    Args:
        run_dir: run directory, which keeps encoded data unless `data.cache` is set.
        settings: settings of the training run.
        tokenizers: tokenizers of a resumed run; None for a new run.
        events: receivers of progress, and of warnings about doubtful data.

    Raises:
        DataError: when the data is unusable.
        ConfigError: when a setting is for another task, or a batch has no room for an example.
    """
    # Imported here: a task loads readers and pipelines that the others do not need.
    from heedful.train.tasks import answering_task as answering
    from heedful.train.tasks import classification_task as classification
    from heedful.train.tasks import denoising_task as denoising
    from heedful.train.tasks import image_task as image
    from heedful.train.tasks import language_model_task as language_model
    from heedful.train.tasks import masked_task as masked
    from heedful.train.tasks import tagging_task as tagging
    from heedful.train.tasks import translation_task as translation

    prepare = {
        "translation": translation.prepare,
        "causal_lm": language_model.prepare,
        "masked_lm": masked.prepare,
        "span_corruption": denoising.prepare,
        "denoising": denoising.prepare,
        "classify": classification.prepare,
        "images": image.prepare,
        "tag": tagging.prepare,
        "answer": answering.prepare,
    }
    # All contradictions of settings are found before any data is read.
    settings.check_for_task()
    check_forms(settings)
    check_packing(settings)
    return prepare[settings.task](Setup(run_dir, settings, tokenizers, events))
