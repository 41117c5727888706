"""Common elements of charts: tables, axes, colours, titles, and files in PNG, SVG and HTML.

Data goes into a specification as a JSON string. Altair validates every value of a list against its
schema, which takes minutes for a matrix of 256 tokens; a string is one value. CSV is not used
because Vega parses it by compiling a program, which a page's security policy would have to allow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast, get_args

import altair as alt
import numpy as np
import vl_convert

from heedful.apps.charts.chart_page import chart_page, embedded, vega_lite_version
from heedful.durable import whole
from heedful.errors import ConfigError
from heedful.inspect.attention_maps import printable
from heedful.text.pretokenization import MARK

NOTHING, MUCH, LITTLE = "#f8f7f4", "#0f3781", "#a53d03"
"""Colours of zero, the largest and the smallest value, as in the studio's light theme."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4bb0", "#6b6b6b")
"""Colours of series, distinct for colour-blind readers too (Okabe and Ito 2008)."""

INK, SOFT = "#222222", "#555555"

NO_FRAME = alt.ViewBackground(stroke=None)

MOST_CELLS = 100_000
"""Upper bound of the cells in a chart: seconds to draw, megabytes to store."""
MOST_TOKENS = 600
"""Upper bound of the tokens along a side: each needs some pixels."""
_EXACT_CELLS = 10_000
# A value below one of the 256 steps of a colour channel looks like 0.
_FAINTEST = 1 / 256
_LONGEST_LABEL = 24
_WIDEST_LABEL = 260
_FEWEST_PIXELS = 3


