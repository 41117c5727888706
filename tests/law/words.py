"""Docstrings and comments of the package as data, for laws about words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .source import tree

_DOCUMENTED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_ENTRY = re.compile(r"(?P<indent> *)(?P<name>[*\w][\w, *`]*): (?P<text>.+)")
_FRAGMENT = re.compile(
    r"(of|in|to|for|from|with|without|by|on|at|as|than|into|that|which|who|whom|whose|what|whether|"
    r"if|when|where|how|why|until|unless|before|after|beside|besides|between|under|over|through|"
    r"about|per|like|because|is|are|was|were|has|have|may|must|can|will|does|do|gets|takes)\b",
    re.IGNORECASE,
)
_PRAGMA = re.compile(r"#\s*(noqa|type:|fmt:|pragma|!|mypy:|ruff:)")


class Argument(NamedTuple):
    """An entry under `Args:`.

    Args:
        line: line of the docstring's owner.
        name: the argument.
        text: the first line of its description.
    """

    line: int
    name: str
    text: str


def arguments(path: Path) -> Iterator[Argument]:
    """The arguments that the docstrings of a file describe."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, _DOCUMENTED):
            continue
        docstring = ast.get_docstring(node) or ""
        _, found, section = docstring.partition("Args:\n")
        if not found:
            continue
        indent: int | None = None
        for line in section.splitlines():
            if line and not line.startswith(" "):
                break
            entry = _ENTRY.fullmatch(line)
            if entry is None:
                continue
            indent = len(entry["indent"]) if indent is None else indent
            if len(entry["indent"]) == indent:
                yield Argument(node.lineno, entry["name"], entry["text"])


def is_fragment(description: str) -> bool:
    """Whether a description is no noun: "of the run.", "that may have ended"."""
    return bool(_FRAGMENT.match(description))


def comments(path: Path) -> list[str]:
    """Comments of a file, one for each block of consecutive lines, without pragmas and headers."""
    found: list[str] = []
    last = -2
    reader = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(reader):
        if token.type != tokenize.COMMENT or _PRAGMA.match(token.string):
            continue
        alone = not token.line[: token.start[1]].strip()
        if alone and token.start[0] == last + 1:
            found[-1] += " " + token.string.lstrip("# ")
        else:
            found.append(token.string.lstrip("# "))
        last = token.start[0] if alone else -2
    return found


def lines_of_code(path: Path) -> int:
    """Lines that hold code: no blank line, comment or docstring."""
    text = path.read_text(encoding="utf-8")
    documentation = {
        number
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documentation
        for number, line in enumerate(text.splitlines(), start=1)
    )
