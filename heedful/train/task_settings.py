"""Settings that only some tasks know, refused everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.data.image_spec import AugmentSpec, ImageSpec
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.train.settings import Metric, RunSettings, Task

_OWNERS: dict[str, dict[str, tuple[Task, ...]]] = {
    "objective": {
        "scheduled_sampling": ("translation",),
        "r_drop": ("translation",),
        "bpe_dropout": ("translation",),
        "mask_share": ("masked_lm", "span_corruption", "denoising"),
        "whole_words": ("masked_lm",),
        "mean_span": ("span_corruption", "denoising"),
        "sentinels": ("span_corruption",),
        "permute_sentences": ("denoising",),
    },
    "data": {"stride": ("tag", "answer"), "word_column": ("tag",), "tag_column": ("tag",)},
    "images": dict.fromkeys(ImageSpec.model_fields, ("images",)),
    "augment": dict.fromkeys(AugmentSpec.model_fields, ("images",)),
}
"""Of which tasks a setting is; the others leave it as it is by default."""

_OF_TEXT = ("tokenizer", "lora")
"""Sections that a task without text does not know."""

_METRICS: dict[str, tuple[Metric, ...]] = {
    "translation": ("bleu", "chrf", "ter"),
    "causal_lm": (),
    "masked_lm": (),
    "span_corruption": (),
    "denoising": (),
    "classify": ("accuracy", "macro_f1"),
    "tag": ("accuracy", "span_f1"),
    "answer": ("exact_match", "f1"),
    "images": ("accuracy", "macro_f1"),
}
"""What each task is measured by beside its loss."""


def check_task_settings(settings: RunSettings) -> None:
    """Refuse what the task does not know.

    Raises:
        ConfigError: naming the setting.
    """
    if not settings.has_text:
        _refuse_text_settings(settings)
    for section, owners in _OWNERS.items():
        given = getattr(settings, section)
        for name, tasks in owners.items():
            default = type(given).model_fields[name].default
            if settings.task not in tasks and getattr(given, name) != default:
                raise ConfigError(
                    f"{section}.{name} is for {' and '.join(tasks)}; this task is {settings.task}",
                    where=f"{section}.{name}",
                    remedy="Leave it out",
                )
    known = _METRICS[settings.task]
    unknown = [name for name in settings.validation.metrics if name not in known]
    if unknown and not known:
        raise ConfigError(
            "A language model is judged by its loss; there are no translations or labels to score",
            where="validation.metrics",
            remedy='Set validation.metrics = [] and validation.choose_by = "loss"',
        )
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} cannot be measured in the task {settings.task}",
            where="validation.metrics",
            remedy=f"Choose among {', '.join(known)}",
        )


def _refuse_text_settings(settings: RunSettings) -> None:
    for section in _OF_TEXT:
        given = getattr(settings, section)
        for name, default in type(given)():
            if getattr(given, name) != default:
                raise ConfigError(
                    f"The settings of [{section}] are for text; this task is {settings.task}",
                    where=f"{section}.{name}",
                    remedy="Leave it out",
                )


def check_room(settings: RunSettings) -> None:
    """Refuse a token budget that is smaller than the longest text.

    Raises:
        ConfigError: naming both.
    """
    data = settings.data
    if data.budget < data.max_length:
        raise ConfigError(
            f"A batch of {data.budget} tokens has no room for a text of "
            f"{data.max_length} (data.max_length)",
            where="data.batch_tokens",
            remedy="Raise it, or lower data.max_length",
        )
