"""Past these sizes an idea is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import FILES, tree

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


def test_files_are_short() -> None:
    lines = {str(path): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def test_functions_are_short() -> None:
    long = [
        f"{path}:{function.lineno} {function.name}"
        for path in FILES
        for function in functions(tree(path))
        if code_lines(function) > FUNCTION_LINES
    ]
    assert long == []


def test_constructors_take_few_arguments() -> None:
    many = [
        f"{path}:{function.lineno}"
        for path in FILES
        for function in functions(tree(path))
        if function.name == "__init__"
        and len(function.args.args) - 1 + len(function.args.kwonlyargs) > CONSTRUCTOR_ARGUMENTS
    ]
    assert many == []
