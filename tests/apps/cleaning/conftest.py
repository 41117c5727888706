"""Corpora written from pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Pairs = Sequence[tuple[str, str]]


@pytest.fixture
def tsv(tmp_path: Path) -> Callable[..., Path]:
    """Writes pairs as a TSV file."""

    def write(pairs: Pairs, name: str = "pairs.tsv") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
        return path

    return write
