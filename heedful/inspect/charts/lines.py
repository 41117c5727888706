"""Attention as lines between tokens: what looks on the left, what is looked at on the right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import altair as alt
import numpy as np

from heedful.errors import ConfigError
from heedful.inspect.charts.frame import (
    INK,
    MOST_CELLS,
    SERIES,
    bare,
    entitled,
    labels,
    named,
    table,
)
from heedful.inspect.charts.matrices import TITLES, select
from heedful.inspect.maps import AttentionMap
from heedful.inspect.picture import averaged

_FAINTEST = 0.02
_LEFT, _RIGHT, _WIDE = 130, 350, 480
_ROW_PIXELS = 17
_APART = 0.1


def lines(
    attention: AttentionMap,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    each: bool = False,
) -> alt.LayerChart:
    """Lines between tokens, as strong as the attention.

    Pointing at a token leaves its lines; clicking on a head in the legend leaves those of the head.
    It stands alone: Altair cannot put layers that can be pointed at beside another chart.

    Args:
        attention: from `attention`.
        layers: of those in it; all of them if None.
        heads: of those in it; all of them if None.
        each: lines for each head in a colour of its own; otherwise for their mean.

    Raises:
        ConfigError: when it has no such layer or head, or they are too many to be told apart.
    """
    chosen = select(attention, layers, heads)
    names = [
        f"layer {layer} head {head}"
        for layer, head in itertools.product(chosen.layers, chosen.heads)
    ]
    weights = chosen.weights.reshape(-1, *chosen.weights.shape[2:])
    if not each:
        names, weights = [averaged(chosen)], chosen.mean()[None]
    if len(names) > len(SERIES):
        raise ConfigError(
            f"{len(names)} heads cannot be told apart by colour",
            remedy=f"Choose layers and heads, {len(SERIES)} at most, or take their mean",
        )
    title, left, right = TITLES[chosen.part]
    # Marks of all layers share their events: one can point at a token of either side, or at a line.
    pointed = alt.selection_point(
        fields=["row", "column"], on="pointerover", clear="pointerout", empty=False
    )
    count = max(len(chosen.rows), len(chosen.columns))
    # The drawing of the lines comes first, so that letters stand over them.
    chart = alt.layer(
        _between(chosen, names, weights, pointed),
        _tokens(chosen.rows, "row", count, pointed, left),
        _tokens(chosen.columns, "column", count, pointed, right),
    ).properties(
        width=_WIDE,
        height=_ROW_PIXELS * count,
        view=bare(),
    )
    about = f"Left: {left}. Right: {right}. Lines of less than {_FAINTEST} are left out."
    return entitled(chart, title, "" if each else averaged(chosen), about)


def _between(
    attention: AttentionMap,
    names: Sequence[str],
    weights: np.ndarray,
    pointed: alt.Parameter,
) -> alt.Chart:
    """The lines; weights [heads, rows, columns]."""
    places = np.nonzero(weights >= _FAINTEST)
    if len(places[0]) > MOST_CELLS:
        raise ConfigError(
            f"{len(places[0]):,} lines are more than the {MOST_CELLS:,} that a chart can show",
            remedy="Choose fewer heads, or draw a matrix",
        )
    heads = [names[number] for number in places[0].tolist()]
    # Heads that look from the same token to the same token stand side by side.
    shift = (places[0] - (len(names) - 1) / 2) * _APART
    data = table(head=heads, row=places[1], column=places[2], weight=weights[places], shift=shift)
    key = alt.Legend(
        title=None, orient="top", columns=4, symbolOpacity=1, symbolStrokeWidth=3, labelLimit=400
    )
    legend = key if len(names) > 1 else None
    on = alt.selection_point(fields=["head"], bind="legend")
    return (
        alt.Chart(data)
        .mark_rule(strokeWidth=2, strokeCap="round")
        .transform_calculate(
            from_token=named(attention.rows, "datum.row"),
            to_token=named(attention.columns, "datum.column"),
            start="datum.row + datum.shift",
            end="datum.column + datum.shift",
        )
        .encode(
            x=alt.value(_LEFT),
            x2=alt.value(_RIGHT),
            y=_down("start", max(len(attention.rows), len(attention.columns))),
            y2="end:Q",
            color=alt.Color(
                "head:N", scale=alt.Scale(domain=list(names), range=list(SERIES)), legend=legend
            ),
            opacity=alt.condition(
                f"{_meant(pointed, 'row')} && {_meant(pointed, 'column')} && {_switched_on(on)}",
                alt.Opacity("weight:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None),
                alt.value(0.03),
            ),
            tooltip=[
                alt.Tooltip("head:N"),
                alt.Tooltip("from_token:N", title="from"),
                alt.Tooltip("to_token:N", title="to"),
                alt.Tooltip("weight:Q", title="attention", format=".3f"),
            ],
        )
        .add_params(on, pointed)
    )


def _tokens(
    pieces: Sequence[str], field: str, count: int, pointed: alt.Parameter, does: str
) -> alt.Chart:
    """The tokens of one side, which can be pointed at; `count` places from top to bottom."""
    left = field == "row"
    data = table(**{field: range(len(pieces)), "token": labels(pieces)})
    return (
        alt.Chart(data)
        .mark_text(align="right" if left else "left", dx=-6 if left else 6, fontSize=12)
        .encode(
            x=alt.value(_LEFT if left else _RIGHT),
            y=_down(field, count),
            text="token:N",
            color=alt.value(INK),
            opacity=alt.condition(_meant(pointed, field), alt.value(1), alt.value(0.4)),
            tooltip=alt.Tooltip("token:N", title=does),
        )
    )


def _meant(pointed: alt.Parameter, field: str) -> str:
    """An expression: whether something is not left out by what is pointed at, in this field."""
    chosen = f"{pointed.name}.{field}"
    return f"(!{chosen} || !isValid({chosen}[0]) || indexof({chosen}, datum.{field}) >= 0)"


def _switched_on(on: alt.Parameter) -> str:
    """An expression: whether a line is of a head that is chosen, if any is."""
    return f"(!{on.name}.head || indexof({on.name}.head, datum.head) >= 0)"


def _down(field: str, count: int) -> alt.Y:
    """Places from top to bottom."""
    scale = alt.Scale(domain=[-0.5, count - 0.5], reverse=True, nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=None)
