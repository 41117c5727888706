"""Drawings for notebooks: HTML and SVG that need no script, no style sheet and no network."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

LINE = 24
"""Height of a word in pixels."""
LETTER = 8
LEAST = 0.02
"""Weight from which a line is drawn, as in the studio."""
INK = "#274b8f"
CHART = (520, 220)


def word_links(rows: Sequence[str], columns: Sequence[str], weights: np.ndarray, title: str) -> str:
    """Draw words of two texts, with a line for each weight: the thicker, the larger.

    Args:
        rows: words that look, on the left.
        columns: words that are looked at, on the right.
        weights: [rows, columns] from 0 to 1.
        title: words below the drawing.
    """
    left = LETTER * max((len(each) for each in rows), default=1) + 16
    right = LETTER * max((len(each) for each in columns), default=1) + 16
    width, height = left + 220 + right, LINE * max(len(rows), len(columns), 1)
    ends = (left, left + 220)
    middle = (ends[0] + ends[1]) / 2
    parts = [
        f'<text x="{x}" y="{LINE * (i + 0.5) + 5}" text-anchor="{anchor}" fill="currentColor">'
        f"{html.escape(word)}</text>"
        for words, x, anchor in ((rows, ends[0] - 8, "end"), (columns, ends[1] + 8, "start"))
        for i, word in enumerate(words)
    ]
    for i, j in np.argwhere(weights >= LEAST).tolist():
        weight = float(weights[i, j])
        y, to = LINE * (i + 0.5), LINE * (j + 0.5)
        parts.append(
            f'<path d="M{ends[0]} {y}C{middle} {y} {middle} {to} {ends[1]} {to}" fill="none" '
            f'stroke="{INK}" stroke-width="{0.6 + 2.6 * weight:.2f}" '
            f'stroke-opacity="{min(1.0, 0.12 + weight):.2f}"><title>{weight:.3f}</title></path>'
        )
    return _figure(parts, width, height, title)


def shaded_table(
    corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
) -> str:
    """Write a table whose cells are as dark as their numbers.

    Args:
        corner: words above the names of the rows.
        columns: names of the columns.
        rows: name of each row, with a text and a number from 0 to 1 for each cell.
    """
    head = "".join(f"<th>{html.escape(each)}</th>" for each in (corner, *columns))
    lines = [f"<tr>{head}</tr>"]
    for name, cells in rows:
        shaded = "".join(
            f'<td title="{value:.3f}" style="background:rgba(15,55,129,{0.6 * value:.3f})">'
            f"{html.escape(text)}</td>"
            for text, value in cells
        )
        lines.append(f"<tr><th>{html.escape(name)}</th>{shaded}</tr>")
    return f"<table>{''.join(lines)}</table>"


def curve(xs: Sequence[float], ys: Sequence[float], title: str) -> str:
    """Draw a curve with the ends of both axes.

    Args:
        xs: positions, in order.
        ys: value at each.
        title: words below the drawing.
    """
    (width, height), edge = CHART, 48
    if not len(xs):
        return f"<p>{html.escape(title)}: nothing yet</p>"
    low, high = min(ys), max(ys)
    across, up = (xs[-1] - xs[0]) or 1.0, (high - low) or 1.0
    points = " ".join(
        f"{edge + (x - xs[0]) / across * (width - 2 * edge):.1f},"
        f"{height - edge - (y - low) / up * (height - 2 * edge):.1f}"
        for x, y in zip(xs, ys, strict=True)
    )
    labels = [
        (edge - 6, height - edge, "end", low), (edge - 6, edge, "end", high),
        (edge, height - edge + 18, "middle", xs[0]),
        (width - edge, height - edge + 18, "middle", xs[-1]),
    ]  # fmt: skip
    parts = [f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="2"/>']
    parts += [
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{value:.4g}</text>'
        for x, y, anchor, value in labels
    ]
    return _figure(parts, width, height, title)


def _figure(parts: Sequence[str], width: float, height: float, title: str) -> str:
    return (
        f'<figure><svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
    )
