"""Texts out of files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.text_corpus import DocumentReader, Unit, document_reader
from heedful.errors import DataError

TEXT = "one\ntwo\n\n\nthree\n \nfour"


def read(path: Path, unit: Unit) -> list[tuple[int, str]]:
    return [tuple(document) for document in DocumentReader(path, unit)]


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("file", [(1, TEXT + "\n")]),
        ("paragraph", [(1, "one\ntwo"), (5, "three"), (7, "four")]),
        ("line", [(1, "one"), (2, "two"), (5, "three"), (7, "four")]),
    ],
)
def test_units(tmp_path: Path, name: str, unit: Unit, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / name
    content = TEXT.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(path, unit) == expected


def test_jsonl_holds_a_text_a_line_line_breaks_included(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "a\\nb", "id": 1}\n{"text": " "}\n{"text": "c"}\n', encoding="utf-8")
    assert read(path, "file") == [(1, "a\nb"), (3, "c")]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"", "no text"),
        ("a.txt", b" \n\n", "no text"),
        ("a.txt", b"good\nbad \xff\n", "Line 2 is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "a.jsonl:2"),
        ("a.jsonl", b"[]\n", "a.jsonl:1"),
        ("a.jsonl", b"{\n", "a.jsonl:1"),
    ],
)
def test_what_is_no_text_is_told_with_its_place(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        read(tmp_path / name, "file")
    assert told in str(error.value)
    assert name in str(error.value)


def test_a_missing_file_is_told() -> None:
    with pytest.raises(DataError, match="nowhere"):
        DocumentReader(Path("nowhere.txt"), "file").content_hash()


def test_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="single files"):
        document_reader(CorpusSpec(source="a", target="b"), "file")


def test_the_hash_tells_contents_and_ways_of_reading_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("x")
    second.write_text("y")
    hashes = {
        DocumentReader(first, "file").content_hash(),
        DocumentReader(first, "line").content_hash(),
        DocumentReader(second, "file").content_hash(),
    }
    assert len(hashes) == 3
    second.write_text("x")
    assert DocumentReader(second, "file").content_hash() in hashes
