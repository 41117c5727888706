"""What the suite leaves out is covered: each row names a test there is, and one that is run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ..thorough import FOLDER, is_kept, leave_out, listed, name_and_case
from .source import tree

ROWS = listed()


def defines(path: Path, name: str) -> bool:
    """Whether a file has a test of a name."""
    return path.is_file() and any(
        isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree(path))
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_a_test_and_what_covers_it(name: str) -> None:
    path, _, function = name.partition("::")
    assert defines(FOLDER / path, function)
    row = ROWS[name]
    assert row.keys() in ({"keep"}, {"covered_by"})
    if "covered_by" in row:
        path, _, function = row["covered_by"].partition("::")
        assert defines(FOLDER / path, function)
        assert "covered_by" not in ROWS.get(row["covered_by"], {}), "it is not run itself"


def test_every_pattern_keeps_a_case(request: pytest.FixtureRequest) -> None:
    """A case that was renamed would leave nothing of its kind."""
    cases: dict[str, list[str]] = {name: [] for name in ROWS}
    for item in request.session.items:
        name, case = name_and_case(item.nodeid)
        if name in cases:
            cases[name].append(case)
    if not all(cases.values()):
        pytest.skip("only a run of the whole suite collects every test")
    for name, ids in cases.items():
        for pattern in ROWS[name].get("keep", ()):
            assert any(is_kept(case, [pattern]) for case in ids), (name, pattern)


class Item:
    """As much of a collected test as is asked for."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.is_left_out = False

    def add_marker(self, marker: object) -> None:
        self.is_left_out = True


def test_what_is_not_kept_is_left_out() -> None:
    name, row = next((name, row) for name, row in ROWS.items() if "keep" in row)
    kept = row["keep"][0].replace("*", "x")
    items = [Item(f"tests/{name}[{kept}]"), Item(f"tests/{name}[?]"), Item("tests/a.py::test_b")]
    leave_out(items)  # type: ignore[arg-type]
    assert [item.is_left_out for item in items] == [False, True, False]
