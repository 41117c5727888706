"""Run the tests with the newest versions of everything but PyTorch, beside the pinned ones.

    python tools/newest_versions.py                      # the folders that call other packages most
    python tools/newest_versions.py --tests tests/cli

The environment below `--folder` is made anew. It gets the newest versions that the lower bounds of
pyproject.toml allow, for all extras, without constraints.txt. PyTorch is that of the interpreter
that runs this program, since `tools/torch_versions.py` tries others. Run it with the Python of
`.venv`.

Prints the packages that differ from constraints.txt and the counts of the tests, and exits with 1
if a package could not be installed, or a test failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from torch_versions import ROOT, Result, prepare, run_tests, share_packages, table

TESTS = [f"tests/{name}" for name in ("parity", "interop", "nn", "text", "cli")]


def main(arguments: list[str] | None = None) -> int:
    """Install, test, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"default: {' '.join(TESTS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "newest_versions")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log").open("w", encoding="utf-8") as log:
        print(f"newest versions: {log.name}", flush=True)
        python = prepare(folder / "environment")
        share_packages(python)
        pin = folder / "pin.txt"
        pin.write_text(f"torch=={importlib.metadata.version('torch')}\n", encoding="utf-8")
        # Eager, so that what packages require is the newest, too.
        install = ["install", "--quiet", "--upgrade", "--upgrade-strategy", "eager", "-c", str(pin)]
        command = [str(python), "-m", "pip", *install, *requirements()]
        if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
            result = Result("newest", trouble="pip could not install it")
        else:
            print("\n".join(differences(python)), flush=True)
            result = run_tests("newest", python, folder / "report.xml", log, options.tests)
    print(table([result]))
    return 0 if result.is_good else 1


def requirements() -> list[str]:
    """Return everything that pyproject.toml names, except PyTorch and this package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    own = re.compile(r"(heedful|torch)\b")
    return sorted({item for each in lists for item in each if not own.match(item)})


def differences(python: Path) -> list[str]:
    """Return a line for each package of an environment that constraints.txt has otherwise."""
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    versions = {normal(each["name"]): each["version"] for each in json.loads(done.stdout)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line)
    return [
        f"{name}: {pinned} -> {found}"
        for name, pinned in pins
        if (found := versions.get(normal(name))) is not None and found.split("+")[0] != pinned
    ]


def normal(name: str) -> str:
    """Return the form in which names of packages are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
