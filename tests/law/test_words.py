"""Words beside the code: arguments are nouns, and comments of the core give reasons."""

from __future__ import annotations

import pytest

from .source import FILES, PACKAGE, ROOT
from .words import arguments, comments, is_fragment, lines_of_code

COMMENTS_PER_HUNDRED_LINES = 5
"""nanochat has 26, torchtitan 7.5."""


def test_arguments_are_described_by_nouns() -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{each.line}: {each.name}: {each.text}"
        for path in FILES
        for each in arguments(path)
        if is_fragment(each.text)
    ]
    assert not fragments, "\n".join(fragments)


@pytest.mark.parametrize(
    "package", sorted({p.relative_to(PACKAGE).parts[0] for p in FILES if p.parent != PACKAGE})
)
def test_comments_of_the_core_give_reasons(package: str) -> None:
    """Applications and the command line say less: their texts are for people to read already."""
    if package in ("apps", "cli"):
        return
    paths = [path for path in FILES if path.is_relative_to(PACKAGE / package)]
    code = sum(lines_of_code(path) for path in paths)
    count = sum(len(comments(path)) for path in paths)
    assert 100 * count >= COMMENTS_PER_HUNDRED_LINES * code, f"{count} in {code} lines"


def test_a_fragment_is_known() -> None:
    assert is_fragment("of the run.")
    assert is_fragment("that may have ended")
    assert not is_fragment("settings of the run")
    assert not is_fragment("output of the heads")
