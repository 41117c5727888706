"""`heedful demo` as people call it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.main import main
from heedful.text.tokenizer_pair import read_tokenizer

SMALL = ["--pairs", "1200", "--held-out", "60", "--steps", "12"]


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo that has hardly learned anything."""
    out = tmp_path_factory.mktemp("demo") / "new" / "demo"
    report = out.parent.parent / "report.json"
    assert main(["demo", "--out", str(out), "--report", str(report), *SMALL]) == 0
    return out


def test_folder_holds_pairs_and_a_run(made: Path) -> None:
    assert len((made / "pairs" / "train.en").read_text("utf-8").splitlines()) == 1200
    assert len((made / "pairs" / "test.fr").read_text("utf-8").splitlines()) == 60
    assert (made / "run" / "model" / "model.safetensors").is_file()
    assert (made / "run" / "metrics.jsonl").is_file()


def test_dates_and_prices_without_letters_are_read(made: Path) -> None:
    """`8/13/99` is a text to translate here, and no number to copy."""
    reading = json.loads((made / "run" / "model" / "reading.json").read_text(encoding="utf-8"))
    assert reading["letterless"] > 0.1


def test_each_translation_can_be_written_exactly(made: Path) -> None:
    """No-break spaces of amounts too."""
    tokenizer = read_tokenizer(made / "run" / "model" / "tokenizer.json")
    (file,) = [each for each in (made / "pairs").glob("valid.*") if each.suffix != ".en"]
    lines = file.read_text(encoding="utf-8").splitlines()
    assert any("\u202f" in line or "\u00a0" in line for line in lines)
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines


def test_report_says_what_was_done(made: Path) -> None:
    report = json.loads((made.parent.parent / "report.json").read_text("utf-8"))
    assert report["command"] == "demo"
    assert report["settings"]["from"] == "en"
    assert report["held_out"] == 60
    assert report["training"]["steps"] == 12
    assert 0 <= report["exact_match"] <= 1
    assert sum(report["kinds"].values()) == 1200
    assert {example["kind"] for example in report["examples"]} == {"date", "price", "duration"}
    wrong = [example for example in report["wrong"] if example["text"] != example["reference"]]
    assert len(wrong) == round(60 * (1 - report["exact_match"]))


def test_again_uses_the_model_that_is_there(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "run" / "model" / "model.safetensors").stat().st_mtime_ns
    assert main(["demo", "--out", str(made), *SMALL]) == 0
    shown = capsys.readouterr()
    assert "Using the model trained before" in shown.err
    assert (made / "run" / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert "% of 60 items" in shown.out
    assert shown.out.count("→") >= 3


def test_json_is_one_object(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(made), "--json", *SMALL]) == 0
    found = summary(capsys)
    assert found["held_out"] == 60
    assert found["training"]["steps"] == 12


def test_a_stopped_demo_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after a kill between the run's last step and the note that it is done."""
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), *SMALL]) == 0
    note = json.loads((out / "demo.json").read_text("utf-8"))
    (out / "demo.json").write_text(json.dumps({**note, "training": None}), encoding="utf-8")
    capsys.readouterr()
    assert main(["demo", "--out", str(out), *SMALL]) == 0
    assert "Resumed from step 12" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--from", "english"], "Did you mean 'en'"),
        (["--to", "en"], "the same locale, en"),
        (["--to", "xx"], "There is no locale 'xx'"),
        (["--pairs", "0"], "--pairs 0 is not above 0"),
        (["--minutes", "nan"], "--minutes nan is not above 0"),
    ],
)
def test_impossible_wishes_leave_no_trace(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo"), *flags]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "demo").exists()


def test_folders_of_other_things_are_left_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    cases = [
        (tmp_path, [], "not empty and holds no demo"),
        (tmp_path / "notes.txt", [], "This is a file"),
        (
            made,
            ["--to", "de"],
            "holds a demo made with --from en --to fr --pairs 1200 --held-out 60",
        ),
    ]
    for folder, flags, message in cases:
        assert main(["demo", "--out", str(folder), *SMALL, *flags]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_full_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    found = summary(capsys)
    assert found["exact_match"] >= 0.99
    assert found["training"]["seconds"] <= 90
    assert time.monotonic() - started <= 120
