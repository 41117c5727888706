"""The definition stands alone: it knows no kernel, no compiler, no device and no fused path."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from heedful.models.block import Block

from .source import FILES, PACKAGE, imported, module_of, tree

DEFINITION = [path for path in FILES if path.relative_to(PACKAGE).parts[0] in ("nn", "models")]
KERNELS = PACKAGE / "nn" / "attention" / "kernels"
"""Kernels of attention plan by the type of a device, which is given to them as a value."""

LONGEST_FORWARD = 34
"""Lines of `Block.forward` without its docstring."""


def names_of(path: Path) -> set[str]:
    """Every attribute and name that a file reads, as `a.b.c` where it is one."""
    nodes = ast.walk(tree(path))
    return {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute | ast.Name)}


@pytest.mark.parametrize("path", DEFINITION, ids=module_of)
def test_it_imports_no_kernels_and_no_engines(path: Path) -> None:
    """Imports for types are counted."""
    names = imported(path, for_types=True)
    assert not [each for each in names if each.startswith(("heedful.kernels", "heedful.engines"))]


@pytest.mark.parametrize("path", DEFINITION, ids=module_of)
def test_it_asks_nothing_of_its_surroundings(path: Path) -> None:
    asked = {name for name in names_of(path) if name.endswith(("compiling", ".is_cuda", ".is_cpu"))}
    devices = {name for name in names_of(path) if name.endswith("device.type")}
    assert not asked
    if KERNELS not in path.parents and path.name != "attend.py":
        assert not devices


def test_a_block_is_read_as_in_the_paper() -> None:
    source = inspect.getsource(Block.forward)
    body = source.replace(inspect.getdoc(Block.forward) or "", "")
    assert len(body.split('"""')[-1].strip().splitlines()) <= LONGEST_FORWARD
