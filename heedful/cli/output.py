"""Output that all verbs share: the flags `--json` and `--report`, tables and JSON lines.

Standard output is for text and JSON; tables and messages go to standard error.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

import heedful
from heedful.cli.line_files import refuse_missing_folder, writing
from heedful.memory import peak_memory_bytes

_GROUP = Group("Output", sort_key=90)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Output:
    """The flags that every verb has."""

    json: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Print JSON to standard output, one object a line.",
        ),
    ] = False
    report: Annotated[
        Path | None,
        Parameter(help="Write a report to this file, as one JSON object."),
    ] = None


PLAIN = Output()


class Report:
    """The JSON record of one run of a verb: settings, results, time and memory.

    Args:
        verb: the verb.
        output: the common flags.
        settings: the verb's flags, as plain data.
    """

    def __init__(self, verb: str, output: Output, settings: Mapping[str, Any]) -> None:
        self.verb = verb
        self.output = output
        self.settings = settings
        self.started = time.perf_counter()
        if output.report is not None:
            refuse_missing_folder(output.report)

    @property
    def seconds(self) -> float:
        """Seconds since the verb began."""
        return time.perf_counter() - self.started

    def finish(self, facts: Mapping[str, Any], *, summary: bool = True) -> None:
        """Write the report; with `--json`, print it too.

        Args:
            facts: counts, rates and scores, as plain data.
            summary: print the record; not for verbs that print an object per item.
        """
        record = {
            "command": self.verb,
            "version": heedful.__version__,
            "settings": dict(self.settings),
            **facts,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": peak_memory_bytes(),
            "machine": {"system": platform.platform(), "python": platform.python_version()},
        }
        if self.output.report is not None:
            with writing(self.output.report) as stream:
                stream.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        if summary and self.output.json:
            print_json(record)


def print_json(item: Mapping[str, Any]) -> None:
    """Print an object on one line of standard output."""
    print(json.dumps(item, ensure_ascii=False))


def one_line(text: str) -> str:
    """Escape backslashes, tabs and line breaks of a text as in C."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.replace("\t", "\\t")


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0
) -> None:
    """Print a table to standard error.

    Args:
        title: above it.
        columns: headings.
        rows: cells, as many as there are columns.
        numbers: number of last columns that hold figures, aligned right.
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
    """Print a line to standard error."""
    print(text, file=sys.stderr)


def engineering(count: float, unit: str = "") -> str:
    """A number with a unit prefix: 2.6 M."""
    size, prefixes = float(count), ["", "k", "M", "G", "T", "P"]
    while abs(size) >= 999.5 and len(prefixes) > 1:
        size /= 1000
        del prefixes[0]
    digits = 0 if not prefixes[0] or abs(size) >= 99.95 else 1
    return f"{size:.{digits}f} {prefixes[0]}{unit}".rstrip()
