"""The program that runs the tests with other PyTorch: its versions, counts and exit status."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "tools" / "torch_versions.py"
REPORT = """<testsuites><testsuite tests="9" failures="1" errors="2" skipped="1"/></testsuites>"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_versions", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["torch_versions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_floor_and_the_folders_are_there(tool: ModuleType) -> None:
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", tool.floor())
    assert all((tool.ROOT / name).is_dir() for name in tool.TESTS)


def test_counts_of_a_report(tool: ModuleType) -> None:
    result = tool.count("2.11.0", REPORT, 1.5)
    assert (result.passed, result.failed, result.skipped) == (5, 3, 1)
    assert tool.count("2.11.0", '<testsuite tests="0"/>', 0.0).trouble == "no test ran"
    lines = tool.table([result, tool.Result("2.6.0", trouble="pip could not install it")])
    assert [line.split()[:2] for line in lines.splitlines()[1:]] == [
        ["2.11.0", "5"],
        ["2.6.0", "pip"],
    ]


@pytest.mark.parametrize(
    ("counts", "status"),
    [({"passed": 3}, 0), ({"passed": 3, "failed": 1}, 1), ({}, 1), ({"trouble": "none"}, 1)],
)
def test_exit_status(
    tool: ModuleType,
    counts: dict[str, object],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = iter([tool.Result("1.0", passed=1), tool.Result("2.0", **counts)])
    monkeypatch.setattr(tool, "check", lambda *_: next(results))
    assert tool.main(["1.0", "2.0", "--folder", str(tmp_path)]) == status
