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

_SUMMARY = """Train a translator on your own sentence pairs, use it, measure it.

`heedful demo` shows all of it in a few minutes; `heedful VERB --help` explains a verb by example.
"""

_FLAGS = {"--help (-h)": "Display this message and exit.", "--version": "Display the version."}

_CODE = "bold cyan"


def print_overview(verbs: Mapping[str, str]) -> None:
    """Print all verbs with their summaries."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print("Usage: heedful COMMAND\n", style="bold")
    console.print(prose(_SUMMARY))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, summary in {**verbs, **_FLAGS}.items():
        table.add_row(name, Text(summary))
    console.print(Panel(table, title="Commands", title_align="left"))


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
