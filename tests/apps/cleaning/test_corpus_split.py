"""Splitting by source sentence: every pair is somewhere, no sentence is in two parts."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.cleaning.corpus_split import split_corpus
from heedful.cli.main import main
from heedful.data.corpus_spec import CorpusSpec
from heedful.errors import DataError

PARTS = ("train", "valid", "test")
Lines = list[tuple[str, str]]


def write_tsv(path: Path, pairs: Lines) -> CorpusSpec:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return CorpusSpec(file=str(path))


def read_parts(folder: Path) -> dict[str, list[str]]:
    files = {name: folder / f"{name}.tsv" for name in PARTS}
    return {
        name: file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        for name, file in files.items()
    }


def split(pairs: Lines, **sizes: int) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        spec = write_tsv(Path(folder) / "pairs.tsv", pairs)
        split_corpus(spec, Path(folder) / "out", **sizes)
        return read_parts(Path(folder) / "out")


def sentence(line: str) -> str:
    """A source without case, punctuation and spaces, by categories of its characters."""
    folded = unicodedata.normalize("NFKC", line.split("\t")[0]).casefold()
    kept = [c for c in folded if unicodedata.category(c)[0] in "LN"]
    return "".join(kept) or line.split("\t")[0].strip()


TEXTS = st.text(alphabet="aAbB c.!", min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=12, max_size=40), st.integers(0, 3))
def test_every_pair_is_in_one_part_and_every_sentence(pairs: Lines, seed: int) -> None:
    try:
        parts = split(pairs, valid=3, test=4, seed=seed)
    except DataError:  # a part would be empty: one sentence has nearly all pairs
        assert len({sentence(f"{a}\t{b}") for a, b in pairs}) < 12
        return
    assert sorted(line for lines in parts.values() for line in lines) == sorted(
        f"{a}\t{b}" for a, b in pairs
    )
    sentences = [{sentence(line) for line in lines} for lines in parts.values()]
    assert not sentences[0] & sentences[1]
    assert not sentences[0] & sentences[2]
    assert not sentences[1] & sentences[2]
    assert len(parts["valid"]) <= 3
    assert len(parts["test"]) <= 4
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    again = split(shuffled, valid=3, test=4, seed=seed)
    assert {n: sorted(p) for n, p in again.items()} == {n: sorted(p) for n, p in parts.items()}


def test_sizes_are_reached_and_the_seed_matters() -> None:
    pairs = [(f"word {n}", f"Wort {n}") for n in range(200)]
    first, other = (split(pairs, valid=20, test=30, seed=seed) for seed in (1, 2))
    assert [len(first[name]) for name in PARTS] == [150, 20, 30]
    assert first["test"] != other["test"]
    assert first["train"] == [
        f"{a}\t{b}" for a, b in pairs if f"{a}\t{b}" not in first["valid"] + first["test"]
    ]


def test_a_sentence_larger_than_a_part_does_not_keep_it_from_its_size() -> None:
    pairs = [("Hello!", f"Hallo {n}") for n in range(50)] + [(f"w{n}", "x") for n in range(40)]
    for seed in range(5):
        parts = split(pairs, valid=10, test=10, seed=seed)
        assert [len(parts[name]) for name in PARTS] == [70, 10, 10]
        assert sum("Hello!" in line for line in parts["train"]) == 50


def test_aligned_files_keep_their_form_and_bytes(tmp_path: Path) -> None:
    for folder in ("en", "de"):
        (tmp_path / folder).mkdir()
    lines = [f"w{n} \r\n".encode() for n in range(30)]
    (tmp_path / "en" / "text.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"".join(lines)))
    (tmp_path / "de" / "text.gz").write_bytes(gzip.compress(b"".join(lines)[:-2]))
    files = [str(tmp_path / side / "text.gz") for side in ("en", "de")]
    out = tmp_path / "out"
    words = ["data", "split", *files, "--out", str(out), "--valid", "0", "--test", "5"]
    assert main(words) == 0
    assert {f.name for f in out.iterdir()} == {
        f"{side}-{part}.gz" for side in ("source", "target") for part in ("train", "test")
    }
    test = gzip.decompress((out / "source-test.gz").read_bytes())
    train = gzip.decompress((out / "source-train.gz").read_bytes())
    assert sorted((test + train).splitlines(keepends=True)) == sorted(lines)
    assert test.count(b"\n") == 5
    assert not any(p.name.endswith(".partial") for p in tmp_path.iterdir())


def test_json_lines_keep_other_keys(tmp_path: Path) -> None:
    rows = [{"id": n, "source": f"a{n}", "target": f"b{n}"} for n in range(9)]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    split_corpus(CorpusSpec(file=str(path)), tmp_path / "o", valid=2, test=2)
    texts = [(tmp_path / "o" / f"{n}.jsonl").read_text(encoding="utf-8") for n in PARTS]
    found = [json.loads(line) for text in texts for line in text.splitlines()]
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"a\tb\nc\n", [], "pairs.tsv:2: There are 1 fields"),
        (b"a\tb\nc\xff\td\n", [], "pairs.tsv:2: Line 2 is not UTF-8"),
        (b"", [], "The corpus holds no pairs"),
        (b"a\tb\n", ["--valid", "1", "--test", "0"], "leaves none for train"),
        (b"a\tb\nA\tc\n", ["--valid", "1", "--test", "0"], "leaves none for valid"),
        (b"a\tb\n", ["--valid", "-1"], "--valid -1"),
        (b"a\tb\n", ["--valid", "0", "--test", "0"], "nothing to split off"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    words: list[str],
    message: str,
) -> None:
    path, out = tmp_path / "pairs.tsv", tmp_path / "out"
    path.write_bytes(content)
    assert main(["data", "split", str(path), "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_different_length_and_other_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("1\n2\n", encoding="utf-8")
    (tmp_path / "b").write_text("1\n", encoding="utf-8")
    out = ["--out", str(tmp_path / "out")]
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    for words, message in (
        ([*files, *out], "source has 2 lines and its target has 1"),
        ([files[0], *out], "has no partner"),
        ([*files, *files, *out], "There are 2 corpora instead of one"),
        ([*out], "There are 0 corpora instead of one"),
        ([*files, "--out", str(tmp_path)], "exists already"),
        ([files[0], str(tmp_path / "none"), *out], "No such file"),
    ):
        assert main(["data", "split", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_tsv(tmp_path / "pairs.tsv", [(f"a{n}", "b") for n in range(9)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heedful.apps.cleaning.raw_pairs.PairWriter.write", full)
    words = ["data", "split", str(spec.file), "--out", str(tmp_path / "out"), "--valid", "1"]
    assert main([*words, "--test", "1"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


def test_a_first_word_alone_says_what_may_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert "data split" in capsys.readouterr().err
    for words in (["data", "--help"], ["--help", "data"]):
        assert main(words) == 0
        assert "data split" in capsys.readouterr().out
