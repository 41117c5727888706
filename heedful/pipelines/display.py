"""Results as notebooks show them: HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def html_table(rows: Sequence[Sequence[str]], *, header: bool = False) -> str:
    """Return rows of cells as a table in HTML.

    Args:
        rows: cells, as text.
        header: flag of a first row of names.
    """
    lines = []
    for number, row in enumerate(rows):
        tag = "th" if header and number == 0 else "td"
        cells = "".join(f'<{tag} style="text-align:left">{escape(cell)}</{tag}>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
