"""The package's source as data: files, imports and classes, for tests of the code's shape."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "heedful"
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """`heedful/nn/spec.py` -> `heedful.nn.spec`; a package's `__init__` -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def is_type_checking(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


@functools.cache
def imported(path: Path, *, for_types: bool) -> frozenset[str]:
    """Modules of the package that a file imports, at its top or inside functions.

    Args:
        path: the file.
        for_types: include imports under `if TYPE_CHECKING`.
    """
    skipped = {
        id(inner)
        for outer in ast.walk(tree(path))
        if is_type_checking(outer) and not for_types
        for inner in ast.walk(outer)
    }
    nodes = [node for node in ast.walk(tree(path)) if id(node) not in skipped]
    return frozenset(name for node in nodes for name in _modules(node)) - {module_of(path)}


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            yield submodule if submodule in MODULES else node.module


def is_re_export(path: Path) -> bool:
    """Whether a file is a package's `__init__` that defines nothing itself."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return path.name == "__init__.py" and not any(
        isinstance(node, definitions) for node in tree(path).body
    )


def cycles() -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    reachable = {name: _reachable(name) for name in MODULES}
    groups: list[list[str]] = []
    seen: set[str] = set()
    for name in MODULES:
        if name in seen or name not in reachable[name]:
            continue
        group = sorted(other for other in reachable[name] if name in reachable[other])
        seen.update(group)
        groups.append(group)
    return groups


def _reachable(start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imported(MODULES[waiting.pop()], for_types=True) - found:
            found.add(name)
            waiting.append(name)
    return found


def classes() -> dict[str, set[str]]:
    """The names of the package's classes, with the names of their bases."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names_in(*node.bases))
    return found


def names_in(*nodes: ast.AST) -> set[str]:
    """The last parts of all names in expressions: `nn.Module | Mask` -> `Module`, `Mask`, `nn`."""
    inner = [each for node in nodes for each in ast.walk(node)]
    return {node.id for node in inner if isinstance(node, ast.Name)} | {
        node.attr for node in inner if isinstance(node, ast.Attribute)
    }
