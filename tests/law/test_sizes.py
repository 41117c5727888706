"""Past these sizes an idea is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .source import FILES, PACKAGE, tree

FILE_LINES = 500
FUNCTION_LINES = 60
CONSTRUCTOR_ARGUMENTS = 10


def functions(module: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
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
    for function in functions(tree(path)):
        assert code_lines(function) <= FUNCTION_LINES, f"{path}:{function.lineno} {function.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_constructors_take_few_arguments(path: Path) -> None:
    for function in functions(tree(path)):
        if function.name != "__init__":
            continue
        count = len(function.args.args) - 1 + len(function.args.kwonlyargs)
        assert count <= CONSTRUCTOR_ARGUMENTS, f"{path}:{function.lineno}: {count} arguments"
