"""Write the ctypes mirror of `heedful/kernels/csrc/heedful.h`, and the offsets that C reports.

`python tools/kernel_bindings.py` writes `heedful/kernels/structs.py` and `csrc/layout.h`; `--check`
only says whether they are up to date. The header has one field or parameter list for each
declaration, and no types but those below, pointers and its own structures.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "heedful" / "kernels"
HEADER = FOLDER / "csrc" / "heedful.h"

SCALARS = {
    "float": "c_float",
    "int": "c_int",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
}

POINTERS = {"char": "c_char_p"}
"""Others are addresses."""

Fields = list[tuple[str, str, int]]
"""Name, type without `const`, and depth of pointers."""


def parse(text: str) -> tuple[dict[str, Fields], dict[str, tuple[str, int, Fields]]]:
    """Structures with their fields, and functions with result, pointer depth and parameters."""
    text = re.sub(r"//[^\n]*|^#[^\n]*", "", text, flags=re.M)
    structs = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S):
        structs[name] = [
            field for line in body.split(";") if line.strip() for field in declared(line)
        ]
    text = re.sub(r"typedef struct \{.*?\} \w+;|enum \{.*?\};", "", text, flags=re.S)
    functions = {}
    for head, parameters in re.findall(r"([^;{}]*?)\(([^)]*)\);", text, flags=re.S):
        ((name, result, depth),) = declared(head)
        fields = [
            f for part in parameters.split(",") if part.strip() != "void" for f in declared(part)
        ]
        functions[name] = (result, depth, fields)
    return structs, functions


def declared(line: str) -> Fields:
    """`const float *a, *b` -> (a, float, 1), (b, float, 1)."""
    first, *others = (part.strip() for part in line.replace("const", "").split(","))
    kind, rest = first.split(maxsplit=1) if " " in first else (first, "")
    return [(part.replace("*", "").strip(), kind, part.count("*")) for part in (rest, *others)]


def ctype(kind: str, depth: int, structs: dict[str, Fields]) -> str:
    """The type in ctypes; pointers to numbers are addresses."""
    if depth == 2:
        return f"POINTER(POINTER({kind}))" if kind in structs else "POINTER(c_void_p)"
    if depth == 1:
        return f"POINTER({kind})" if kind in structs else POINTERS.get(kind, "c_void_p")
    return SCALARS.get(kind, kind)


def wrapped(head: str, parts: list[str], tail: str) -> list[str]:
    """Head, parts and tail as lines of at most 100 characters."""
    line = f"{head}{', '.join(parts)}{tail}"
    if len(line) <= 100:
        return [line]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    return [
        head,
        *textwrap.wrap(
            ", ".join(parts) + ",", 100, initial_indent=indent, subsequent_indent=indent
        ),
        f"{indent[4:]}{tail}",
    ]


def python(structs: dict[str, Fields], functions: dict[str, tuple[str, int, Fields]]) -> str:
    """The module `structs.py`."""
    lines = [
        '"""Structures and functions of `csrc/heedful.h`; made by `tools/kernel_bindings.py`."""',
        "",
        "from __future__ import annotations",
        "",
        "# ruff: noqa",
        "# fmt: off",
        "",
        "from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64",
        "from ctypes import c_uint32, c_uint64, c_void_p",
        "from typing import Any",
        "",
    ]
    for name, fields in structs.items():
        lines += ["", f"class {name}(Structure):", "    __slots__ = ()", "    _fields_ = ("]
        lines += [f'        ("{f}", {ctype(k, d, structs)}),' for f, k, d in fields]
        lines += ["    )", ""]
    lines += ["", *wrapped("STRUCTS: tuple[type[Structure], ...] = (", list(structs), ")"), ""]
    lines += ["FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for name, (result, depth, fields) in functions.items():
        returned = "None" if result == "void" else ctype(result, depth, structs)
        types = [ctype(k, d, structs) for _, k, d in fields]
        lines += wrapped(f'    "{name}": ({returned}, [', types, "]),")
    lines += ["}", '"""Result and parameters of each function."""', ""]
    return "\n".join(lines)


def layout(structs: dict[str, Fields]) -> str:
    """The header `layout.h`: the size of each structure and the offsets of its fields."""
    lines = [
        "// Sizes and offsets of the structures in heedful.h, by `tools/kernel_bindings.py`.",
        "",
        "static const LayoutEntry layout[] = {",
    ]
    for name, fields in structs.items():
        lines += [f'    {{"{name}", sizeof({name})}},']
        lines += [f'    {{"{name}.{f}", offsetof({name}, {f})}},' for f, _, _ in fields]
    return "\n".join([*lines, "};", ""])


def written() -> dict[Path, str]:
    """The files and what they should hold."""
    structs, functions = parse(HEADER.read_text(encoding="utf-8"))
    return {
        FOLDER / "structs.py": python(structs, functions),
        FOLDER / "csrc" / "layout.h": layout(structs),
    }


if __name__ == "__main__":
    files = written()
    stale = [p.name for p, text in files.items() if p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        sys.exit(f"run python {sys.argv[0]}: {', '.join(stale)}" if stale else 0)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
