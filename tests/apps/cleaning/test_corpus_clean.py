"""Cleaning removes what a check counts, keeps bytes, and has nothing more to do afterwards."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.cleaning.check_report import check_corpus, prepare
from heedful.apps.cleaning.cleaning_settings import CleaningSettings
from heedful.apps.cleaning.corpus_clean import clean_corpus
from heedful.cli.main import main
from heedful.data.corpus_spec import CorpusSpec
from heedful.durable import whole_folder
from heedful.errors import DataError

LINES = [
    b"The weather is lovely today.\tDas Wetter ist heute herrlich.",
    b"The weather is lovely today.\tHeute ist herrliches Wetter.",
    b"The weather is lovely today. \tDas Wetter ist heute herrlich.",
    b"The weather is lovely today.\tThe weather is lovely today.",
    b"One\tEins",
    b"ONE\tEins",
    b"no pair",
    b"bad \xff bytes\tx",
    b"\t",
    b"A lot of words without any sense.\tx",
    b"He is 12.\tEr ist 13.",
    b"nice\tsch\xc3\x83\xc2\xb6n",
    b"Ok\tO\x01k",
    b"carriage return\tWagenruecklauf\r",
]
LIMITS = CleaningSettings(languages=("en", "de"), max_targets=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=30))
def test_clean_is_idempotent_and_removes_what_check_counts(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "p.tsv", Path(folder) / "out"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        spec = CorpusSpec(file=str(path))
        checked = check_corpus(*prepare(spec, LIMITS))
        try:
            cleaned = clean_corpus(*prepare(spec, LIMITS), out)
        except DataError:
            assert checked.kept == 0
            assert not out.exists()
            return
        counts = {rule.rule: rule.removed for rule in checked.rules if rule.removed}
        assert cleaned.removed == counts
        assert cleaned.kept == checked.kept
        reasons = [row.split("\t") for row in (out / "removed.tsv").read_text().splitlines()]
        assert Counter(rules.split(",")[0] for _, rules in reasons) == counts
        gone = {int(line) for line, _ in reasons}
        left = [line for n, line in enumerate(lines, 1) if n not in gone]
        assert (out / "p.tsv").read_bytes() == b"".join(line + b"\n" for line in left)

        again = CorpusSpec(file=str(out / "p.tsv"))
        second = clean_corpus(*prepare(again, LIMITS), Path(folder) / "again")
        assert second.removed == {}
        assert (Path(folder) / "again" / "p.tsv").read_bytes() == (out / "p.tsv").read_bytes()


def write(folder: Path) -> list[str]:
    """Aligned files of which lines 2 and 4 are to go."""
    sources = ["Hello there.", "", "It is late.", "Hello there."]
    targets = ["Hallo.", "x", "Es ist spät.", "Hallo."]
    (folder / "t.en").write_text("\ufeff" + "\r\n".join(sources) + "\r\n", encoding="utf-8")
    with gzip.open(folder / "t.de.gz", "wb") as file:
        file.write("\n".join(targets).encode())
    return [str(folder / "t.en"), str(folder / "t.de.gz")]


def test_the_command_keeps_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["data", "clean", *write(tmp_path), "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert (record["pairs"], record["kept"]) == (4, 2)
    assert record["removed"] == {"empty": 1, "duplicate": 1}
    assert record["not_applied"] == ["language", "leak", "near_leak", "model"]
    assert "written 4/4" in printed.err
    assert (out / "t.en").read_bytes() == b"Hello there.\r\nIt is late.\r\n"
    assert gzip.decompress((out / "t.de.gz").read_bytes()) == "Hallo.\nEs ist spät.\n".encode()
    assert (out / "removed.tsv").read_text() == "2\tempty\n4\tduplicate\n"
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_every_rule_that_found_a_pair_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text(f"a\tb\nIt is 5.\t6 \x01 {'x' * 60}\n", encoding="utf-8")
    words = ["data", "clean", str(tmp_path / "p.tsv"), "--out", str(tmp_path / "o")]
    assert main(words) == 0
    removed = (tmp_path / "o" / "removed.tsv").read_text(encoding="utf-8")
    assert removed == "2\tcontrol_character,length_ratio,numbers\n"


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write_while_somebody_else_does() -> None:
        with whole_folder(out) as folder:
            (folder / "file").write_text("new", encoding="utf-8")
            out.mkdir()  # an empty folder would be replaced

    with pytest.raises(FileExistsError) as caught:
        write_while_somebody_else_does()
    assert caught.value.filename == str(out)
    assert list(out.iterdir()) == []
    assert list(tmp_path.iterdir()) == [out]


def test_json_lines_keep_other_keys(tmp_path: Path) -> None:
    rows = ['{"id": 1, "source": "a", "target": "b"}', '{"source": "a", "target": ""}']
    (tmp_path / "p.jsonl").write_text("\n".join(rows), encoding="utf-8")
    words = ["data", "clean", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "o")]
    assert main(words) == 0
    assert (tmp_path / "o" / "p.jsonl").read_text(encoding="utf-8") == rows[0] + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--languages", "en", "xx"], "The language 'xx' is unknown"),
        (["--languages", "en"], "There are 1 languages instead of two"),
        (["--max-length-ratio", "0.5"], "max_length_ratio"),
        (["--off", "nonsense"], "nonsense"),
        (["--off", "empty"], "empty"),
        (["--against", "missing.tsv"], "missing.tsv: No such file"),
        (["--against", "one"], "'one' has no partner"),
        (["--model", "missing"], "missing"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    files = write(tmp_path)
    before = sorted(tmp_path.iterdir())
    for verb in ("clean", "check"):
        assert main(["data", verb, *files, "--out", str(tmp_path / "out"), *words]) == 2
        assert message in capsys.readouterr().err
        assert sorted(tmp_path.iterdir()) == before


def test_nothing_left_and_a_place_that_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.tsv").write_text("a\t\n\tb\nx\n", encoding="utf-8")
    words = ["data", "clean", str(tmp_path / "p.tsv"), "--out"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "No pair would be left: 1 by no_pair, 2 by empty" in capsys.readouterr().err
    assert main([*words, str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "no" / "out")]) == 2
    assert "No such directory" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heedful.apps.cleaning.raw_pairs.PairWriter.write", full)
    files = write(tmp_path)
    assert main(["data", "clean", *files, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "No space left" in said
    assert "out" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.de.gz", "t.en"]


def test_check_and_clean_of_the_command_agree(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(b"".join(line + b"\n" for line in LINES * 3))
    against = tmp_path / "test.tsv"
    against.write_text("one\teins\nA lot of words.\tx\n", encoding="utf-8")
    rest = ["--languages", "en", "de", "--against", str(against), "--max-targets", "1"]
    checked, cleaned = tmp_path / "checked", tmp_path / "cleaned"
    assert main(["data", "check", str(path), "--out", str(checked), *rest]) == 0
    report = tmp_path / "r.json"
    words = ["data", "clean", str(path), "--out", str(cleaned), "--report", str(report), *rest]
    assert main(words) == 0
    counted = json.loads((checked / "report.json").read_text(encoding="utf-8"))
    removed = json.loads(report.read_text(encoding="utf-8"))["removed"]
    assert {
        rule["rule"]: rule["removed"] for rule in counted["rules"] if rule["removed"]
    } == removed
    assert removed["near_leak"] == 2 * 3
    assert len((cleaned / "removed.tsv").read_text().splitlines()) == sum(removed.values())


def test_a_model_tells_pairs_from_shuffled_ones(tmp_path: Path) -> None:
    """By the translator that comes with Heedful, through the command."""
    pairs = [
        ("I have to do it again.", "Ich muss es noch einmal machen."),
        ("This house belongs to Tom.", "Dieses Haus gehört Tom."),
        ("They live in a small house.", "Sie wohnen in einem kleinen Haus."),
        ("Tom forgot to sign his name.", "Wir können heute zusammen schwimmen."),
    ]
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    out = tmp_path / "out"
    words = ["data", "clean", str(path), "--out", str(out), "--model", "en-de", "--device", "cpu"]
    assert main(words) == 0
    assert (out / "removed.tsv").read_text() == "4\tmodel\n"
