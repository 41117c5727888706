"""Check what was touched, in under a minute: format, rules, and the tests nearest to the change.

    make check                          files that differ from the last commit, or those of it
    .venv/bin/python tools/check.py FILE ...

Tests are those that changed themselves, then the test files that import a changed module, those
with the fewest other imports first, then the laws of the code. What the time does not reach is
counted at the end. Types, documentation and everything else are for `make test`.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 45
"""For the tests; rules and the collection of tests take ten more on two cores."""

LAWS = ("test_layers.py", "test_sizes.py", "test_shape.py", "test_definition.py")


def main() -> int:
    """Run the check; the exit status is that of what failed first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="files to take as touched")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for tests ({SECONDS})")
    arguments = parser.parse_args()
    files = [file.resolve() for file in arguments.files] or touched()
    python = [file for file in files if file.suffix == ".py" and file.is_file()]
    if python:
        for words in (["format", "--check"], ["check"]):
            done = subprocess.run([sys.executable, "-m", "ruff", *words, *python], cwd=ROOT)
            if done.returncode:
                return done.returncode
    tests = nearest_tests(python)
    budget = Budget(arguments.seconds)
    laws = [ROOT / "tests" / "law" / name for name in LAWS]
    words = ["-q", "--no-header", "--slow", "skip", *map(str, [*tests, *laws])]
    status = pytest.main(words, plugins=[budget])
    print(f"{len(files)} files touched, {len(tests)} test files concern them.", end=" ")
    if budget.left_out:
        print(f"{budget.left_out} tests were not reached: make tests runs all.", end="")
    print()
    return int(status)


def touched() -> list[Path]:
    """Files that differ from the last commit; where none does, those of that commit."""
    changed = list(git("diff", "--name-only", "HEAD"))
    changed += git("ls-files", "--others", "--exclude-standard")
    names = changed or git("show", "--name-only", "--format=", "HEAD")
    return [ROOT / name for name in names]


def git(*words: str) -> Iterator[str]:
    """The lines that a command of git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    yield from done.stdout.split("\n")[:-1]


def nearest_tests(files: list[Path]) -> list[Path]:
    """Test files that changed, and those that import a changed module, the narrowest first."""
    modules = {module_of(file) for file in files if ROOT / "heedful" in file.parents}
    own = [file for file in files if file.name.startswith("test_")]
    importing: dict[Path, int] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        names = imported(file)
        if names & modules and file not in own:
            importing[file] = len(names)
    return own + sorted(importing, key=lambda file: importing[file])


def module_of(file: Path) -> str:
    """`heedful/nn/spec.py` -> `heedful.nn.spec`."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def imported(file: Path) -> set[str]:
    """Heedful's modules that a file imports by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heedful"):
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(each.name for each in node.names if each.name.startswith("heedful"))
    return found


class Budget:
    """A plugin of pytest that leaves out tests once the time is over.

    Args:
        seconds: time for all tests, from the first on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.left_out = 0
        self._end = 0.0

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Let a test run, or count it; pytest takes True for "it was seen to"."""
        self._end = self._end or time.monotonic() + self.seconds
        if time.monotonic() < self._end:
            return None
        self.left_out += 1
        return True


if __name__ == "__main__":
    sys.exit(main())
