"""Structures and functions are the same on both sides of the bindings."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.kernels import library, structs

ROOT = Path(__file__).parents[2]


def test_bindings_are_those_of_the_header() -> None:
    command = [sys.executable, ROOT / "tools/kernel_bindings.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")
def test_another_order_of_fields_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *others = structs.Linear._fields_

    class Linear(ctypes.Structure):
        _fields_ = (second, first, *others)

    file = Path(library.kernels()._name)
    assert library.load(file) is not None
    swapped = tuple(Linear if s is structs.Linear else s for s in library.STRUCTS)
    assert ctypes.sizeof(Linear) == ctypes.sizeof(structs.Linear)
    monkeypatch.setattr(library, "STRUCTS", swapped)
    assert library.load(file) is None


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(AttributeError):
        structs.Linear().panels = 0
