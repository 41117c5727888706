"""The files that hold results of a comparison: tables, and pages where charts can be drawn."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from heedful.durable import replace_synced


class TabledResults(Protocol):
    """Results that can be written as tables."""

    def plain(self) -> dict[str, Any]:
        """Return the results as JSON data."""
        ...

    def markdown(self) -> str:
        """Return the table as Markdown."""
        ...


def json_file(content: Any) -> bytes:
    """Return JSON data as the indented text of a file."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def write_tables(results: TabledResults, out: Path) -> None:
    """Write table.json and table.md.

    Args:
        results: results so far.
        out: folder of the comparison.
    """
    replace_synced(out / "table.json", json_file(results.plain()))
    replace_synced(out / "table.md", results.markdown().encode())


def write_page(page: str, out: Path) -> None:
    """Write page.html.

    Args:
        page: HTML of the page.
        out: folder of the comparison.
    """
    replace_synced(out / "page.html", page.encode())


def has_charts() -> bool:
    """Return True if the extra `studio` is installed, which pages need."""
    return all(importlib.util.find_spec(name) for name in ("altair", "vl_convert"))


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str]
) -> list[str]:
    """Return the lines of a table in Markdown.

    Args:
        head: names of the columns.
        rows: cells of each row.
        rule: second line of the table, `---`, `:--` or `--:` for each column.
    """
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
