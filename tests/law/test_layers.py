"""Imports point downwards: the contract of the design, held against the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .source import FILES, PACKAGE, is_type_checking, module_of

# From the bottom up. Parts on one line may not import each other.
LAYERS = (
    {"config", "errors", "events", "device", "durable", "memory", "registry"},
    {"kernels", "pretrained"},
    {"nn", "text"},
    {"models", "data"},
    {"engines"},
    {"search", "evaluate", "interop"},
    {"pipelines"},
    {"train", "inspect"},
    # The fence: what stands above it is built with the core, which knows nothing of it.
    {"apps.html_page", "apps.evaluation", "apps.acting"},
    {"apps.charts", "apps.export", "apps.path_lengths", "apps.pruning"}
    | {"apps.demo_corpus", "apps.language_detector", "apps.launcher", "apps.sockets", "apps.web"},
    {"apps.documents", "apps.shards", "apps.quality", "apps.planning"},
    {"apps.cleaning", "apps.comparison"},
    {"apps.serve", "apps.studio"},
    {"cli"},
)
SAME_LINE = {
    ("config", "errors"),
    ("config", "registry"),
    ("registry", "errors"),
    ("durable", "errors"),
    ("events", "errors"),
    ("device", "errors"),
    ("device", "config"),
}
# The package's face and the module that runs it are above everything.
TOP = {"", "__main__"}

# What `--help` loads: settings and their arithmetic, and the command line's own modules.
LIGHT = (
    "heedful",
    "heedful.config",
    "heedful.errors",
    "heedful.events",
    "heedful.registry",
    "heedful.data.corpus_spec",
    "heedful.apps.documents.document_settings",
    "heedful.search.search_settings",
    "heedful.models.model_spec",
    "heedful.models.preset_files",
    "heedful.models.cost",
    "heedful.pretrained.catalogue",
    "heedful.nn.spec",
    "heedful.text.tokenizer_spec",
    "heedful.train.run_settings",
    *sorted(
        f"heedful.cli.{path.stem}"
        for path in (PACKAGE / "cli").glob("*.py")
        if path.stem not in ("__init__", "demo_run")  # what the demo does, loaded when it does it
    ),
)
HEAVY = {"torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "babel"}


def part_of(module: str) -> str:
    """`heedful.nn.spec` -> `nn`, `heedful.apps.serve.forms` -> `apps.serve`; the package -> ``."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["apps"] else 1])


def test_the_design_page_names_every_package() -> None:
    page = (PACKAGE.parent / "docs/design/architecture.md").read_text(encoding="utf-8")
    table = page.split("## Layers")[1].split("\n## ")[0]
    missing = [part for layer in LAYERS for part in layer if f"`{part}`" not in table]
    assert not missing, sorted(missing)


def test_the_files_to_read_are_there_and_the_same_in_both_places() -> None:
    page = (PACKAGE.parent / "docs/design/architecture.md").read_text(encoding="utf-8")
    section = page.split("## Fifteen files to read")[1].split("\n## ")[0]
    files = re.findall(r"^\| \d+ \| `heedful/(\S+)`", section, re.MULTILINE)
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    there = readme.split("### Reading it")[1].split("\n## ")[0]
    assert files == re.findall(r"`((?!heedful)\S+\.py)`", there)
    assert len(files) == 15
    assert all((PACKAGE / file).is_file() for file in files)
    assert not {file.split("/")[0] for file in files} & {"apps", "cli"}


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Modules a file imports, with the line, and whether that happens when it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(outer)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) not in later
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            # `from heedful.apps import charts` imports a package of the fence, not the fence.
            names = [f".{alias.name}" for alias in node.names if node.module == "heedful.apps"]
            for name in names or [""]:
                yield f"{node.module or ''}{name}", node.lineno, id(node) not in later


def level(part: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"heedful/{part} has no place among the layers"
    return found[0]


def is_allowed(own: str, other: str) -> bool:
    """Whether a part may import another."""
    if other == "" and own in ("cli", "apps.serve", "apps.studio"):  # the version
        return True
    return other == own or level(other) < level(own) or (own, other) in SAME_LINE


def test_imports_point_downwards() -> None:
    wrong = [
        f"{path}:{line}: {own} may not import {part_of(module)}"
        for path in FILES
        if (own := part_of(module_of(path))) not in TOP | {"apps"}
        for module, line, _ in imports(path)
        if module.split(".")[0] == "heedful" and not is_allowed(own, part_of(module))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", LIGHT)
def test_help_loads_nothing_heavy(name: str) -> None:
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for imported, line, at_load in imports(file_of(module)):
            if not at_load:
                continue
            assert imported.split(".")[0] not in HEAVY, f"{module}:{line} loads {imported}"
            if imported.split(".")[0] == "heedful":
                waiting.append(imported)


def file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
