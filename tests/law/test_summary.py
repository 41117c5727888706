"""A run of the tests says what it left out."""

from __future__ import annotations

import os
import subprocess
import sys

from .source import ROOT

REASON = "no kernels were compiled here"


def test_tests_without_kernels_are_named() -> None:
    folder = ROOT / "tests/engines/training"
    texts = {path: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    file = min((path for path in texts if REASON in texts[path]), key=lambda p: len(texts[p]))
    name = file.relative_to(ROOT).as_posix()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    environment = {**os.environ, "HEEDFUL_NATIVE": "off"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    summary = result.stdout.partition("what was not run")[2]
    assert "No kernel in C was tested" in summary
    assert f"skipped, {REASON}: {name} (" in summary
