"""The shape of the package: names, folders, imports, docstrings, and checks of kinds.

Numbers above the goal are present offences: a bound may only sink, never rise.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict

from markdown_it import MarkdownIt

from heedful.nn.spec import PARTS

from . import source
from .source import FILES, MODULES, PACKAGE, ROOT

MODULES_OF_A_FOLDER = 35
IMPORTS_OF_A_MODULE = 12
PROSE_WIDTH = 100

# Present offences.
KIND_CHECKS = 3  # asked: at most 10
PART_COMPARISONS = 24  # as in `part.kind == "attention"`, outside of `interop`
CROWDED_FOLDERS: set[str] = set()

# Ways to store a matrix, which layers are exchanged for as in PyTorch's own conversions.
LINEAR_LAYERS = {"Linear", "FusedLinear", "NativeLinear", "LowRank", "NewRows", "Fused", "_Map"}

MARKDOWN = MarkdownIt("commonmark").enable("table")
_UNDIVIDED = re.compile(r"`[^`]*`|\]\([^)]*\)")
_RELATIVE = re.compile(r"(What|Who|Whom|Whose|Whether|How|Which|Where|When|Why)\b")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def opens_with_relative_clause(docstring: str) -> bool:
    """Whether a docstring begins as half a sentence: "What becomes of …", but no question."""
    first = docstring.strip().split("\n\n")[0]
    return bool(_RELATIVE.match(first)) and not re.match(r"[^.]*\?(\s|$)", first)


def test_docstrings_open_with_a_statement() -> None:
    offences = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}"
        for path in FILES
        for node in ast.walk(source.tree(path))
        if isinstance(node, _DOCUMENTED)
        if (docstring := ast.get_docstring(node)) and opens_with_relative_clause(docstring)
    ]
    assert not offences, "\n".join(offences)


def test_no_two_modules_share_a_file_name() -> None:
    paths = defaultdict(list)
    for path in FILES:
        if path.name not in ("__init__.py", "__main__.py"):
            paths[path.name].append(str(path.relative_to(PACKAGE)))
    shared = [", ".join(places) for places in paths.values() if len(places) > 1]
    assert not shared, "\n".join(shared)


def test_a_public_name_has_one_owner() -> None:
    """One word, one thing: no two public classes or protocols of the package share a name."""
    owners = defaultdict(list)
    for path in FILES:
        for node in source.tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(str(path.relative_to(PACKAGE)))
    shared = [f"{name}: {', '.join(places)}" for name, places in owners.items() if len(places) > 1]
    assert not shared, "\n".join(shared)


def test_folders_hold_few_modules() -> None:
    counts = Counter(path.parent for path in FILES)
    crowded = {
        str(folder.relative_to(ROOT)) for folder in counts if counts[folder] > MODULES_OF_A_FOLDER
    }
    assert crowded <= CROWDED_FOLDERS


def test_modules_import_few_others() -> None:
    wide = {
        name: count
        for name, path in MODULES.items()
        if not source.is_re_export(path)
        if (count := len(source.imported(path, for_types=True))) > IMPORTS_OF_A_MODULE
    }
    assert not wide, "\n".join(f"{name}: {n}" for name, n in wide.items())


def test_no_cycle_of_imports() -> None:
    groups = source.cycles()
    text = "\n".join(", ".join(group) for group in groups)
    assert not groups, text


def kinds() -> set[str]:
    """Names of specs, models and their parts, and of unions and tuples of them."""
    bases = source.classes()
    found = {"Config", "Module", "Mask", "Bias"}
    grown = True
    while grown:
        more = {name for name in bases if bases[name] & found} - found
        found |= more
        grown = bool(more)
    for path in FILES:
        for node in source.tree(path).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.BinOp):
                parts = source.names_in(node.value)
                if parts and parts <= found:
                    found |= source.names_in(*node.targets)
    return found - {"Module"} - LINEAR_LAYERS


def kind_checks() -> list[str]:
    """Places that ask for a kind: `isinstance`, `issubclass`, `type(x) is`, `case Kind()`."""
    found, names = [], kinds()
    for path in FILES:
        for node in ast.walk(source.tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("isinstance", "issubclass")
            ):
                asked = source.names_in(node.args[1])
            elif isinstance(node, ast.Compare) and "type" in source.names_in(node.left):
                asked = source.names_in(*node.comparators)
            elif isinstance(node, ast.MatchClass):
                asked = source.names_in(node.cls)
            else:
                continue
            if asked & names:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.append(f"{place}: {', '.join(sorted(asked & names))}")
    return found


def test_kinds_answer_for_themselves() -> None:
    checks = kind_checks()
    assert len(checks) <= KIND_CHECKS, "\n".join(checks)


def part_comparisons() -> list[str]:
    """Comparisons of a `kind` with that of a part, which the part's spec could answer."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        if path.parent != PACKAGE / "interop" and PACKAGE / "interop" not in path.parents
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.Compare)
        if isinstance(node.left, ast.Attribute) and node.left.attr == "kind"
        if any(
            isinstance(each, ast.Constant) and each.value in PARTS
            for comparator in node.comparators
            for each in ast.walk(comparator)
        )
    ]


def test_parts_answer_for_themselves() -> None:
    comparisons = part_comparisons()
    assert len(comparisons) <= PART_COMPARISONS, "\n".join(comparisons)


def test_prose_of_pages_is_wrapped() -> None:
    """Paragraphs and lists; nothing divides a code span, or the address of a link."""
    wide = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        lines = path.read_text(encoding="utf-8").split("\n")
        for token in MARKDOWN.parse("\n".join(lines)):
            if token.type != "paragraph_open" or token.map is None:
                continue
            wide += [
                f"{path.relative_to(ROOT)}:{number + 1}"
                for number in range(*token.map)
                if len(lines[number]) > PROSE_WIDTH
                and " " in _UNDIVIDED.sub("", lines[number]).strip()
            ]
    assert not wide, "\n".join(wide)
