"""What a fresh machine and a stranger need: exact versions, a licence, no trace of one machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".cfg", ""}
# The home and work folders of one machine have no place in the project.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|root|home|tmp|Users|opt)/[\w.]")


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def constraints() -> dict[str, str]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
            assert match, f"constraints.txt: {line!r} is not an exact version"
            found[canonical(match[1])] = match[2]
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[str]:
    data = project()
    extras = data["optional-dependencies"]
    lists = [data["dependencies"], *extras.values()]
    return [item for each in lists for item in each if not item.startswith("heedful[")]


@pytest.mark.parametrize("requirement", requirements())
def test_constraints_hold_every_dependency(requirement: str) -> None:
    match = re.fullmatch(r"([A-Za-z0-9._-]+)(\[[\w,]+\])?>=([0-9.]+)", requirement)
    assert match, f"{requirement}: a lower bound and no upper one"
    version = constraints()[canonical(match[1])]
    assert numbers(version) >= numbers(match[3])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_installed_versions_are_the_tested_ones() -> None:
    """Otherwise the tests say nothing about the versions that people install."""
    from importlib import metadata

    for name, wanted in constraints().items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        assert installed.split("+")[0] == wanted, f"{name}: make installs it anew"


def test_torch_is_pinned() -> None:
    assert constraints()["torch"] == "2.13.0"


def test_package_is_typed_and_licensed() -> None:
    assert (ROOT / "heedful" / "py.typed").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project()["license"] == "Apache-2.0"


def test_continuous_integration_runs_the_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_changelog_knows_this_version() -> None:
    import heedful

    assert f"## {heedful.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def project_files() -> list[Path]:
    """What git knows, or would; everything where there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [p for p in ROOT.rglob("*") if p.is_file() and not in_hidden_folder(p)]
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def in_hidden_folder(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts[:-1]
    return any(part.startswith(".") or part in ("build", "site") for part in parts)


def test_no_paths_of_one_machine() -> None:
    found = []
    for path in project_files():
        if path.suffix not in TEXT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if MACHINE_PATH.search(line) and path != Path(__file__):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)
