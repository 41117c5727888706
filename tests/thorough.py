"""What a run of the whole suite leaves out: slow cases of a kind of which others are run.

`thorough.toml` lists them, and what covers each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
REASON = "a slow case of a kind of which others ran; `make test-all` runs it"


def listed() -> dict[str, dict[str, Any]]:
    """The table: a test's name below `tests/`, and what is kept of it or covers it."""
    return tomllib.loads((FOLDER / "thorough.toml").read_text(encoding="utf-8"))


def name_and_case(nodeid: str) -> tuple[str, str]:
    """Split a test's id into its name below `tests/` and the id of its parameters, or ""."""
    name, _, case = nodeid.removeprefix("tests/").partition("[")
    return name, case.removesuffix("]")


def is_kept(case: str, kept: Iterable[str]) -> bool:
    """Whether a case of a test is run each time.

    Args:
        case: the id of its parameters, "" where it has none.
        kept: patterns of ids, with `*`.
    """
    return any(fnmatchcase(case, pattern.replace("[", "[[]")) for pattern in kept)


def leave_out(items: Sequence[pytest.Item]) -> None:
    """Mark what a quick run skips.

    Args:
        items: collected tests.
    """
    table = listed()
    for item in items:
        name, case = name_and_case(item.nodeid)
        row = table.get(name)
        if row is not None and not is_kept(case, row.get("keep", ())):
            item.add_marker(pytest.mark.skip(reason=REASON))
