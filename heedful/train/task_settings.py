"""Settings that only some tasks know, refused everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.train.settings import Metric, RunSettings

_OBJECTIVES = {
    "scheduled_sampling": "translation",
    "r_drop": "translation",
    "bpe_dropout": "translation",
    "mask_share": "masked_lm",
    "whole_words": "masked_lm",
}
"""Of which task a setting of the objective is; the others leave it as it is by default."""

_METRICS: dict[str, tuple[Metric, ...]] = {
    "translation": ("bleu", "chrf", "ter"),
    "causal_lm": (),
    "masked_lm": (),
    "classify": ("accuracy", "macro_f1"),
}
"""What each task is measured by beside its loss."""


def check_task_settings(settings: RunSettings) -> None:
    """Refuse what the task does not know.

    Raises:
        ConfigError: naming the setting.
    """
    objective = settings.objective
    for name, task in _OBJECTIVES.items():
        default = type(objective).model_fields[name].default
        if task != settings.task and getattr(objective, name) != default:
            raise ConfigError(
                f"objective.{name} is for {task}; this task is {settings.task}",
                where=f"objective.{name}",
                remedy=f"Leave it at {str(default).lower()}",
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


def check_room(settings: RunSettings) -> None:
    """Refuse a token budget that is smaller than the longest text.

    Raises:
        ConfigError: naming both.
    """
    data = settings.data
    if data.batch_tokens < data.max_length:
        raise ConfigError(
            f"A batch of {data.batch_tokens} tokens has no room for a text of "
            f"{data.max_length} (data.max_length)",
            where="data.batch_tokens",
            remedy="Raise it, or lower data.max_length",
        )
