"""The flags of `heedful translate` and `translate-file` that keep to the source."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.cli.main import main


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    def run_it(text: str, *words: object) -> tuple[int, str, str]:
        stream = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr("sys.stdin", stream)
        status = main(["translate", "en-de", "--device", "cpu", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_it


def test_capitals(run) -> None:
    text = "DO NOT OPEN THE DOOR.\n\nTom sleeps.\n"
    status, out, _ = run(text, "--capitals", "--check")
    assert status == 0
    assert out == "MACH DIE TÜR NICHT AUF.\tok\n\tok\nTom schläft.\tok\n"
    assert "TÜR" not in run(text)[1]


def test_capitals_in_a_document(tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>DO NOT <b>OPEN</b> THE DOOR. I <i>am</i> tired.</p>\n")
    words = [page, out, "--model", "en-de", "--device", "cpu", "--capitals"]
    assert main(["translate-file", *map(str, words)]) == 0
    found = out.read_text()
    assert found == "<p><b>MACH</b> DIE TÜR NICHT AUF. Ich <i>bin</i> müde.</p>\n"
