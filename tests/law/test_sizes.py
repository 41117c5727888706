"""Past these sizes an idea is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "heedful"
FILE_LINES = 400
FUNCTION_LINES = 60
CONSTRUCTOR_ARGUMENTS = 10

FILES = sorted(PACKAGE.rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; a signature and a docstring are not work to follow."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES
    for function in functions(ast.parse(text)):
        assert code_lines(function) <= FUNCTION_LINES, f"{path}:{function.lineno} {function.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_constructors_take_few_arguments(path: Path) -> None:
    for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
        if function.name != "__init__":
            continue
        count = len(function.args.args) - 1 + len(function.args.kwonlyargs)
        assert count <= CONSTRUCTOR_ARGUMENTS, f"{path}:{function.lineno}: {count} arguments"
