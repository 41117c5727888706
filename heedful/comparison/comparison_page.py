"""The page of a comparison: one file with its tables and charts, which needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from heedful.comparison.curves import AXES, Axis, CurvePoint, training_curve, validation_curve
from heedful.comparison.results import INTERVALS, Comparison, VariantResult
from heedful.inspect.charts import Estimate, bands, ranking
from heedful.inspect.charts.frame import (
    EMBED_OPTIONS,
    PAGE_POLICY,
    script_data,
    script_library,
)

_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "loss": "loss, nats per token"}

_AXIS_TITLES: dict[Axis, str] = {
    "updates": "updates",
    "seconds": "seconds of training and validation",
    "tokens": "target tokens trained on",
    "operations": "floating-point operations (cost model)",
}

_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #666; --line: #e4e2dc; --mark: #0f3781 }
* { box-sizing: border-box }
body { margin: 0; background: #f8f7f4; color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .3rem 0; color: var(--soft); max-width: 46rem }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 1rem;
  margin: .6rem 0; overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums }
th { color: var(--soft); font-weight: 500 }
th:first-child, td:first-child { text-align: left }
tr:last-child td { border-bottom: 0 }
td.best { font-weight: 650; color: var(--mark) }
input[type=radio] { position: absolute; opacity: 0 }
label { display: inline-block; padding: .2rem .7rem; border: 1px solid var(--line);
  border-radius: 99px; background: #fff; cursor: pointer; font-size: .9rem; margin-right: .3rem }
input:checked + label { background: var(--mark); color: #fff; border-color: var(--mark) }
input:focus-visible + label { outline: 2px solid var(--mark); outline-offset: 2px }
.axis { display: none }
.vega-embed { width: 100% }
summary { cursor: pointer; color: var(--soft) }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{about}</p>
{body}
<noscript>The charts are drawn by a script that is in this file.</noscript>
</main>
<script>{library}</script>
<script>
for (const place of document.querySelectorAll("script[data-chart]")) {{
  const target = document.getElementById(place.dataset.chart);
  vegaEmbed(target, JSON.parse(place.textContent), {options});
}}
// A chart that was hidden has no width yet.
for (const button of document.querySelectorAll("input[name=axis]")) {{
  button.addEventListener("change", () => window.dispatchEvent(new Event("resize")));
}}
</script>
</body>
</html>
"""


def page_of(comparison: Comparison) -> str:
    """Return the page of a comparison with at least one finished run.

    Args:
        comparison: its results.
    """
    plan = comparison.plan
    charts = _Charts()
    parts = [
        _section("Results", _results(comparison), INTERVALS if plan.seeds > 1 else _ONE_SEED),
        _section("Final scores", _rankings(comparison, charts)),
        _section("Validation along training", _curves(comparison, charts), _CURVES),
        _section("Training loss", _training(comparison, charts)),
    ]
    if differences := comparison.differences():
        head = ["setting", *(variant.name for variant in plan.variants)]
        rows = [[key, *map(_shown, row.values())] for key, row in differences.items()]
        parts.append(_section("Settings that differ", _card(_table(head, rows))))
    parts.append(_section("Every run", _runs(comparison)))
    seeds = f"{plan.seeds} seed{'s' * (plan.seeds != 1)}"
    about = (
        f"{len(plan.variants)} variants, {seeds} of each, {plan.budget()}; task {plan.first.task}."
    )
    return _PAGE.format(
        policy=PAGE_POLICY,
        title=html.escape(f"Comparison {comparison.out.resolve().name}"),
        style=_STYLE,
        about=html.escape(about),
        body="\n".join(parts),
        library=script_library(),
        options=json.dumps(EMBED_OPTIONS),
    )


_ONE_SEED = "One seed of each: the scores have no intervals, and small differences mean little."

_CURVES = (
    "Means over seeds; bands are their 95 % confidence intervals. Curves end with the last "
    "validation that all seeds reached."
)


