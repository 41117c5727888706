"""Scripts of the benchmarks that are imported by tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "pretrained"


@pytest.fixture(scope="module")
def pretrained() -> Iterator[Callable[[str], Any]]:
    """Imports a script of `benchmarks/pretrained` by its name."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(FOLDER))
