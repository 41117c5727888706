"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from heedful.train.settings import ScheduleSettings


def peak_learning_rate(settings: ScheduleSettings, width: int) -> float:
    """The rate at the end of the warm-up; the paper's for the model's width if none is set.

    Args:
        settings: the schedule.
        width: D.
    """
    if settings.peak_learning_rate is not None:
        return settings.peak_learning_rate
    return 1.0 / math.sqrt(width * max(1, settings.warmup_steps))


def learning_rate(settings: ScheduleSettings, step: int, *, width: int, max_steps: int) -> float:
    """The learning rate of a step: a linear warm-up, then the schedule's own course.

    With `inverse_sqrt` and no peak set this is the formula of Vaswani 2017, section 5.3.

    Args:
        settings: the schedule.
        step: number of the update, from 1.
        width: D, for the paper's peak.
        max_steps: where `cosine` and `linear` end.
    """
    assert step >= 1
    peak = peak_learning_rate(settings, width)
    warmup = settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.kind == "constant":
        return peak
    if settings.kind == "inverse_sqrt":
        return peak * math.sqrt(max(1, warmup) / step)
    final = settings.final_learning_rate
    share = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    if settings.kind == "linear":
        return peak + (final - peak) * share
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * share))
