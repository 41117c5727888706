"""Weights between tokens or words as matrices: one, or one for each layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import altair as alt
import numpy as np

from heedful.errors import ConfigError
from heedful.inspect.aligning import AlignedPair
from heedful.inspect.charts.frame import (
    MUCH,
    NOTHING,
    amount,
    bare,
    cells,
    entitled,
    named,
    pixels,
    places,
)
from heedful.inspect.head_choice import HeadChoice
from heedful.inspect.maps import AttentionMap, Part
from heedful.inspect.picture import averaged
from heedful.inspect.tracing import Tracing
from heedful.inspect.word_maps import WordAttention

TITLES: dict[Part, tuple[str, str, str]] = {
    "encoder": ("Attention of the encoder", "looks", "is looked at"),
    "decoder": ("Attention of the decoder to itself", "looks", "is looked at"),
    "cross": ("Attention of the decoder to the source", "writes", "reads"),
}
"""What is shown, and what the tokens of rows and of columns do."""

_PIXELS, _PANEL_PIXELS = 720, 150
_PANELS_ACROSS = 4


@dataclass(frozen=True)
class _Sides:
    """Tokens or words of the rows and of the columns, and what they do."""

    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str
    column_title: str


def matrix(
    attention: AttentionMap,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> alt.Chart:
    """One matrix: the mean of layers and heads, or the only ones.

    Args:
        attention: from `attention`.
        layers: of those in it; all of them if None.
        heads: of those in it; all of them if None.

    Raises:
        ConfigError: when it has no such layer or head, or is too large to be drawn.
    """
    chosen = select(attention, layers, heads)
    title, *does = TITLES[chosen.part]
    sides = _Sides(chosen.rows, chosen.columns, *does)
    chart = _square(chosen.mean(), sides, "attention")
    return entitled(chart, title, averaged(chosen))


def grid(
    attention: AttentionMap,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> alt.FacetChart:
    """A small matrix for each layer and head, in the same colours.

    Args:
        attention: from `attention`.
        layers: of those in it; all of them if None.
        heads: of those in it; all of them if None.

    Raises:
        ConfigError: when it has no such layer or head, or is too large to be drawn.
    """
    chosen = select(attention, layers, heads)
    title, *does = TITLES[chosen.part]
    sides = _Sides(chosen.rows, chosen.columns, *does)
    along = {"layer": chosen.layers, "head": chosen.heads}
    panel = _panel(chosen.weights, sides, "attention", room=_PANEL_PIXELS, side="bottom", **along)
    many = [name for name, numbers in along.items() if len(numbers) > 1]
    one = [f"{name} {numbers[0]}" for name, numbers in along.items() if name not in many]
    return entitled(_side_by_side(panel, many or ["head"]), title, ", ".join(one))


def tracing(traced: Tracing) -> alt.FacetChart:
    """How much of each input token is in each state, a matrix for each layer.

    Args:
        traced: from `rollout` or `flow`.

    Raises:
        ConfigError: when it is too large to be drawn.
    """
    sides = _Sides(traced.rows, traced.columns, "state", "input")
    panel = _panel(
        traced.weights, sides, "share", room=_PANEL_PIXELS, side="bottom", layer=traced.layers
    )
    chart = _side_by_side(panel, ["layer"])
    return entitled(chart, "What states are made of: shares of the input's tokens, by layer")


def words(attention: WordAttention, choice: HeadChoice) -> alt.Chart:
    """Attention between words, the mean of heads that were chosen to align them.

    Args:
        attention: of a sentence pair, from `word_attention`.
        choice: the heads, from `choose_heads` or `Alignments.forward`.

    Raises:
        ConfigError: when it is too large to be drawn.
    """
    sides = _Sides(attention.target_words, attention.source_words, "target", "source")
    chart = _square(choice.matrix(attention), sides, "attention")
    heads = ", ".join(f"layer {layer} head {head}" for layer, head in choice.heads)
    return entitled(chart, "Attention between words", f"mean of {heads}")


def links(pair: AlignedPair) -> alt.Chart:
    """Which words of a pair are linked.

    Args:
        pair: one of `Alignments.pairs`.

    Raises:
        ConfigError: when it is too large to be drawn.
    """
    linked = np.zeros((len(pair.target_words), len(pair.source_words)), np.float32)
    for source, target in pair.links:
        linked[target, source] = 1
    sides = _Sides(pair.target_words, pair.source_words, "target", "source")
    chart = _square(linked, sides, "link").encode(
        color=alt.Color(
            "weight:Q", scale=alt.Scale(domain=[0, 1], range=[NOTHING, MUCH]), legend=None
        )
    )
    return entitled(chart, "Words that are linked")


def select(
    attention: AttentionMap, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> AttentionMap:
    """The part of a map that is of some layers and heads.

    Raises:
        ConfigError: naming the first that is not in it.
    """
    chosen = [
        _indices(name, wanted, there)
        for name, wanted, there in (
            ("layer", layers, attention.layers),
            ("head", heads, attention.heads),
        )
    ]
    return replace(
        attention,
        layers=tuple(attention.layers[i] for i in chosen[0]),
        heads=tuple(attention.heads[i] for i in chosen[1]),
        weights=attention.weights[np.ix_(*chosen)],
    )


def _indices(name: str, wanted: Sequence[int] | None, there: Sequence[int]) -> list[int]:
    if wanted is None:
        return list(range(len(there)))
    for number in wanted:
        if number not in there:
            raise ConfigError(
                f"The map has no {name} {number}",
                remedy=f"It has: {', '.join(map(str, there))}",
            )
    return [there.index(number) for number in wanted]


def _square(weights: np.ndarray, sides: _Sides, value: str) -> alt.Chart:
    """One matrix [rows, columns]."""
    return _panel(weights, sides, value, room=_PIXELS, side="top")


def _panel(
    weights: np.ndarray,
    sides: _Sides,
    value: str,
    *,
    room: int,
    side: str,
    **along: Sequence[int],
) -> alt.Chart:
    """A matrix, or many in one place [..., rows, columns], which are then put side by side."""
    numbers = {**along, "row": range(len(sides.rows)), "column": range(len(sides.columns))}
    size = pixels(max(len(sides.rows), len(sides.columns)), room=room)
    letters = min(10, max(8, size))
    down = places(sides.rows, size, sides.row_title, label=letters)
    across = places(sides.columns, size, sides.column_title, side=side, label=letters)
    return (
        alt.Chart(
            cells(weights, **numbers), view=bare(), width=alt.Step(size), height=alt.Step(size)
        )
        .mark_rect()
        .transform_calculate(
            from_token=named(sides.rows, "datum.row"),
            to_token=named(sides.columns, "datum.column"),
        )
        .encode(
            x=alt.X("column:O", **across),
            y=alt.Y("row:O", **down),
            color=amount(weights, value),
            tooltip=[
                alt.Tooltip("from_token:N", title=sides.row_title),
                alt.Tooltip("to_token:N", title=sides.column_title),
                alt.Tooltip("weight:Q", title=value, format=".3f"),
            ],
        )
    )


def _side_by_side(panel: alt.Chart, names: Sequence[str]) -> alt.FacetChart:
    """A panel for each value of one field, or of two: down and across."""
    over = [f"{name}:O" for name in names]
    heads = [alt.Header(title=None, labelExpr=f"'{n} ' + datum.value") for n in names]
    if len(names) == 2:
        row, column = (
            kind(field, header=head)
            for kind, field, head in zip((alt.Row, alt.Column), over, heads, strict=True)
        )
        return panel.facet(row=row, column=column, spacing=12)
    facet = alt.Facet(over[0], header=heads[0])
    return panel.facet(facet=facet, columns=_PANELS_ACROSS, spacing=12)
