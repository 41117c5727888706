"""Curves of numbers over training, pruning or anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from heedful.errors import DataError, suggest
from heedful.inspect.charts.frame import SERIES, SOFT, entitled, labels, table

_METRICS = "metrics.jsonl"
_WIDE, _TALL = 560, 300
_FEW, _MANY = 60, 1000
_KINDS = {None: "training", "validation": "validation"}

Points = Sequence[tuple[float, float]]


def curves(series: Mapping[str, Points], *, x: str, y: str, title: str = "") -> alt.Chart:
    """Draw numbers against numbers, a line for each name.

    Args:
        series: (x, y) of each name; points that are not finite are left out.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        title: of the chart.

    Raises:
        DataError: when there is no point.
    """
    rows = [
        (name, first, second)
        for name, points in series.items()
        for first, second in points
        if math.isfinite(first) and math.isfinite(second)
    ]
    if not rows:
        raise DataError("There are no points to draw", where=y)
    names = labels(list(series))
    label_of = dict(zip(series, names, strict=True))
    data = table(
        name=[label_of[name] for name, _, _ in rows],
        x=[float(first) for _, first, _ in rows],
        y=[float(second) for _, _, second in rows],
    )
    colours = alt.Scale(domain=names, range=list(SERIES))
    key = alt.Legend(title=None, labelLimit=300) if len(names) > 1 else None
    return entitled(
        alt.Chart(data, width=_WIDE, height=_TALL)
        .mark_line(point=len(rows) <= _FEW, strokeWidth=2 if len(rows) <= _MANY else 1)
        .encode(
            x=alt.X("x:Q", scale=alt.Scale(zero=False, nice=False), axis=_axis(x)),
            y=alt.Y("y:Q", scale=alt.Scale(zero=False), axis=_axis(y)),
            color=alt.Color("name:N", scale=colours, legend=key),
            tooltip=[
                alt.Tooltip("name:N", title="of"),
                alt.Tooltip("x:Q", title=x),
                alt.Tooltip("y:Q", title=y, format=".4~g"),
            ],
        ),
        title,
    )


def training(*runs: Path | str, figure: str = "loss") -> alt.Chart:
    """Draw a figure of runs by step, in training and in validation.

    Args:
        runs: run directories.
        figure: such as `loss`, `lr`, `bleu`.

    Raises:
        DataError: when a run has no record, or none has such a figure.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    known: set[str] = set()
    for run in map(Path, runs):
        for event in _events(run):
            numbers = {name: v for name, v in event.items() if isinstance(v, int | float)}
            known |= numbers.keys()
            kind = event.get("event")
            if figure in numbers and "step" in numbers and kind in _KINDS:
                name = f"{run.name} {_KINDS[kind]}" if len(runs) > 1 else _KINDS[kind]
                series.setdefault(name, []).append((numbers["step"], numbers[figure]))
    if not series:
        raise DataError(f"No run has a figure {figure!r}", remedy=suggest(figure, known - {"step"}))
    return curves(series, x="step", y=figure, title=f"{figure} by step")


def _events(run: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a run's record; the last may be half written."""
    file = run / _METRICS
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise DataError(
            "There is no record of training", where=str(file), remedy="Name a run directory"
        ) from None
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _axis(title: str) -> alt.Axis:
    return alt.Axis(title=title, titleFontWeight="normal", titleColor=SOFT, gridColor="#ececec")
