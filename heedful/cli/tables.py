"""Tables for people, on standard error; standard output is kept for text and JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0
) -> None:
    """Print a table.

    Args:
        title: above it.
        columns: headings.
        rows: cells, as many as there are columns.
        numbers: how many of the last columns hold figures, set flush right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        right = position >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # A file or a pipe has no width; the usual 80 columns would fold signatures and paths.
    console = Console(file=sys.stderr, width=None if sys.stderr.isatty() else 200)
    console.print(table)


def say(text: str = "") -> None:
    """Print a line for people."""
    print(text, file=sys.stderr)


def engineering(count: float, unit: str = "") -> str:
    """A number in thousands, millions or billions: 2.6 M."""
    size, prefixes = float(count), ["", "k", "M", "G", "T", "P"]
    while abs(size) >= 999.5 and len(prefixes) > 1:
        size /= 1000
        del prefixes[0]
    digits = 0 if not prefixes[0] or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {prefixes[0]}{unit}".rstrip()
