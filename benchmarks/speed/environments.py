"""Make the environments that the peers run in: `python benchmarks/speed/environments.py`.

    python benchmarks/speed/environments.py --envs DIR huggingface ctranslate2

Each is a virtual environment with the versions that stand in peers.toml, from PyPI as pip is set
up on this machine. To get PyTorch's smaller build for processors, tell pip where that is with
PIP_EXTRA_INDEX_URL. The benchmarks make what they miss by themselves; a peer that cannot be
installed is left out of the comparison, and the result says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from harness import ROOT, new_parser, parse, say

RECIPES = Path(__file__).resolve().parent / "peers.toml"
READY = "ready.json"


class MissingPeer(Exception):
    """A peer that cannot be had; says why."""


def environment(name: str, envs: Path) -> tuple[Path, dict[str, str]]:
    """A peer's Python and the versions of what it compares, installed where missing.

    Args:
        name: as in peers.toml.
        envs: folder of environments.

    Raises:
        MissingPeer: when it cannot be installed.
    """
    recipe = tomllib.loads(RECIPES.read_text(encoding="utf-8"))[name]
    folder = envs / name
    python = folder / "bin" / "python"
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
    ready = folder / READY
    envs.mkdir(parents=True, exist_ok=True)
    with (envs / f"{name}.lock").open("w") as lock:  # two programs may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = json.loads(ready.read_text(encoding="utf-8")) if ready.exists() else {}
        if facts.get("recipe") != digest:
            say(f"installing {name} in {folder}")
            facts = {"recipe": digest, "versions": _install(recipe, folder, python)}
            ready.write_text(json.dumps(facts), encoding="utf-8")
    return python, facts["versions"]


def _install(recipe: dict[str, Any], folder: Path, python: Path) -> dict[str, str]:
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], "venv")
    constraints = ["-c", str(ROOT / "constraints.txt")] if recipe.get("constraints") else []
    for packages in recipe["packages"]:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *constraints, *packages], f"pip install {' '.join(packages)}")
    ask = "import importlib.metadata as m, json, sys\n"
    ask += "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    versions: dict[str, str] = json.loads(
        _run([str(python), "-c", ask, *recipe["shown"]], name="version")
    )
    return versions


def _run(command: list[str], name: str) -> str:
    """Run a command of an installation; what it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        wrong = [line for line in said if "ERROR" in line or "Error" in line]
        reason = (wrong or said[-1:] or [f"exit status {done.returncode}"])[0]
        raise MissingPeer(f"{name} failed: {reason}")
    return done.stdout


def main() -> None:
    """Make the environments that are named, or all; say what is in them."""
    parser = new_parser(__doc__)
    recipes = tomllib.loads(RECIPES.read_text(encoding="utf-8"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(recipes)}; all if none is given")
    arguments = parse(parser)
    if unknown := set(arguments.names) - set(recipes):
        parser.error(
            f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(recipes)}"
        )
    for name in arguments.names or recipes:
        try:
            _, versions = environment(name, arguments.envs)
        except MissingPeer as missing:
            print(f"{name}: missing: {missing}")
        else:
            print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in versions.items()))


if __name__ == "__main__":
    main()
