"""`heedful translate-file` with a real translator, and with mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.cli.main import main

TEXT = "A dog runs in the snow. A man rides a bicycle.\r\n\r\n  A dog runs in the snow.\r\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def translate(*words: object) -> int:
    return main(["translate-file", *map(str, words), "--model", "en-de", "--device", "cpu"])


def test_a_document_is_translated(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    assert translate(text, out, "--json") == 0
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert (record["passages"], record["sentences"], record["command"]) == (2, 2, "translate-file")
    import heedful

    dog, man = heedful.load("en-de", device="cpu").translate(
        ["A dog runs in the snow.", "A man rides a bicycle."]
    )
    assert out.read_bytes().decode() == f"{dog} {man}\r\n\r\n  {dog}\r\n"
    assert "2 different sentences in 2 passages" in said.err


def test_a_file_is_replaced_only_if_told(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translate(text, text) == 2
    assert "--force" in capsys.readouterr().err
    assert text.read_bytes() == TEXT.encode()
    assert translate(text, text, "--force") == 0
    assert b"Hund" in text.read_bytes()


@pytest.mark.parametrize(
    ("name", "data", "flags", "words"),
    [
        ("a.doc", b"x", [], "The suffix '.doc' is of no known format. Say which format it is"),
        ("a", b"x", [], "has no suffix"),
        ("a.txt", b"x", ["--format", "txet"], "Did you mean 'text'?"),
        ("a.txt", b"a\xffb", [], "a.txt: Byte 1 (line 1) is 0xff"),
        ("a.json", b'{"a": }', [], "a.json: Line 1, column 7 is no JSON"),
        ("a.csv", b"one,two\nx,y\n", [], "Name them, for example: --columns two"),
        ("a.txt", b"x", ["--split", "words"], "--split"),
        ("a.csv", b"one,two\nx,y\n", ["--delimiter", "ab"], "delimiter"),
    ],
)
def test_mistakes_are_said_and_leave_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
    flags: list[str],
    words: str,
) -> None:
    (tmp_path / name).write_bytes(data)
    assert translate(tmp_path / name, tmp_path / "out", *flags) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_passages_left_out_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yml").write_text('a: A dog runs.\nb: "%H o\'clock, %M"\n')
    assert translate(tmp_path / "a.yml", tmp_path / "b.yml", "--json") == 0
    said = capsys.readouterr()
    reason = 'line 2 ("%H o\'clock, %M"): a format of dates or times'
    assert json.loads(said.out)["left_out"] == [reason]
    assert f"1 passage left as before:\n  {reason}\n" in said.err
    assert "Hund" in (tmp_path / "b.yml").read_text()


def test_a_damaged_structure_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from heedful.apps.documents import yaml_strings

    monkeypatch.setattr(yaml_strings, "_quoted_if_needed", lambda is_flow, content: f"- {content}")
    (tmp_path / "a.yml").write_text("a: A dog runs.\nb: 'A man.'\n")
    assert translate(tmp_path / "a.yml", tmp_path / "b.yml") == 2
    assert "structure of the document at line 1 (A dog runs.)" in capsys.readouterr().err
    assert not (tmp_path / "b.yml").exists()
    assert translate(tmp_path / "a.yml", tmp_path / "b.yml", "--lenient") == 0
    assert (tmp_path / "b.yml").read_text().startswith("a: A dog runs.\nb: 'Ein Mann")
    assert "1 passage left as before" in capsys.readouterr().err


def test_the_languages_of_the_model_are_those_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "a.xcstrings").write_text('{"sourceLanguage": "en", "strings": {"A dog": {}}}')
    assert translate(tmp_path / "a.xcstrings", tmp_path / "b.xcstrings") == 0
    strings = json.loads((tmp_path / "b.xcstrings").read_text())["strings"]
    assert "Hund" in strings["A dog"]["localizations"]["de"]["stringUnit"]["value"]


def test_a_missing_document_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert translate(tmp_path / "none.txt", tmp_path / "out.txt") == 2
    assert "none.txt" in capsys.readouterr().err