def table(**columns: Sequence[Any] | np.ndarray) -> alt.InlineData:
    """Make the data of a chart from columns of equal length."""
    lists = [_values(np.asarray(column).ravel()) for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def _values(column: np.ndarray) -> list[Any]:
    # NumPy writes the shortest decimal that gives the same float32, 0.1 instead of
    # 0.10000000149011612, which halves the file.
    if column.dtype == np.float32:
        return [float(text) for text in column.astype(str).tolist()]
    plain: list[Any] = column.tolist()
    return plain


def cell_table(weights: np.ndarray, **axes: Sequence[int]) -> alt.InlineData:
    """Make the data of an array: a row for each cell, with its indices along the axes.

    In tables of more than 10,000 cells, cells with the colour of 0 are left out.

    Args:
        weights: [..., rows, columns] values ≥ 0, the field `weight` of the table.
        axes: indices along each axis, in order.

    Raises:
        ConfigError: when there are too many cells or tokens for a chart.
    """
    if max(weights.shape[-2:]) > MOST_TOKENS:
        raise ConfigError(
            f"A chart has room for {MOST_TOKENS} tokens along a side, and there are "
            f"{max(weights.shape[-2:])}",
            remedy="Choose some rows, or look at a shorter text",
        )
    drawn = np.ones(weights.shape, dtype=bool)
    if weights.size > _EXACT_CELLS:
        drawn = weights >= _FAINTEST * weights.max()
        # A facet without cells would have no panel.
        drawn[..., 0, 0] = True
    if drawn.sum() > MOST_CELLS:
        raise ConfigError(
            f"{int(drawn.sum()):,} cells are more than the {MOST_CELLS:,} that a chart can show",
            remedy="Choose fewer layers, heads or rows, take their mean, or look at a shorter text",
        )
    places = np.nonzero(drawn)
    numbers = {
        name: np.asarray(axis)[place]
        for (name, axis), place in zip(axes.items(), places, strict=True)
    }
    return table(**numbers, weight=weights[drawn])


def labels(pieces: Sequence[str]) -> list[str]:
    """Return token labels with visible white space, shortened where they are long."""
    texts = []
    for piece in pieces:
        label = "␣" * len(piece) if piece.isspace() and piece.isprintable() else printable(piece)
        # SentencePiece's mark of a space, U+2581, is missing from many fonts.
        label = label.replace(MARK, "_")
        short = len(label) <= _LONGEST_LABEL
        texts.append(label if short else label[: _LONGEST_LABEL - 1] + "…")
    return texts


def label_expr(pieces: Sequence[str], field: str) -> str:
    """Return an expression for the label of the index in a field."""
    # Axes count indices and are labelled by expression: a token that occurs twice would be one
    # category.
    return f"{json.dumps(labels(pieces), ensure_ascii=False)}[{field}]"


def cell_pixels(count: int, *, available: int = 720, most: int = 24) -> int:
    """Return the size of a cell so that `count` of them fit into the available pixels."""
    return max(_FEWEST_PIXELS, min(most, available // count))


def token_axis(
    pieces: Sequence[str], size: int, title: str | None, *, side: str = "left", label: int = 10
) -> dict[str, Any]:
    """Return axis and scale of tokens by their index, for a channel of an encoding.

    Args:
        pieces: tokens as strings.
        size: size of a cell in pixels.
        title: title of the axis.
        side: `left`, `top` or `bottom`.
        label: font size in pixels.
    """
    # Rounded up: where cells are smaller than letters, every second or third token has a label.
    step = -(-label // size)
    upright = side != "left"
    tokens = axis(
        title=title,
        orient=side,
        values=list(range(0, len(pieces), step)),
        labelExpr=label_expr(pieces, "datum.value"),
        labelAngle=-90 if upright else 0,
        labelOverlap=False,
        labelFontSize=label,
        labelLimit=_WIDEST_LABEL,
        grid=False,
    )
    return {"axis": tokens, "scale": alt.Scale(domain=list(range(len(pieces))), padding=0)}


def axis(**settings: Any) -> alt.Axis:
    """Return an axis without lines and with a grey title."""
    quiet = {"labelColor": INK, "titleColor": SOFT, "titleFontWeight": "normal"}
    return alt.Axis(domain=False, ticks=False, **quiet, **settings)


def sequential_colour(
    weights: np.ndarray, title: str, *, field: str = "weight", kind: str = "linear"
) -> alt.Color:
    """Return the colour encoding of values from 0; kind `sqrt` for skewed values."""
    # A domain from 0 to 0 would give every cell an arbitrary colour.
    most = float(weights.max()) or 1.0
    scale = alt.Scale(type=kind, domain=[0, most], range=[NOTHING, MUCH], interpolate="lab")
    return alt.Color(f"{field}:Q", scale=scale, legend=legend(title))


def diverging_colour(numbers: np.ndarray, title: str, *, field: str) -> alt.Color:
    """Return the colour encoding of signed values: blue above 0, ochre below."""
    most = float(np.abs(numbers).max()) or 1.0
    scale = alt.Scale(
        domain=[-most, 0, most], range=[LITTLE, NOTHING, MUCH], interpolate="lab", clamp=True
    )
    return alt.Color(f"{field}:Q", scale=scale, legend=legend(title))


def legend(title: str) -> alt.Legend:
    """Return a legend beside the chart."""
    return alt.Legend(title=title, titleFontWeight="normal", titleColor=SOFT, titleLimit=200)


def text_colour(field: str, half: float) -> alt.Color:
    """Return the text colour of cells: white where the value exceeds `half`, else dark."""
    # Quoted as a string, since names of fields may hold any character.
    over = f"datum[{json.dumps(field)}]"
    return alt.condition(f"abs({over}) > {half}", alt.value("#ffffff"), alt.value(INK), empty=False)


def with_title(chart: alt.Chart, title: str, *more: str) -> alt.Chart:
    """Put a title above a chart, with smaller lines below it."""
    words = alt.TitleParams(
        text=title,
        subtitle=[line for line in more if line],
        anchor="start",
        fontSize=14,
        subtitleFontSize=11,
        subtitleColor=SOFT,
        offset=12,
    )
    return chart.properties(title=words)


Kind = Literal["html", "json", "png", "svg"]
"""File format; json is the Vega-Lite specification, for other programs to draw."""

# Screens with two device pixels per CSS pixel show PNG files sharply.
_PIXEL_RATIO = 2.0

_STYLE = "body { margin: 1.5rem; background: #fff; color: #222; font-family: sans-serif }"


def draw(chart: alt.TopLevelMixin, kind: Kind) -> bytes:
    """Draw a chart as the content of a file.

    Args:
        chart: any Altair chart.
        kind: file format; `html` is an interactive page without other files or network access.

    Raises:
        ConfigError: when the installed Altair is too new for the installed vl-convert.
    """
    # vl-convert ships a fixed set of Vega-Lite versions and fails obscurely on others.
    version = vega_lite_version()
    if version not in vl_convert.get_vegalite_versions():
        raise ConfigError(
            f"Altair {alt.__version__} writes Vega-Lite {version}, which vl-convert "
            f"{metadata.version('vl-convert-python')} does not know",
            remedy="Upgrade it with: pip install -U vl-convert-python",
        )
    specification = chart.to_dict()
    if kind == "json":
        return json.dumps(specification, ensure_ascii=False, indent=2).encode()
    if kind == "html":
        title = specification.get("title", {})
        text = title.get("text", "Chart") if isinstance(title, dict) else title
        body = embedded(specification, "chart")
        return chart_page(str(text), body, _STYLE, heading=False).encode()
    if kind == "svg":
        return vl_convert.vegalite_to_svg(specification, vl_version=version).encode()
    return vl_convert.vegalite_to_png(specification, vl_version=version, scale=_PIXEL_RATIO)


def save(chart: alt.TopLevelMixin, path: Path | str) -> None:
    """Write a chart to a file atomically.

    Args:
        chart: any Altair chart.
        path: file name with the suffix .html, .json, .png or .svg.

    Raises:
        ConfigError: when the suffix is none of these.
        OSError: when the file cannot be written.
    """
    content = draw(chart, kind_of(path))
    with whole(Path(path)) as file:
        file.write(content)


def kind_of(path: Path | str) -> Kind:
    """Return the file format by the suffix of a file name.

    Raises:
        ConfigError: when no chart format has this suffix.
    """
    for kind in get_args(Kind):
        if Path(path).suffix == f".{kind}":
            return cast(Kind, kind)
    raise ConfigError(
        f"Charts are not written as {Path(path).suffix or 'nothing'!r}",
        where=str(path),
        remedy="Name a .html, .png, .svg or .json file",
    )