class _Charts:
    """Charts of the page, each with a place of its own."""

    def __init__(self) -> None:
        self.count = 0

    def place(self, chart: Any) -> str:
        """The HTML that shows a chart."""
        self.count += 1
        name = f"chart-{self.count}"
        specification = chart.to_dict()
        specification["width"] = "container"
        specification["autosize"] = {"type": "fit-x", "contains": "padding"}
        specification.setdefault("config", {})["legend"] = {"orient": "top"}
        data = script_data(specification)
        return (
            f'<div id="{name}"></div>\n<script type="application/json" data-chart="{name}">'
            f"{data}</script>"
        )


def _section(title: str, content: str, note: str = "") -> str:
    words = f"<p>{html.escape(note)}</p>\n" if note else ""
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{words}{content}\n</section>"


def _card(content: str) -> str:
    return f'<div class="card">{content}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], best: int | None = None) -> str:
    """A table; the cell of the first row in the column `best` stands out."""
    lines = ["".join(f"<th>{html.escape(name)}</th>" for name in head)]
    for number, row in enumerate(rows):
        cells = [
            f'<td class="best">{html.escape(cell)}</td>'
            if number == 0 and column == best
            else f"<td>{html.escape(cell)}</td>"
            for column, cell in enumerate(row)
        ]
        lines.append("".join(cells))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _results(comparison: Comparison) -> str:
    head = comparison.columns()
    return _card(_table(head, comparison.rows(), best=head.index(comparison.plan.scores[0])))


def _rankings(comparison: Comparison, charts: _Charts) -> str:
    found = []
    for name in comparison.plan.scores:
        estimates = [
            Estimate(each.variant.name, score.score, score.low, score.high)
            for each in comparison.ranking
            if (score := each.scores.get(name)) is not None
        ]
        if estimates:
            found.append(_card(charts.place(ranking(estimates, x=_NAMES.get(name, name)))))
    return "\n".join(found)


def _curves(comparison: Comparison, charts: _Charts) -> str:
    """A chart for each score and axis; the buttons choose the axis."""
    buttons, panels, rules = [], [], []
    curves = {
        name: {
            each.variant.name: (each, validation_curve([run.run for run in each.runs], name))
            for each in comparison.ranking
        }
        for name in comparison.plan.scores
    }
    for axis in AXES:
        checked = " checked" if axis == AXES[0] else ""
        buttons.append(
            f'<input type="radio" name="axis" id="axis-{axis}"{checked}>'
            f'<label for="axis-{axis}">{axis}</label>'
        )
        rules.append(f"#axis-{axis}:checked ~ .axis-{axis} {{ display: block }}")
        drawn = [
            _card(charts.place(chart))
            for name, series in curves.items()
            if (chart := _curve_chart(series.values(), axis, _NAMES.get(name, name))) is not None
        ]
        panels.append(f'<div class="axis axis-{axis}">{"".join(drawn)}</div>')
    style = f"<style>{' '.join(rules)}</style>"
    return f"<div>{style}{''.join(buttons)}{''.join(panels)}</div>"


def _training(comparison: Comparison, charts: _Charts) -> str:
    series = [(each, training_curve([run.run for run in each.runs])) for each in comparison.ranking]
    chart = _curve_chart(series, "updates", "training loss")
    return "" if chart is None else _card(charts.place(chart))


def _curve_chart(
    series: Iterable[tuple[VariantResult, list[CurvePoint]]], axis: Axis, figure: str
) -> Any:
    """The chart of curves; None where there are no points."""
    estimates = {
        each.variant.name: [
            Estimate(
                point.at(axis, each.variant.flops_per_update),
                point.value.score,
                point.value.low,
                point.value.high,
            )
            for point in points
        ]
        for each, points in series
    }
    if not any(estimates.values()):
        return None
    return bands(estimates, x=_AXIS_TITLES[axis], y=figure)


def _runs(comparison: Comparison) -> str:
    names = comparison.plan.scores
    head = ["run", "state", *names, "updates", "seconds", "tokens/s"]
    rows = []
    for each in comparison.runs:
        state = each.state if each.problem is None else f"{each.state}: {each.problem}"
        scores = [f"{each.scores[name]:.4f}" if name in each.scores else "–" for name in names]
        speed = [f"{each.steps:,}", f"{each.seconds:,.1f}", f"{each.tokens_per_second:,.0f}"]
        rows.append([each.run.label, state, *scores, *speed])
    return f"<details><summary>{len(rows)} runs</summary>{_card(_table(head, rows))}</details>"


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
