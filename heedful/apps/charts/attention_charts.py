"""Charts of attention: one matrix, a grid by layer and head, and lines between tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import altair as alt
import numpy as np

from heedful.apps.charts.frame import (
    INK,
    MOST_CELLS,
    MUCH,
    NO_FRAME,
    NOTHING,
    SERIES,
    cell_pixels,
    cell_table,
    label_expr,
    labels,
    sequential_colour,
    table,
    token_axis,
    with_title,
)
from heedful.errors import ConfigError
from heedful.inspect.attention_maps import AttentionMap, AttentionPart, describe_mean
from heedful.inspect.tracing import Tracing
from heedful.inspect.word_alignment import AlignedPair, HeadChoice, WordAttention

TITLES: dict[AttentionPart, tuple[str, str, str]] = {
    "encoder": ("Attention of the encoder", "query", "key"),
    "decoder": ("Attention of the decoder to itself", "query", "key"),
    "cross": ("Attention of the decoder to the source", "writes", "reads"),
}
"""Title of the chart, of its rows and of its columns."""

_PIXELS, _PANEL_PIXELS = 720, 150
_PANELS_ACROSS = 4


@dataclass(frozen=True)
class _Sides:
    """Tokens or words of rows and columns, with the titles of both axes."""

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
    """Draw one matrix, the mean of layers and heads.

    Args:
        attention: attention map, from `attention`.
        layers: layers of the map; all if None.
        heads: heads of the map; all if None.

    Raises:
        ConfigError: when the map has no such layer or head, or is too large for a chart.
    """
    chosen = select_heads(attention, layers, heads)
    title, sides = _titled_sides(chosen)
    return with_title(_panel(chosen.mean(), sides, "attention"), title, describe_mean(chosen))


def grid(
    attention: AttentionMap,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> alt.FacetChart:
    """Draw a small matrix for each layer and head, all with the same colour scale.

    Args:
        attention: attention map, from `attention`.
        layers: layers of the map; all if None.
        heads: heads of the map; all if None.

    Raises:
        ConfigError: when the map has no such layer or head, or is too large for a chart.
    """
    chosen = select_heads(attention, layers, heads)
    title, sides = _titled_sides(chosen)
    along = {"layer": chosen.layers, "head": chosen.heads}
    # An axis with a single layer or head goes into the title instead of a row of panels.
    many = [name for name, numbers in along.items() if len(numbers) > 1]
    one = [f"{name} {numbers[0]}" for name, numbers in along.items() if name not in many]
    chart = _panels(chosen.weights, sides, "attention", many or ["head"], **along)
    return with_title(chart, title, ", ".join(one))


def tracing(traced: Tracing) -> alt.FacetChart:
    """Draw the share of each input token in each state, a matrix for each layer.

    Args:
        traced: shares from `rollout` or `flow`.

    Raises:
        ConfigError: when there are too many tokens or cells for a chart.
    """
    sides = _Sides(traced.rows, traced.columns, "state", "input")
    chart = _panels(traced.weights, sides, "share", ["layer"], layer=traced.layers)
    return with_title(chart, "Shares of the input tokens in the states, by layer")


def words(attention: WordAttention, choice: HeadChoice) -> alt.Chart:
    """Draw attention between words as the mean of the heads that align them.

    Args:
        attention: attention of a sentence pair, from `word_attention`.
        choice: chosen heads, from `choose_heads` or `Alignments.forward`.

    Raises:
        ConfigError: when there are too many tokens or cells for a chart.
    """
    sides = _Sides(attention.target_words, attention.source_words, "target", "source")
    chart = _panel(choice.matrix(attention), sides, "attention")
    heads = ", ".join(f"layer {layer} head {head}" for layer, head in choice.heads)
    return with_title(chart, "Attention between words", f"mean of {heads}")


def links(pair: AlignedPair) -> alt.Chart:
    """Draw the links between the words of a pair.

    Args:
        pair: aligned sentence pair, one of `Alignments.pairs`.

    Raises:
        ConfigError: when there are too many tokens or cells for a chart.
    """
    # [target words, source words], like attention between words.
    linked = np.zeros((len(pair.target_words), len(pair.source_words)), np.float32)
    for source, target in pair.links:
        linked[target, source] = 1
    sides = _Sides(pair.target_words, pair.source_words, "target", "source")
    scale = alt.Scale(domain=[0, 1], range=[NOTHING, MUCH])
    # Links are 0 or 1, so a colour scale would explain nothing.
    colour = alt.Color("weight:Q", scale=scale, legend=None)
    return with_title(_panel(linked, sides, "link").encode(color=colour), "Words that are linked")


def select_heads(
    attention: AttentionMap, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> AttentionMap:
    """Return a map with only some layers and heads.

    Raises:
        ConfigError: when the map lacks a layer or head; the error names the first missing one.
    """
    layers = attention.layers if layers is None else tuple(layers)
    heads = attention.heads if heads is None else tuple(heads)
    for name, numbers, present in (
        ("layer", layers, attention.layers),
        ("head", heads, attention.heads),
    ):
        for number in numbers:
            if number not in present:
                raise ConfigError(
                    f"The map has no {name} {number}",
                    remedy=f"It has: {', '.join(map(str, present))}",
                )
    # A map may hold only some layers, so layer 5 can be its first: indices are looked up.
    index = np.ix_(
        [attention.layers.index(layer) for layer in layers],
        [attention.heads.index(head) for head in heads],
    )
    return replace(attention, layers=layers, heads=heads, weights=attention.weights[index])


def _panel(
    weights: np.ndarray,
    sides: _Sides,
    value: str,
    *,
    available: int = _PIXELS,
    side: str = "top",
    **along: Sequence[int],
) -> alt.Chart:
    """Draw a matrix, or matrices [..., rows, columns] that a facet splits into panels."""
    numbers = {**along, "row": range(len(sides.rows)), "column": range(len(sides.columns))}
    # Square cells: the longer side decides the size.
    size = cell_pixels(max(len(sides.rows), len(sides.columns)), available=available)
    # Below 8 pixels labels cannot be read; labels of some tokens are left out instead.
    letters = min(10, max(8, size))
    down = token_axis(sides.rows, size, sides.row_title, label=letters)
    across = token_axis(sides.columns, size, sides.column_title, side=side, label=letters)
    return (
        alt.Chart(
            cell_table(weights, **numbers),
            view=NO_FRAME,
            width=alt.Step(size),
            height=alt.Step(size),
        )
        .mark_rect()
        .transform_calculate(
            # Looked up in the chart: labels in every row of the data would enlarge it many times.
            from_token=label_expr(sides.rows, "datum.row"),
            to_token=label_expr(sides.columns, "datum.column"),
        )
        .encode(
            x=alt.X("column:O", **across),
            y=alt.Y("row:O", **down),
            color=sequential_colour(weights, value),
            tooltip=[
                alt.Tooltip("from_token:N", title=sides.row_title),
                alt.Tooltip("to_token:N", title=sides.column_title),
                alt.Tooltip("weight:Q", title=value, format=".3f"),
            ],
        )
    )


def _titled_sides(attention: AttentionMap) -> tuple[str, _Sides]:
    title, row_title, column_title = TITLES[attention.part]
    return title, _Sides(attention.rows, attention.columns, row_title, column_title)


def _panels(
    weights: np.ndarray, sides: _Sides, value: str, names: Sequence[str], **along: Sequence[int]
) -> alt.FacetChart:
    """Draw a panel for each value of one field, or of two fields down and across."""
    panel = _panel(weights, sides, value, available=_PANEL_PIXELS, side="bottom", **along)
    fields = [f"{name}:O" for name in names]
    heads = [alt.Header(title=None, labelExpr=f"'{n} ' + datum.value") for n in names]
    if len(names) == 2:
        row, column = (
            kind(field, header=head)
            for kind, field, head in zip((alt.Row, alt.Column), fields, heads, strict=True)
        )
        return panel.facet(row=row, column=column, spacing=12)
    # Panels are wrapped: 16 heads in one row would be wider than a page.
    facet = alt.Facet(fields[0], header=heads[0])
    return panel.facet(facet=facet, columns=_PANELS_ACROSS, spacing=12)


# Thousands of nearly invisible lines would make a chart slow and grey.
_FAINTEST = 0.02
_LEFT, _RIGHT, _WIDE = 130, 350, 480
_ROW_PIXELS = 17
_HEAD_SPACING = 0.1


def lines(
    attention: AttentionMap,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    each: bool = False,
) -> alt.LayerChart:
    """Draw lines between tokens whose opacity is the attention weight.

    Pointing at a token shows only its lines; a click on a head in the legend only the head's lines.
    Altair cannot concatenate this chart with another, because its layers share a selection.

    Args:
        attention: attention map, from `attention`.
        layers: layers of the map; all if None.
        heads: heads of the map; all if None.
        each: True for separate lines of each head in its own colour, False for lines of the mean.

    Raises:
        ConfigError: when the map has no such layer or head, or there are more heads than colours.
    """
    chosen = select_heads(attention, layers, heads)
    names = [
        f"layer {layer} head {head}"
        for layer, head in itertools.product(chosen.layers, chosen.heads)
    ]
    weights = chosen.weights.reshape(-1, *chosen.weights.shape[2:])
    if not each:
        names, weights = [describe_mean(chosen)], chosen.mean()[None]
    # Two heads of one colour would be mistaken for one.
    if len(names) > len(SERIES):
        raise ConfigError(
            f"{len(names)} heads cannot be told apart by colour",
            remedy=f"Choose layers and heads, {len(SERIES)} at most, or take their mean",
        )
    title, left, right = TITLES[chosen.part]
    # One selection for the whole chart: tokens of both sides and lines react to the same pointer.
    pointer = alt.selection_point(
        fields=["row", "column"], on="pointerover", clear="pointerout", empty=False
    )
    count = max(len(chosen.rows), len(chosen.columns))
    # Lines are the first layer of the chart, so that labels are drawn over them.
    chart = alt.layer(
        _between(chosen, names, weights, pointer),
        _tokens(chosen.rows, "row", count, pointer, left),
        _tokens(chosen.columns, "column", count, pointer, right),
    ).properties(
        width=_WIDE,
        height=_ROW_PIXELS * count,
        view=NO_FRAME,
    )
    about = f"Left: {left}. Right: {right}. Lines of less than {_FAINTEST} are left out."
    return with_title(chart, title, "" if each else describe_mean(chosen), about)


def _between(
    attention: AttentionMap,
    names: Sequence[str],
    weights: np.ndarray,
    pointer: alt.Parameter,
) -> alt.Chart:
    """Draw the lines of weights [heads, rows, columns]."""
    places = np.nonzero(weights >= _FAINTEST)
    if len(places[0]) > MOST_CELLS:
        raise ConfigError(
            f"{len(places[0]):,} lines are more than the {MOST_CELLS:,} that a chart can show",
            remedy="Choose fewer heads, or draw a matrix",
        )
    heads = [names[number] for number in places[0].tolist()]
    # Lines of several heads between the same tokens are drawn side by side.
    shift = (places[0] - (len(names) - 1) / 2) * _HEAD_SPACING
    data = table(head=heads, row=places[1], column=places[2], weight=weights[places], shift=shift)
    key = alt.Legend(
        title=None, orient="top", columns=4, symbolOpacity=1, symbolStrokeWidth=3, labelLimit=400
    )
    legend = key if len(names) > 1 else None
    choice = alt.selection_point(fields=["head"], bind="legend")
    # The legend selects the head of this line, or no head.
    head = f"(!{choice.name}.head || indexof({choice.name}.head, datum.head) >= 0)"
    shown = f"{_selected(pointer, 'row')} && {_selected(pointer, 'column')} && {head}"
    return (
        alt.Chart(data)
        .mark_rule(strokeWidth=2, strokeCap="round")
        .transform_calculate(
            from_token=label_expr(attention.rows, "datum.row"),
            to_token=label_expr(attention.columns, "datum.column"),
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
                shown,
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
        .add_params(choice, pointer)
    )


def _tokens(
    pieces: Sequence[str], field: str, count: int, pointer: alt.Parameter, title: str
) -> alt.Chart:
    """Draw the tokens of one side, at the height of `count` rows."""
    left = field == "row"
    data = table(**{field: range(len(pieces)), "token": labels(pieces)})
    return (
        alt.Chart(data)
        .mark_text(align="right" if left else "left", dx=-6 if left else 6, fontSize=12)
        .encode(
            # Fixed pixels: the two columns of tokens have no scale between them.
            x=alt.value(_LEFT if left else _RIGHT),
            y=_down(field, count),
            text="token:N",
            color=alt.value(INK),
            opacity=alt.condition(_selected(pointer, field), alt.value(1), alt.value(0.4)),
            tooltip=alt.Tooltip("token:N", title=title),
        )
    )


def _selected(pointer: alt.Parameter, field: str) -> str:
    """Return an expression: true if the pointer selects this token, or no token of its side."""
    chosen = f"{pointer.name}.{field}"
    # Before the first event the selection is empty, and its field undefined.
    return f"(!{chosen} || !isValid({chosen}[0]) || indexof({chosen}, datum.{field}) >= 0)"


def _down(field: str, count: int) -> alt.Y:
    """Return a vertical channel with `count` rows from top to bottom."""
    # Quantitative, not ordinal: heads shift their lines by fractions of a row.
    scale = alt.Scale(domain=[-0.5, count - 0.5], reverse=True, nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=None)
