"""The guide's table of architectures is that of the tests."""

from __future__ import annotations

from heedful.interop.architecture import MODEL_TYPES

from .architecture_cases import CASES
from .architecture_table import GUIDE, WORDS, write


def test_every_architecture_is_compared_and_has_words():
    assert {name.partition(",")[0] for name in CASES} == set(MODEL_TYPES) == set(WORDS)


def test_the_page_has_the_table_of_today():
    page = GUIDE.read_text(encoding="utf-8")
    assert write(page) == page, "python -m tests.parity.architecture_table writes it"
