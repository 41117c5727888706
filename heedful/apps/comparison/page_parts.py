"""Parts of the pages of comparisons: their style, tables and charts."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from heedful.apps.charts.chart_page import chart_page, embedded

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
tr.faint td { color: #767676; font-style: italic }
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


def page(title: str, about: str, sections: Iterable[str]) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        about: line below the title, plain text.
        sections: HTML of `section`.
    """
    return chart_page(title, "\n".join([f"<p>{html.escape(about)}</p>", *sections]), _STYLE)


class Charts:
    """Charts of the page, each with its own place."""

    def __init__(self) -> None:
        self.count = 0

    def place(self, chart: Any) -> str:
        """The HTML that shows a chart."""
        self.count += 1
        specification = chart.to_dict()
        specification["width"] = "container"
        specification["autosize"] = {"type": "fit-x", "contains": "padding"}
        specification.setdefault("config", {})["legend"] = {"orient": "top"}
        return embedded(specification, f"chart-{self.count}")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    best: int | None = None,
    *,
    faint: Collection[int] = (),
) -> str:
    """Return a table of plain texts.

    Args:
        head: names of the columns.
        rows: cells of each row, one for each column.
        best: index of the column whose cell in the first row is highlighted.
        faint: indices of greyed rows, from 0.
    """
    heading = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = [f"<tr>{heading}</tr>"]
    for number, row in enumerate(rows):
        cells = [
            f'<td class="best">{html.escape(cell)}</td>'
            if number == 0 and column == best
            else f"<td>{html.escape(cell)}</td>"
            for column, cell in enumerate(row)
        ]
        mark = ' class="faint"' if number in faint else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
