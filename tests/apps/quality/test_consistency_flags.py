"""The flags of `heedful translate` and `translate-file` that keep to the source."""

from __future__ import annotations

import io
import json
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
    assert out == "ÖFFNE DIE TÜR NICHT.\tok\n\tok\nTom schläft.\tok\n"
    assert "TÜR" not in run(text)[1]


def test_capitals_in_a_document(tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>DO NOT <b>OPEN</b> THE DOOR. I <i>am</i> tired.</p>\n")
    words = [page, out, "--model", "en-de", "--device", "cpu", "--capitals"]
    assert main(["translate-file", *map(str, words)]) == 0
    found = out.read_text()
    assert found == "<p><b>ÖFFNE</b> DIE TÜR NICHT. Ich <i>bin</i> müde.</p>\n"


def test_numbers_are_kept_or_localized_and_counted(run, tmp_path: Path) -> None:
    text = "The price is 1,234.50 dollars.\nColumbus discovered America in 1492.\nTom sleeps.\n"
    record = tmp_path / "report.json"
    for form, price in (("keep", "1,234.50"), ("localize", "1.234,50")):
        status, out, err = run(text, "--numbers", form, "--report", record)
        assert status == 0
        lines = out.split("\n")
        assert lines[0] == f"Der Preis ist {price} Dollar."
        assert "1492" in lines[1]
        assert lines[2] == "Tom schläft."
        assert "2 numbers were corrected or rewritten; 0 still disagree" in err
        found = json.loads(record.read_text())
        assert (found["numbers_mended"], found["numbers_unmended"]) == (2, 0)
    # What the model states is what the last form gave.
    plain, modelled = run(text), run(text, "--numbers", "model")
    assert plain[1] == out
    assert plain[:2] != modelled[:2]
    assert "numbers" not in modelled[2]


def test_languages_decide_about_signs(run) -> None:
    text = "The price is 1,234.50 dollars.\n"
    _, out, _ = run(text, "--numbers", "localize", "--languages", "en-fr")
    assert out == "Der Preis ist 1\u202f234,50 Dollar.\n"
    status, out, err = run(text, "--numbers", "localize", "--languages", "en-xx")
    assert (status, out) == (2, "")
    assert "CLDR has no language 'xx'" in err


def test_numbers_in_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>The price is <b>1,234.50</b> dollars.</p>\n")
    words = [page, out, "--model", "en-de", "--device", "cpu", "--numbers", "localize"]
    assert main(["translate-file", *map(str, words)]) == 0
    assert out.read_text() == "<p>Der Preis ist <b>1.234,50</b> Dollar.</p>\n"
    assert "1 number was corrected or rewritten" in capsys.readouterr().err


def test_unknown_words_are_copied(run) -> None:
    text = "I met 王小明 in Zürich.\nTom sleeps.\n"
    assert "王小明" not in run(text, "--no-copy-unknown")[1]
    status, out, err = run(text, "--copy-unknown")
    assert (status, out) == (0, "Ich habe 王小明 in Zürich getroffen.\nTom schläft.\n")
    assert "1 of 1 terms and protected parts" in err
