"""Charts of layers and heads, and curves over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from heedful.apps.charts.estimate_charts import name_colour, value_axis
from heedful.apps.charts.frame import (
    INK,
    MOST_TOKENS,
    NO_FRAME,
    SERIES,
    axis,
    cell_pixels,
    diverging_colour,
    label_expr,
    labels,
    legend,
    sequential_colour,
    table,
    text_colour,
    token_axis,
    with_title,
)
from heedful.errors import ConfigError, DataError, ModelError, suggest
from heedful.events import read_metrics
from heedful.inspect.head_measures import MEANING, HeadMeasures, Measures
from heedful.inspect.residual_stream import Contributions, Lens
from heedful.train.run_config import METRICS_FILE

# Pixels of a cell: a line of text high, and at most as wide as most tokens need.
_CELL_HEIGHT = 24
_CELL_WIDTH = 66
# Pixels of a cell that hold two digits or a short token.
_READABLE = 40


def lens(result: Lens) -> alt.LayerChart:
    """Draw the most probable token after each layer, in a darker cell for a higher probability.

    Args:
        result: predictions by layer, from `lens`.

    Raises:
        ConfigError: when there are too many tokens for a chart.
    """
    # [layers, rows], flattened by `table` in the same order as the tokens below.
    best = result.probabilities[:, :, 0]
    pieces = [row for layer in result.pieces for row in layer]
    chart = _table(
        _Axes("layer", result.layers, "after layer", result.rows),
        # The scale ends at 1 whatever the data, so that charts of several texts can be compared.
        sequential_colour(np.ones(1), "probability", field="probability"),
        "piece:N",
        tooltip=[
            alt.Tooltip("row_name:N", title="at"),
            alt.Tooltip("down_name:N", title="after layer"),
            alt.Tooltip("piece:N", title="piece"),
            alt.Tooltip("probability:Q", format=".3f"),
            alt.Tooltip("others:N", title="or"),
            alt.Tooltip("rank:Q", title="rank of the model's answer, from 0"),
            alt.Tooltip("entropy:Q", title="entropy, nats", format=".2f"),
        ],
        probability=best,
        piece=labels([row[0] for row in pieces]),
        others=[", ".join(labels(row[1:])) for row in pieces],
        entropy=result.entropy,
        rank=result.rank,
    )
    return with_title(chart, "Logit lens", "The likeliest piece if the layer were the last")


def sublayers(result: Contributions) -> alt.LayerChart:
    """Draw the length of each sub-layer's output relative to the stream before the addition.

    Args:
        result: contributions to the stream, from `contributions`.

    Raises:
        ConfigError: when there are too many tokens for a chart.
    """
    share = result.sizes / np.maximum(result.stream_sizes, np.finfo(np.float32).tiny)
    chart = _table(
        _Axes("sublayer", result.sublayers, "sub-layer", result.rows),
        # A square root scale: first layers often add many times the length of the stream, later
        # layers a few percent.
        sequential_colour(share, "share", field="share", kind="sqrt"),
        "share:Q",
        tooltip=[
            alt.Tooltip("row_name:N", title="at"),
            alt.Tooltip("down_name:N", title="sub-layer"),
            alt.Tooltip("size:Q", title="adds a length of", format=".3f"),
            alt.Tooltip("stream:Q", title="to one of", format=".3f"),
            alt.Tooltip("cosine:Q", title="cosine of the angle between", format=".2f"),
        ],
        share=share,
        size=result.sizes,
        stream=result.stream_sizes,
        cosine=result.cosines,
    )
    return with_title(
        chart,
        "How much each sub-layer adds to the stream",
        "Length of what is added, by the length of the stream it is added to",
    )


def scores(result: Contributions) -> alt.LayerChart:
    """Draw the contribution of each part to the logit of each token: blue above 0, ochre below.

    Args:
        result: contributions to the stream, from `contributions`.

    Raises:
        ModelError: when the logits of this stack are not sums over its parts.
        ConfigError: when there are too many tokens for a chart.
    """
    if result.scores is None or result.tokens is None:
        raise ModelError(
            "Scores of this stack are no sums over its parts",
            remedy="Look at a translator's decoder or at a language model",
        )
    chart = _table(
        _Axes("part", result.parts, "part", result.tokens),
        diverging_colour(result.scores, "adds", field="score"),
        "score:Q",
        tooltip=[
            alt.Tooltip("row_name:N", title="score of"),
            alt.Tooltip("down_name:N", title="part"),
            alt.Tooltip("score:Q", title="adds", format="+.3f"),
        ],
        score=result.scores,
    )
    return with_title(chart, "What each part adds to the score of the token")


class _Axes(NamedTuple):
    """Axes of a table: layers or parts from top to bottom in the field `down`, tokens across."""

    down: str
    names: Sequence[str]
    title: str
    rows: Sequence[str]


def _table(
    axes: _Axes,
    colour: alt.Color,
    text: str,
    *,
    tooltip: Sequence[alt.Tooltip],
    **columns: Sequence[Any] | np.ndarray,
) -> alt.LayerChart:
    """Draw a cell for each layer or part and token, with text where cells are large enough.

    Args:
        axes: axes of the table.
        colour: colour encoding of the cells, by the first column.
        text: field with the text of the cells; numbers get two digits.
        tooltip: fields of the tooltip.
        columns: values of all cells, row by row.
    """
    down, names, title, rows = axes
    if len(rows) > MOST_TOKENS:
        raise ConfigError(
            f"A chart has room for {MOST_TOKENS} tokens along a side, and there are {len(rows)}",
            remedy="Look at a shorter text",
        )
    # The chart may be wider than a screen: a cell without its token says little.
    size = cell_pixels(len(rows), available=1600, most=_CELL_WIDTH)
    layer, row = (each.ravel() for each in np.indices((len(names), len(rows))))
    labelled = axis(title=title, labelExpr=label_expr(names, "datum.value"))
    # One data set for both layers; texts and rectangles must not store it twice.
    base = (
        alt.Chart(
            table(**{down: layer}, row=row, **columns),
            width=alt.Step(size),
            height=alt.Step(_CELL_HEIGHT),
        )
        .transform_calculate(
            row_name=label_expr(rows, "datum.row"),
            down_name=label_expr(names, f"datum.{down}"),
        )
        .encode(
            x=alt.X("row:O", **token_axis(rows, size, None, side="top")),
            y=alt.Y(f"{down}:O", scale=alt.Scale(domain=list(range(len(names)))), axis=labelled),
            tooltip=tooltip,
        )
    )
    layers = [base.mark_rect().encode(color=colour)]
    if size >= _READABLE:
        # The first column colours the cells, so it decides which letters must be white.
        field, values = next(iter(columns.items()))
        most = 1.0 if text.endswith(":N") else float(np.abs(values).max()) or 1.0
        words = alt.Text(text, format=".2f") if text.endswith(":Q") else alt.Text(text)
        written = base.mark_text(fontSize=10, limit=size - 4)
        layers.append(written.encode(text=words, color=text_colour(field, 0.55 * most)))
    return alt.layer(*layers).properties(view=NO_FRAME)


LABEL = "label"
_MEASURES = {
    "entropy": "mean entropy of attention, in nats",
    "confidence": "mean of the largest weight",
    "distance": "mean distance of the keys, in tokens",
    "offset": "mean distance with its sign: below 0 for keys before the query",
}
_HEAD_WIDTH, _HEAD_HEIGHT = 62, 26
_COLOURS = dict(zip(MEANING, (*SERIES, "#117733"), strict=True))
_NONE, _NO_COLOUR = "none", "#f0f0ee"


def heads(measures: Measures, measure: str = LABEL) -> alt.LayerChart:
    """Draw a cell for each head of each layer.

    Args:
        measures: measures of heads, from `measure`.
        measure: the value to draw: `label` for the labels of heads with strong evidence; `entropy`,
            `confidence`, `distance` or `offset`; or a kind of key, e.g. `previous`, for the share
            of attention on it.

    Raises:
        ConfigError: when the measures have no such value.
    """
    title = f"Heads of {measures.part} attention"
    corpus = f"{measures.rows:,} rows of {measures.sentences:,} sentences"
    if measure == LABEL:
        chart = _labels(measures)
        return with_title(chart, f"{title}: labels", f"{corpus}; no label, no strong evidence")
    values_of = [
        (head, value) for head in measures.heads if (value := _value(head, measure)) is not None
    ]
    if not values_of:
        known = [LABEL, *_MEASURES, *dict.fromkeys(k for h in measures.heads for k in h.shares)]
        raise ConfigError(
            f"Heads of {measures.part} attention have no measure {measure!r}",
            remedy=suggest(measure, known),
        )
    values = np.array([value for _, value in values_of])
    data = table(
        layer=[head.layer for head, _ in values_of],
        head=[head.head for head, _ in values_of],
        value=values,
        baseline=[
            f"{head.shares[measure].baseline:.3f}" if measure in head.shares else ""
            for head, _ in values_of
        ],
    )
    more = [alt.Tooltip("baseline:N", title="even attention")] if measure not in _MEASURES else []
    tooltip = [*_HEAD_TOOLTIP, alt.Tooltip("value:Q", title=measure, format=".3f"), *more]
    # The offset is the only measure with negative values.
    colour_of = diverging_colour if measure == "offset" else sequential_colour
    colour = colour_of(values, measure, field="value")
    base = _head_table(data, measures).encode(tooltip=tooltip)
    text = base.mark_text(fontSize=11).encode(
        text=alt.Text("value:Q", format=".2f"),
        color=text_colour("value", 0.55 * (float(np.abs(values).max()) or 1.0)),
    )
    meaning = _MEASURES.get(measure) or f"share of attention {MEANING[measure]}"
    chart = alt.layer(base.mark_rect().encode(color=colour), text).properties(view=NO_FRAME)
    return with_title(chart, f"{title}: {meaning}", corpus)


_HEAD_TOOLTIP = [alt.Tooltip("layer:O"), alt.Tooltip("head:O")]


def _labels(measures: Measures) -> alt.LayerChart:
    """Draw cells with the labels of heads."""
    kinds = [_NONE if head.label is None else head.label.kind for head in measures.heads]
    data = table(
        layer=[head.layer for head in measures.heads],
        head=[head.head for head in measures.heads],
        kind=kinds,
        name=["" if kind == _NONE else kind for kind in kinds],
        why=["no strong evidence" if h.label is None else h.label.why for h in measures.heads],
    )
    # Kinds keep the order of `MEANING`, so that each has the same colour in every chart.
    present = [kind for kind in MEANING if kind in kinds]
    scale = alt.Scale(
        domain=[*present, _NONE], range=[*(_COLOURS[kind] for kind in present), _NO_COLOUR]
    )
    tooltip = [*_HEAD_TOOLTIP, alt.Tooltip("kind:N"), alt.Tooltip("why:N")]
    base = _head_table(data, measures).encode(tooltip=tooltip)
    colour = alt.Color("kind:N", scale=scale, legend=legend("attends mostly to"))
    # Light cells with the label in dark letters: colour alone must not carry the meaning.
    cells = base.mark_rect(stroke="white", fillOpacity=0.45).encode(color=colour)
    names = base.mark_text(fontSize=10, color=INK).encode(text="name:N")
    return alt.layer(cells, names).properties(view=NO_FRAME)


def _head_table(data: alt.InlineData, measures: Measures) -> alt.Chart:
    """Return a chart with a row for each layer and a column for each head."""
    # Axes cover all measured heads: pruned heads and those without the value leave a cell empty.
    across = sorted({head.head for head in measures.heads})
    down = sorted({head.layer for head in measures.heads})
    return alt.Chart(data, width=alt.Step(_HEAD_WIDTH), height=alt.Step(_HEAD_HEIGHT)).encode(
        x=alt.X("head:O", scale=alt.Scale(domain=across), axis=axis(orient="top", labelAngle=0)),
        y=alt.Y("layer:O", scale=alt.Scale(domain=down), axis=axis(labelAngle=0)),
    )


def _value(head: HeadMeasures, measure: str) -> float | None:
    if measure in head.shares:
        return head.shares[measure].share
    # Looked up in a fixed list, since a name from a command line must not reach other attributes.
    value: float | None = getattr(head, measure) if measure in _MEASURES else None
    return value


_CURVE_WIDTH, _CURVE_HEIGHT = 560, 300
_FEW, _MANY = 60, 1000
_KINDS = {None: "training", "validation": "validation"}

Points = Sequence[tuple[float, float]]


def curves(series: Mapping[str, Points], *, x: str, y: str, title: str = "") -> alt.Chart:
    """Draw a line of (x, y) points for each name.

    Args:
        series: points (x, y) by name; points that are not finite are left out.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        title: title of the chart.

    Raises:
        DataError: when there are no finite points.
    """
    rows = [
        (name, first, second)
        for name, points in series.items()
        for first, second in points
        # A loss can become NaN or infinite, and JSON has no such numbers.
        if math.isfinite(first) and math.isfinite(second)
    ]
    if not rows:
        raise DataError("There are no points to draw", where=y)
    label_of = dict(zip(series, labels(list(series)), strict=True))
    data = table(
        name=[label_of[name] for name, _, _ in rows],
        x=[float(first) for _, first, _ in rows],
        y=[float(second) for _, _, second in rows],
    )
    return with_title(
        alt.Chart(data, width=_CURVE_WIDTH, height=_CURVE_HEIGHT)
        # Points show where a short curve was measured; on a long one they are a thick band.
        .mark_line(point=len(rows) <= _FEW, strokeWidth=2 if len(rows) <= _MANY else 1)
        .encode(
            # Steps begin far from 0 after a resume, and losses never reach it.
            x=alt.X("x:Q", scale=alt.Scale(zero=False, nice=False), axis=value_axis(x)),
            y=alt.Y("y:Q", scale=alt.Scale(zero=False), axis=value_axis(y)),
            color=name_colour(series),
            tooltip=[
                alt.Tooltip("name:N", title="of"),
                alt.Tooltip("x:Q", title=x),
                alt.Tooltip("y:Q", title=y, format=".4~g"),
            ],
        ),
        title,
    )


def training(*runs: Path | str, figure: str = "loss") -> alt.Chart:
    """Draw a metric of training runs by step, from training and from validation.

    Args:
        runs: run directories.
        figure: name of the metric, e.g. `loss`, `lr`, `bleu`.

    Raises:
        DataError: when a run has no record of metrics, or no run has this metric.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    known: set[str] = set()
    for run in map(Path, runs):
        try:
            events = read_metrics(run / METRICS_FILE)
        except FileNotFoundError:
            raise DataError(
                "There is no record of training",
                where=str(run / METRICS_FILE),
                remedy="Name a run directory",
            ) from None
        for event in events:
            numbers = {name: v for name, v in event.items() if isinstance(v, int | float)}
            known |= numbers.keys()
            kind = event.get("event")
            # Training events have no name of their own in the record; validation events do.
            if figure in numbers and "step" in numbers and kind in _KINDS:
                name = f"{run.name} {_KINDS[kind]}" if len(runs) > 1 else _KINDS[kind]
                series.setdefault(name, []).append((numbers["step"], numbers[figure]))
    if not series:
        raise DataError(f"No run has a figure {figure!r}", remedy=suggest(figure, known - {"step"}))
    return curves(series, x="step", y=figure, title=f"{figure} by step")
