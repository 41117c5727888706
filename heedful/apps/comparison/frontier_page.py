"""The page of a frontier: one file with its picture and table, which needs no network."""

from __future__ import annotations

import html

import altair as alt

from heedful.apps.charts.frame import SERIES, axis, legend
from heedful.apps.charts.frame import table as chart_data
from heedful.apps.comparison.frontier_results import Frontier
from heedful.apps.comparison.frontier_rounds import PRECISIONS
from heedful.apps.comparison.page_parts import Charts, page, table
from heedful.apps.html_page import card, section

_WIDE, _TALL = 640, 360
_GREY = "#b9b6ae"


def page_of(frontier: Frontier) -> str:
    """Return the page of a frontier with at least one measured setting.

    Args:
        frontier: measurements and verdicts.
    """
    charts = Charts()
    commands = "".join(
        f"<p>{html.escape(name)}: <code>{html.escape(frontier.command(setting))}</code></p>"
        for name, setting in frontier.recommended.items()
    )
    faint = [i for i, p in enumerate(frontier.points) if p.setting in frontier.dominated]
    parts = [
        section("Settings to use", card(commands)),
        section("Speed against quality", card(charts.place(picture(frontier))), _PICTURE),
        section(
            "All settings", card(table(Frontier.COLUMNS, frontier.rows(), faint=faint)), _GREYED
        ),
    ]
    missing = [[str(setting), why] for setting, why in frontier.problems.items()]
    missing += [[str(setting), "no time was left"] for setting in frontier.unmeasured]
    if missing:
        parts.append(section("Not measured", card(table(("setting", "why"), missing))))
    return page(f"Frontier of {frontier.task.model}", frontier.about(), parts)


_PICTURE = (
    "Right is faster, up is better. Lines across are the slowest and the fastest round; upright "
    "ones the 95 % interval of BLEU over draws of the sentences, which the settings share: a "
    "difference between two is more certain than the lines suggest."
)
_GREYED = (
    "Greyed: another setting is no worse in speed, quality, memory and threads, and surely better "
    "in one; it stands in the last column."
)


def picture(frontier: Frontier) -> alt.LayerChart:
    """Draw speed against quality, dominated settings in grey.

    Args:
        frontier: results with at least one measured setting.
    """
    points = frontier.points
    scores = [frontier.scores[point.setting.output]["bleu"] for point in points]
    greyed = [point.setting in frontier.dominated for point in points]
    data = chart_data(
        name=[str(point.setting) for point in points],
        rate=[point.rate for point in points],
        slowest=[min(point.rates) for point in points],
        fastest=[max(point.rates) for point in points],
        bleu=[score.score for score in scores],
        low=[score.low for score in scores],
        high=[score.high for score in scores],
        memory=[point.peak_memory_bytes / 1e6 for point in points],
        wait=[1000 * point.wait_p50 for point in points],
        kind=[
            "dominated" if grey else point.setting.precision
            for point, grey in zip(points, greyed, strict=True)
        ],
        beam=[f"beam {point.setting.beam}" for point in points],
        order=[not grey for grey in greyed],
    )
    measured = {point.setting.precision for point in points}
    kinds = [kind for kind in PRECISIONS if kind in measured]
    colours = [*SERIES[: len(kinds)], _GREY]
    base = alt.Chart(data, width=_WIDE, height=_TALL).encode(
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=[*kinds, "dominated"], range=colours),
            legend=legend("precision"),
        )
    )
    x = alt.X(
        "rate:Q",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=axis(title="sentences a second", format="~s"),
    )
    y = alt.Y("bleu:Q", scale=alt.Scale(zero=False, padding=16), axis=axis(title="BLEU"))
    across = base.mark_rule(opacity=0.6).encode(x=alt.X("slowest:Q"), x2="fastest:Q", y=y)
    upright = base.mark_rule(opacity=0.25).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    dots = base.mark_point(filled=True, size=90, opacity=0.9).encode(
        x=x,
        y=y,
        shape=alt.Shape("beam:N", legend=legend("search")),
        order="order:Q",
        tooltip=[
            alt.Tooltip("name:N", title="setting"),
            alt.Tooltip("rate:Q", title="sentences a second", format=".1f"),
            alt.Tooltip("bleu:Q", title="BLEU", format=".2f"),
            alt.Tooltip("wait:Q", title="one sentence, ms", format=".1f"),
            alt.Tooltip("memory:Q", title="MB", format=".0f"),
        ],
    )
    return alt.layer(upright, across, dots)
