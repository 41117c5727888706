"""`heedful translate --check` through the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from heedful.apps.quality.text_checks import CHECKS
from heedful.cli.main import main

TEXT = b"A man rides a bicycle.\n\nGo to http://www.example.org/x?y=1 now.\n"


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    status: int
    lines: list[str]
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_it(*words: object, stdin: bytes = TEXT) -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        # Nothing is kept, so that the address is lost and the translation in doubt.
        start = ["translate", "en-de", "--device", "cpu", "--protect", "none"]
        status = main([*start, *map(str, words)])
        captured = capsys.readouterr()
        return Ran(status, captured.out.split("\n")[:-1], captured.err)

    return run_it


def test_names_of_failed_checks_follow_each_translation(run: Run) -> None:
    plain, checked = run(), run("--check")
    assert checked.status == 0
    columns = [line.split("\t") for line in checked.lines]
    assert [text for text, _ in columns] == plain.lines
    assert columns[0][1] == columns[1][1] == "ok"
    assert "urls" in columns[2][1].split(",")


def test_json_holds_the_whole_report(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "report.json"
    done = run("--check", "--check-source", "--json", "--report", record)
    items = [json.loads(line) for line in done.lines]
    assert {each["name"] for each in items[0]["report"]["checks"]} == set(CHECKS)
    assert items[0]["report"]["failed"] == []
    urls = next(each for each in items[2]["report"]["checks"] if each["name"] == "urls")
    assert urls["evidence"][0]["text"] == "http://www.example.org/x?y=1"
    assert "alignment" not in items[0]
    assert json.loads(record.read_text())["in_doubt"] == 1


def test_other_columns_stay_where_they_were(run: Run) -> None:
    words = ("--scores", "--alignment", "--n-best", "2", "--beam", "3")
    plain, checked = run(*words), run(*words, "--check")
    assert [line.rpartition("\t")[0] for line in checked.lines] == plain.lines


@pytest.mark.parametrize("languages", ["german", "en-", "en-de-fr", "1-2"])
def test_languages_are_pairs_of_codes(run: Run, languages: str) -> None:
    done = run("--check", "--languages", languages)
    assert done.status == 2
    assert "--languages" in done.err


def test_named_languages_go_before_those_of_the_card(run: Run) -> None:
    done = run("--check", "--languages", "en-ru", stdin=b"The man sees the dog in the garden.\n")
    assert done.lines[0].endswith("\tscript,language")


@pytest.mark.parametrize(
    ("words", "third"),
    [
        (["--on-doubt", "mark"], "[?] "),
        (["--on-doubt", "mark", "--mark", "-- "], "-- "),
        (["--on-doubt", "source"], "Go to http://www.example.org/x?y=1 now."),
    ],
)
def test_doubtful_translations_are_marked_or_replaced(
    run: Run, words: list[str], third: str
) -> None:
    plain, done = run(), run(*words)
    assert done.status == 0
    assert done.lines[:2] == plain.lines[:2]
    assert done.lines[2] == (third if third.endswith(".") else third + plain.lines[2])


def test_doubt_can_fail_and_loses_nothing(run: Run, tmp_path: Path) -> None:
    plain, out = run(), tmp_path / "out.txt"
    done = run("--on-doubt", "fail", "-o", out)
    assert done.status == 1
    assert "1 of 3 translations are in doubt: line 3." in done.err
    assert out.read_text(encoding="utf-8").split("\n")[:-1] == plain.lines
    assert run("--on-doubt", "fail", stdin=b"A man rides a bicycle.\n").status == 0


def test_second_tries_are_counted(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "report.json"
    done = run("--second-try", "--check", "--report", record)
    assert done.status == 0
    counts = json.loads(record.read_text())
    assert counts["in_doubt"] == 1
    assert counts["replaced"] in (0, 1)


@pytest.mark.parametrize("mark", ["a\nb", "a\tb", ""])
def test_a_mark_stays_within_its_column(run: Run, mark: str) -> None:
    done = run("--on-doubt", "mark", "--mark", mark)
    assert done.status == 2
    assert "--mark" in done.err


def test_given_translations_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, report = (tmp_path / name for name in ("a.en", "a.de", "report.json"))
    source.write_text("He has 12 sons.\nHe does not sing in the old house today.\n")
    target.write_text("Er hat Söhne.\nEr singt heute nicht in dem alten Haus.\n")
    words = ["check", str(source), str(target), "--report", str(report)]
    assert main([*words, "--languages", "en-de"]) == 0
    assert capsys.readouterr().out.split() == ["numbers", "ok"]
    assert json.loads(report.read_text())["in_doubt"] == 1
    assert main([*words, "--fail", "--json"]) == 1  # the languages are detected
    captured = capsys.readouterr()
    assert [json.loads(line)["failed"] for line in captured.out.splitlines()] == [["numbers"], []]
    assert "1 of 2 translations are in doubt" in captured.err
    assert main([*words, "--model", "en-de", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["numbers", "ok"]
    assert "a translation passes if" in captured.err


def test_pairs_without_faults_are_counted_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = (tmp_path / name for name in ("a.en", "a.de"))
    source.write_text("He has 12 sons.\nShe sings.\n")
    target.write_text("Er hat 12 Söhne.\nSie singt.\n")
    words = ["check", str(source), str(target), "--languages", "en-de"]
    assert main(words) == 0
    assert capsys.readouterr().err == "2 pairs checked, nothing found.\n"
    assert main([*words, "--json"]) == 0
    assert "checked" not in capsys.readouterr().err
