"""The files that a new part takes, as CONTRIBUTING.md says, counted at parts that are there."""

from __future__ import annotations

import re

import pytest

from .source import FILES, PACKAGE

ROOT = PACKAGE.parent
SECTIONS = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)

PARTS = [
    ("Add a mixer", r'"s4d"|\bS4DSpec\b', "nn/mixers/s4d.py", "five files"),
    ("Add a position scheme", r'"kerple"|\bKerple(Spec)?\b', None, "three files"),
    (
        "Add a Hugging Face decoder",
        r'"qwen3"|\.qwen3\b',
        "interop/architectures/decoders/qwen3.py",
        "One file",
    ),
]
"""Heading, what tells a file that knows the part, the part's own file, the number in words."""


@pytest.mark.parametrize(("heading", "pattern", "own", "count"), PARTS, ids=lambda each: each)
def test_a_part_takes_as_many_files_as_is_said(
    heading: str, pattern: str, own: str | None, count: str
) -> None:
    (section,) = (each for each in SECTIONS if each.startswith(f"{heading}\n"))
    assert count in " ".join(section.split())
    known = re.compile(pattern)
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if known.search(path.read_text(encoding="utf-8"))
    }
    said = set(re.findall(r"`heedful/([\w/]+\.py)`", section))
    if own is not None:
        assert f"`heedful/{own.rpartition('/')[0]}/`" in section
        said |= {own}
    assert found == said
