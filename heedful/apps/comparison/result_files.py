"""The files that hold results of a comparison: tables, and pages where charts can be drawn."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from heedful.durable import replace_synced


def json_file(content: Any) -> bytes:
    """Return JSON data as the indented text of a file."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


class TabledResults(Protocol):
    """The interface and base class of results that are written as tables and as a page."""

    def plain(self) -> dict[str, Any]:
        """Return the results as JSON data: the content of table.json."""
        ...

    def markdown(self) -> str:
        """Return the table as Markdown: the content of table.md."""
        ...

    def write(self, out: Path, page: str | None = None) -> None:
        """Write table.json, table.md and, if there is a page, page.html.

        Args:
            out: folder of the files.
            page: HTML of the page.
        """
        replace_synced(out / "table.json", json_file(self.plain()))
        replace_synced(out / "table.md", self.markdown().encode())
        if page is not None:
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
