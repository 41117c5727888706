"""The overview of `heedful --help`, and the formatting of help texts.

`heedful --help` is the first call of a newcomer, so this module loads only libraries that format
text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_SUMMARY = """Train Transformers on your own data, run them fast and look inside them: above all
translators, from sentence pairs.

`heedful demo` shows all of it in a few minutes; `heedful VERB --help` explains a verb by example.
"""

_FLAGS = {"--help (-h)": "Display this message and exit.", "--version": "Display the version."}

_CODE = "bold cyan"


def print_overview(groups: Mapping[str, Mapping[str, str]]) -> None:
    """Print groups of verbs with their summaries.

    Args:
        groups: summaries of verbs, by heading and verb.
    """
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print("Usage: heedful COMMAND\n", style="bold")
    console.print(prose(_SUMMARY))
    shown = {**groups, "Flags": _FLAGS}
    # One width for all, so that the summaries stand below each other.
    width = max(len(name) for rows in shown.values() for name in rows)
    for title, rows in shown.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True, min_width=width)
        table.add_column()
        for name, summary in rows.items():
            table.add_row(name, Text(summary))
        console.print(Panel(table, title=title, title_align="left"))


def prose(text: str) -> Text:
    """Format a docstring for help: reflowed paragraphs, indented blocks, `code`.

    Docstrings use no other Markdown, and a full parser is slow to load and to run.
    """
    from rich.text import Text

    result = Text()
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            result.append("\n".join(line[2:] for line in lines), style=_CODE)
        else:
            result.append_text(inline(" ".join(line.strip() for line in lines)))
        result.append("\n\n")
    result.right_crop(1)
    return result


def inline(text: str) -> Text:
    """Format a line of text, in which `code` stands between backticks."""
    from rich.text import Text

    result = Text()
    for position, part in enumerate(re.split(r"`([^`]+)`", text)):
        result.append(part, style=_CODE if position % 2 else None)
    return result
