"""Results as notebooks show them: HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


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


def translation_table(translation: Any) -> str:
    """Return the best translations with their scores, and the words that belong together.

    Args:
        translation: a `Translation`.
    """
    rows = [("translation", "log-probability")]
    rows += [(str(each), f"{each.score:.2f}") for each in translation.n_best]
    if (found := translation.alignment) is not None:
        rows += [
            (found.target_words[target], f"{found.source_words[source]} ({weight:.2f})")
            for source, target, weight in found.links
        ]
    return html_table(rows, header=True)
