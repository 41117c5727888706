"""Charts of estimates with their confidence intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from heedful.apps.charts.frame import INK, SERIES, SOFT, labels, table, with_title
from heedful.errors import DataError

_WIDE, _TALL = 560, 300
_PANEL = 300
_ROW = 30
_FEW = 40


class Estimate(NamedTuple):
    """An estimate and its interval.

    Args:
        x: position on the horizontal axis, a number or the name of a category.
        y: estimate.
        low: lower end of the interval; `y` without an interval.
        high: upper end of the interval.
    """

    x: float | str
    y: float
    low: float
    high: float


Series = Mapping[str, Sequence[Estimate]]


def bands(
    series: Series,
    *,
    x: str,
    y: str,
    title: str = "",
    more: str = "",
    log: bool = False,
    log_y: bool = False,
    mark: float | None = None,
    mark_label: str = "",
) -> alt.LayerChart:
    """Draw a line of estimates for each name, within the band of their intervals.

    Args:
        series: estimates by name, with numbers as positions.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        title, more: title of the chart, and the smaller line below it.
        log: logarithmic horizontal axis, for positions above 0.
        log_y: logarithmic vertical axis, for estimates and intervals above 0.
        mark: position of a vertical line; None for no line.
        mark_label: label of that line.

    Raises:
        DataError: when there are no estimates.
    """
    data, count = _rows(series, y)
    # Base 2: positions are sizes or lengths, most of which double from one to the next.
    scale = alt.Scale(type="log", base=2, nice=False) if log else alt.Scale(zero=False, nice=False)
    base = alt.Chart(data, width=_WIDE, height=_TALL).encode(
        x=alt.X("x:Q", scale=scale, axis=value_axis(x, format="~s")), color=name_colour(series)
    )
    vertical = {"type": "log", "nice": False} if log_y else {"domain": _domain(series)}
    # Clipped, since the domain may be narrower than the widest interval.
    band = base.mark_area(opacity=0.16, clip=True).encode(y=_y(y, "low:Q", **vertical), y2="high:Q")
    line = base.mark_line(strokeWidth=2, point=count <= _FEW * len(series)).encode(
        strokeDash=_dashes(series),
        y=_y(y, "y:Q", **vertical),
        tooltip=_tooltip(alt.Tooltip("x:Q", title=x, format=".4~s"), y),
    )
    # The line is drawn over its band, which would dull its colour otherwise.
    layers: list[alt.Chart] = [band, line]
    if mark is not None:
        place = alt.Chart(table(x=[float(mark)], label=[mark_label]))
        rule = place.mark_rule(strokeDash=[4, 4], color=SOFT).encode(x="x:Q")
        words = place.mark_text(
            align="left", dx=5, y=8, color=SOFT, fontSize=11, baseline="middle"
        ).encode(x="x:Q", text="label:N")
        layers += [rule, words]
    return with_title(alt.layer(*layers), title, more)


def categories(
    panels: Mapping[str, Series], *, x: str, title: str = "", more: str = ""
) -> alt.HConcatChart:
    """Draw estimates by category with bars for their intervals, a panel for each metric.

    Args:
        panels: estimates by metric and name, with names of categories as positions.
        x: title of the horizontal axes.
        title, more: title of the chart, and the smaller line below it.

    Raises:
        DataError: when there are no estimates.
    """
    charts = []
    for figure, series in panels.items():
        data, _ = _rows(series, figure)
        # Vega sorts categories alphabetically unless an order is given.
        order = list(dict.fromkeys(each.x for points in series.values() for each in points))
        base = alt.Chart(data, width=_PANEL, height=_TALL).encode(
            x=alt.X(
                "x:N",
                sort=order,
                scale=alt.Scale(paddingInner=0.5, paddingOuter=0.3),
                axis=value_axis(x, labelAngle=0),
            ),
            color=name_colour(series),
        )
        # Bars of several names stand side by side, so that none hides another.
        if len(series) > 1:
            base = base.encode(xOffset=alt.XOffset("name:N", sort=labels(list(series))))
        bars = base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=_y(figure, "low:Q"), y2="high:Q")
        line = base.mark_line(strokeWidth=1.5, opacity=0.5).encode(y=_y(figure, "y:Q"))
        dots = base.mark_circle(size=60, opacity=1).encode(
            y=_y(figure, "y:Q"), tooltip=_tooltip(alt.Tooltip("x:N", title=x), figure)
        )
        charts.append(alt.layer(bars, line, dots))
    return with_title(alt.hconcat(*charts), title, more)


def ranking(estimates: Sequence[Estimate], *, x: str) -> alt.LayerChart:
    """Draw estimates with intervals from top to bottom, in the given order.

    Args:
        estimates: estimates with names as positions.
        x: title of the horizontal axis.

    Raises:
        DataError: when there are no estimates.
    """
    series = {str(each.x): [each] for each in estimates}
    data, _ = _rows(series, x)
    # The axis does not start at 0: differences between systems are small compared with the values.
    scale = alt.Scale(zero=False, padding=12)
    base = alt.Chart(data, width=_WIDE, height=_ROW * len(series)).encode(
        y=alt.Y(
            "name:N",
            sort=labels(list(series)),
            axis=alt.Axis(title=None, labelColor=INK, labelLimit=260, domain=False, ticks=False),
        ),
        color=name_colour(series, legend=None),
    )
    bars = base.mark_rule(strokeWidth=3, opacity=0.45).encode(
        x=alt.X("low:Q", scale=scale, axis=value_axis(x)), x2="high:Q"
    )
    dots = base.mark_circle(size=90, opacity=1).encode(
        x=alt.X("y:Q", scale=scale, axis=value_axis(x)), tooltip=_tooltip(None, x)
    )
    return alt.layer(bars, dots)


def _rows(series: Series, figure: str) -> tuple[alt.InlineData, int]:
    names = dict(zip(series, labels(list(series)), strict=True))
    rows = [(names[name], each) for name, points in series.items() for each in points]
    if not rows:
        raise DataError("There is nothing to draw", where=figure)
    data = table(
        name=[name for name, _ in rows],
        x=[each.x for _, each in rows],
        y=[float(each.y) for _, each in rows],
        low=[float(each.low) for _, each in rows],
        high=[float(each.high) for _, each in rows],
    )
    return data, len(rows)


def name_colour(names: Iterable[str], **settings: Any) -> alt.Color:
    """Return the colour encoding of series by name, with a legend if there are several."""
    names = labels(list(names))
    # Readers can tell eight colours apart; further names repeat them with dashed lines.
    colours = [SERIES[number % len(SERIES)] for number in range(len(names))]
    if "legend" not in settings:
        key = alt.Legend(title=None, labelLimit=300, symbolOpacity=1)
        settings["legend"] = key if len(names) > 1 else None
    return alt.Color("name:N", scale=alt.Scale(domain=names, range=colours), **settings)


def _dashes(series: Series) -> Any:
    """Return solid lines for the first eight names, and dashes where colours repeat."""
    names = labels(list(series))
    if len(names) <= len(SERIES):
        return alt.Undefined
    patterns = [[1, 0], [6, 4], [2, 3]]
    dashes = [patterns[number // len(SERIES) % len(patterns)] for number in range(len(names))]
    key = alt.Legend(title=None, labelLimit=300, symbolType="stroke", symbolStrokeWidth=2.5)
    return alt.StrokeDash("name:N", scale=alt.Scale(domain=names, range=dashes), legend=key)


def _domain(series: Series) -> list[float]:
    """Return the range of an axis, which exceeds the estimates by at most half of their span."""
    points = [each for several in series.values() for each in several]
    lowest, highest = min(each.y for each in points), max(each.y for each in points)
    # Intervals of two seeds are often so wide that at their scale the lines would look flat.
    span = (highest - lowest) or abs(highest) or 1.0
    return [
        max(min(each.low for each in points), lowest - span / 2),
        min(max(each.high for each in points), highest + span / 2),
    ]


def _y(title: str, field: str, **scale: Any) -> alt.Y:
    return alt.Y(field, scale=alt.Scale(zero=False, **scale), axis=value_axis(title))


def _tooltip(place: alt.Tooltip | None, figure: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("name:N", title="of"),
        *([] if place is None else [place]),
        alt.Tooltip("y:Q", title=figure, format=".5~g"),
        alt.Tooltip("low:Q", title="from", format=".5~g"),
        alt.Tooltip("high:Q", title="to", format=".5~g"),
    ]


def value_axis(title: str, **settings: Any) -> alt.Axis:
    """Return an axis of values, with a pale grid and a grey title."""
    quiet = {"titleFontWeight": "normal", "titleColor": SOFT, "gridColor": "#ececec"}
    return alt.Axis(title=title, **quiet, **settings)
