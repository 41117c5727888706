"""Run the tests of models and training with other versions of PyTorch.

    python tools/torch_versions.py                  # the floor of pyproject.toml, and pip's newest
    python tools/torch_versions.py 2.8.0 2.11.0     # these versions
    python tools/torch_versions.py 2.11.0 --tests tests/nn tests/train/test_train_compile.py

Each version gets an environment of its own below `--folder`, with PyTorch and what it requires.
Everything else is the interpreter's that runs this program, so that nothing but PyTorch differs:
run it with the Python of `.venv`. An environment that is there already is used again. Builds for
CUDA, which the index has for Linux, take 2 to 3 GB to fetch and 5 to 6 GB of disk. The tests take
45 minutes a version on two busy cores, half an hour of it in `tests/train/parallel`.

Prints a table of passed, failed and skipped tests, and exits with 1 if a version could not be
installed, ran no test, or failed one. The log of each version lies beside its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
TESTS = [f"tests/{name}" for name in ("nn", "models", "engines", "kernels", "search", "train")]
"""The folders whose code calls PyTorch most; others call it through them."""


@dataclass(frozen=True)
class Result:
    """Counts of one version.

    Args:
        version: that pip was asked for.
        passed, failed, skipped: tests; errors outside a test's body count as failed.
        minutes: of wall time, without installing.
        trouble: why there are no counts, as a clause; empty if there are.
    """

    version: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    trouble: str = ""

    @property
    def is_good(self) -> bool:
        """Tests ran, and none failed."""
        return not self.trouble and self.passed > 0 and self.failed == 0


def main(arguments: list[str] | None = None) -> int:
    """Test each version, print the table, and return the exit status."""
    options = parser().parse_args(arguments)
    versions = list(dict.fromkeys(options.versions or [floor(), newest()]))
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for version in versions:
        environment = options.folder.resolve() / version
        log = environment.with_name(f"{version}.log")
        print(f"torch {version}: {log}", flush=True)
        results.append(check(version, environment, log, options.tests))
        if options.remove:
            shutil.rmtree(environment, ignore_errors=True)
    print(table(results))
    return 0 if all(result.is_good for result in results) else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("versions", nargs="*", metavar="VERSION", help="of PyTorch, such as 2.8.0")
    result.add_argument("--tests", nargs="+", default=TESTS, help=f"default: {' '.join(TESTS)}")
    result.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "torch",
        help="of environments and logs; default: build/torch",
    )
    result.add_argument(
        "--remove", action="store_true", help="remove each environment after its tests"
    )
    return result


def floor() -> str:
    """Return the oldest version that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = project["optional-dependencies"]["torch"]
    return str(requirement).removeprefix("torch>=")


def newest() -> str:
    """Return the newest version that pip would install here."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, "torch"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    version = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return str(version).split("+")[0]


def check(version: str, environment: Path, log: Path, tests: list[str]) -> Result:
    """Install a version and run the tests with it.

    Args:
        version: of PyTorch.
        environment: its folder, made if it is not there.
        log: file that receives what pip and pytest print.
        tests: files and folders, from the root of the repository.
    """
    with log.open("w", encoding="utf-8") as file:
        python = prepare(environment)
        # Before this interpreter's packages are on the path, where pip would find its PyTorch.
        command = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}"]
        if subprocess.run(command, stdout=file, stderr=file, check=False).returncode:
            return Result(version, trouble="pip could not install it")
        share_packages(python)
        return run_tests(version, python, environment.with_name(f"{version}.xml"), file, tests)


def run_tests(
    version: str, python: Path, report: Path, log: TextIO, tests: Sequence[str]
) -> Result:
    """Run tests in an environment, and count them.

    Args:
        version: name of the environment in the table.
        python: interpreter of the environment.
        report: file that pytest writes, in JUnit's format.
        log: open file that receives what pytest prints.
        tests: files and folders, from the root of the repository.
    """
    report.unlink(missing_ok=True)
    # Cached results would be of another version.
    flags = ["-q", "-rfE", "-p", "no:cacheprovider", f"--junitxml={report}"]
    started = time.monotonic()
    subprocess.run(
        [str(python), "-m", "pytest", *flags, *tests],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=log,
        stderr=log,
        check=False,
    )
    minutes = (time.monotonic() - started) / 60
    if not report.exists():
        return Result(version, trouble="pytest did not run to its end")
    return count(version, report.read_text(encoding="utf-8"), minutes)


def prepare(environment: Path) -> Path:
    """Make an environment with pip, and return its interpreter."""
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(environment, with_pip=True, symlinks=os.name != "nt")
    return python


def share_packages(python: Path) -> None:
    """Put this repository and this interpreter's packages on the path, after PyTorch's own."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = subprocess.run([python, "-c", ask], check=True, stdout=subprocess.PIPE, text=True)
    shared = f"{ROOT}\n{sysconfig.get_path('purelib')}\n"
    (Path(folder.stdout.strip()) / "shared_packages.pth").write_text(shared, encoding="utf-8")


def count(version: str, report: str, minutes: float) -> Result:
    """Read the counts of a report in JUnit's format."""
    suites = list(ET.fromstring(report).iter("testsuite"))

    def total(name: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    if total("tests") == 0:
        return Result(version, trouble="no test ran")
    return Result(version, total("tests") - failed - skipped, failed, skipped, minutes)


def table(results: list[Result]) -> str:
    """Return the results as a table, a line for each version."""
    lines = [f"{'torch':10} {'passed':>8} {'failed':>8} {'skipped':>8} {'minutes':>8}"]
    for each in results:
        counts = f"{each.passed:8,} {each.failed:8,} {each.skipped:8,} {each.minutes:8.1f}"
        lines.append(f"{each.version:10} {each.trouble or counts}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
