"""The tasks that can be trained, each a module that prepares it."""

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
        run_dir: encoded data is kept in it unless `data.cache` is set.
        settings: of the run.
        tokenizers: those of the run when it is resumed; trained from the data if None, unless
            there is no text in it.
        events: receive progress, and warnings about doubtful data.

    Raises:
        DataError: when the data cannot be used.
        ConfigError: when a setting is for another task, or a batch has no room for an example.
    """
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
    settings.check_for_task()
    check_forms(settings)
    check_packing(settings)
    return prepare[settings.task](Setup(run_dir, settings, tokenizers, events))
