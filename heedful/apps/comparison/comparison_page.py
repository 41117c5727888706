"""The page of a comparison: one file with its tables and charts, which needs no network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heedful.apps.charts import Estimate, bands, ranking
from heedful.apps.comparison.curves import AXES, Axis, CurvePoint, training_curve, validation_curve
from heedful.apps.comparison.page_parts import Charts, page, table
from heedful.apps.comparison.results import INTERVALS, Comparison, VariantResult
from heedful.apps.html_page import card, section

_NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "loss": "loss, nats per token"}

_AXIS_TITLES: dict[Axis, str] = {
    "updates": "updates",
    "seconds": "seconds of training and validation",
    "tokens": "target tokens trained on",
    "operations": "floating-point operations (cost model)",
}


def page_of(comparison: Comparison) -> str:
    """Return the page of a comparison with at least one finished run.

    Args:
        comparison: results.
    """
    plan = comparison.plan
    charts = Charts()
    parts = [
        section("Results", _results(comparison), INTERVALS if plan.seeds > 1 else _ONE_SEED),
        section("Final scores", _rankings(comparison, charts)),
        section("Validation along training", _curves(comparison, charts), _CURVES),
        section("Training loss", _training(comparison, charts)),
    ]
    if differences := comparison.differences():
        head = ["setting", *(variant.name for variant in plan.variants)]
        rows = [[key, *map(_shown, row.values())] for key, row in differences.items()]
        parts.append(section("Settings that differ", card(table(head, rows))))
    parts.append(section("Every run", _runs(comparison)))
    seeds = f"{plan.seeds} seed{'s' * (plan.seeds != 1)}"
    about = (
        f"{len(plan.variants)} variants, {seeds} of each, {plan.budget()}; task {plan.first.task}."
    )
    return page(f"Comparison {comparison.out.resolve().name}", about, parts)


_ONE_SEED = "One seed of each: the scores have no intervals, and small differences mean little."

_CURVES = (
    "Means over seeds; bands are their 95 % confidence intervals. Curves end with the last "
    "validation that all seeds reached."
)


def _results(comparison: Comparison) -> str:
    head = comparison.columns()
    return card(table(head, comparison.rows(), best=head.index(comparison.plan.scores[0])))


def _rankings(comparison: Comparison, charts: Charts) -> str:
    found = []
    for name in comparison.plan.scores:
        estimates = [
            Estimate(each.variant.name, score.score, score.low, score.high)
            for each in comparison.ranking
            if (score := each.scores.get(name)) is not None
        ]
        if estimates:
            found.append(card(charts.place(ranking(estimates, x=_NAMES.get(name, name)))))
    return "\n".join(found)


def _curves(comparison: Comparison, charts: Charts) -> str:
    """Return a chart for each score and axis; buttons choose the axis."""
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
            card(charts.place(chart))
            for name, series in curves.items()
            if (chart := _curve_chart(series.values(), axis, _NAMES.get(name, name))) is not None
        ]
        panels.append(f'<div class="axis axis-{axis}">{"".join(drawn)}</div>')
    style = f"<style>{' '.join(rules)}</style>"
    return f"<div>{style}{''.join(buttons)}{''.join(panels)}</div>"


def _training(comparison: Comparison, charts: Charts) -> str:
    series = [(each, training_curve([run.run for run in each.runs])) for each in comparison.ranking]
    chart = _curve_chart(series, "updates", "training loss")
    return "" if chart is None else card(charts.place(chart))


def _curve_chart(
    series: Iterable[tuple[VariantResult, list[CurvePoint]]], axis: Axis, figure: str
) -> Any:
    """Return the chart of the curves; None if they have no points."""
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
    return f"<details><summary>{len(rows)} runs</summary>{card(table(head, rows))}</details>"


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
