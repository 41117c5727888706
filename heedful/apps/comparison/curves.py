"""Curves of a comparison: a metric along training, as the mean over seeds with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from heedful.apps.comparison.plan import Run
from heedful.apps.comparison.results import events_of
from heedful.apps.evaluation.bootstrap import Interval
from heedful.apps.evaluation.seed_intervals import student_interval

Axis = Literal["updates", "seconds", "tokens", "operations"]
AXES: tuple[Axis, ...] = get_args(Axis)

_STRETCHES = 60
"""Points of a training curve; each is the mean over consecutive updates."""


@dataclass(frozen=True)
class CurvePoint:
    """A point of a curve, averaged over seeds.

    Args:
        step: updates made.
        seconds: seconds of training and validation so far, the mean over seeds.
        tokens: target tokens so far, the mean over seeds.
        value: mean of the metric over seeds, with its interval.
    """

    step: int
    seconds: float
    tokens: float
    value: Interval

    def at(self, axis: Axis, flops_per_update: float) -> float:
        """The point's coordinate on an axis."""
        if axis == "operations":
            return self.step * flops_per_update
        return {"updates": self.step, "seconds": self.seconds, "tokens": self.tokens}[axis]


def validation_curve(runs: Sequence[Run], figure: str) -> list[CurvePoint]:
    """Average a validation metric over runs, at the steps that all runs reached.

    Args:
        runs: runs of one variant.
        figure: name of the metric, such as `loss` or `bleu`.
    """
    return _averaged([_validations(events_of(run), figure) for run in runs])


def training_curve(runs: Sequence[Run]) -> list[CurvePoint]:
    """Average the training loss over consecutive updates, then over runs.

    Args:
        runs: runs of one variant.
    """
    records = [[e for e in events_of(run) if "event" not in e] for run in runs]
    last = min((events[-1]["step"] for events in records if events), default=0)
    stretch = max(1, math.ceil(last / _STRETCHES))
    return _averaged([_stretches(events, stretch) for events in records])


_Point = tuple[float, float, float]
"""Seconds, tokens, value."""


def _validations(events: Sequence[Mapping[str, Any]], figure: str) -> dict[int, _Point]:
    points: dict[int, _Point] = {}
    seconds, tokens = 0.0, 0.0
    for event in events:
        kind = event.get("event")
        if kind is None:
            seconds, tokens = event["seconds"], event["total_tokens"]
        elif kind == "validation" and isinstance(event.get(figure), int | float):
            points[event["step"]] = (seconds, tokens, event[figure])
    return points


def _stretches(events: Sequence[Mapping[str, Any]], stretch: int) -> dict[int, _Point]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if isinstance(event.get("loss"), int | float):
            groups.setdefault(math.ceil(event["step"] / stretch) * stretch, []).append(event)
    return {
        end: (
            group[-1]["seconds"],
            group[-1]["total_tokens"],
            math.fsum(event["loss"] for event in group) / len(group),
        )
        for end, group in groups.items()
    }


def _averaged(curves: Sequence[Mapping[int, _Point]]) -> list[CurvePoint]:
    if not curves:
        return []
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    points = []
    for step in common:
        seconds, tokens, values = zip(*(curve[step] for curve in curves), strict=True)
        mean = student_interval(values)
        points.append(CurvePoint(step, sum(seconds) / len(curves), sum(tokens) / len(curves), mean))
    return points
