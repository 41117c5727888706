"""Reading corpora: what is a line, what is a pair, and errors that name file, line and remedy."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.idx_files import read_images
from heedful.data.pair_corpus import CorpusReader, CorpusTexts, content_hash, line_name
from heedful.data.text_file import LongWords, TextFile
from heedful.errors import DataError


def aligned(folder: Path, source: bytes, target: bytes) -> CorpusSpec:
    (folder / "s.txt").write_bytes(source)
    (folder / "t.txt").write_bytes(target)
    return CorpusSpec(source=str(folder / "s.txt"), target=str(folder / "t.txt"))


def single(folder: Path, name: str, content: bytes) -> CorpusSpec:
    (folder / name).write_bytes(content)
    return CorpusSpec(file=str(folder / name))


def read(spec: CorpusSpec) -> list[tuple[int, str, str]]:
    return [tuple(pair) for pair in CorpusReader(spec)]


def refused(spec: CorpusSpec, message: str) -> DataError:
    with pytest.raises(DataError, match=message) as caught:
        read(spec)
    assert caught.value.where
    assert caught.value.remedy
    return caught.value


def test_aligned_files(tmp_path: Path) -> None:
    spec = aligned(tmp_path, b"one\n\n three ", b"eins\nzwei\ndrei\n")
    assert read(spec) == [(1, "one", "eins"), (2, "", "zwei"), (3, " three ", "drei")]
    assert line_name(spec, 3) == f"{tmp_path / 's.txt'}:3"


def test_a_prefix_stands_before_every_source_with_text(tmp_path: Path) -> None:
    plain = aligned(tmp_path, b"one\n\nthree\n", b"eins\nzwei\ndrei\n")
    spec = plain.model_copy(update={"task_prefix": "say: "})
    assert read(spec) == [(1, "say: one", "eins"), (2, "", "zwei"), (3, "say: three", "drei")]
    assert next(iter(CorpusTexts([spec], "source", LongWords("bpe")))) == "say: one"
    # Encoded corpora are kept by this hash.
    assert content_hash(spec) != content_hash(plain)


def test_shards_have_no_prefix() -> None:
    with pytest.raises(ValueError, match="before they are made into shards"):
        CorpusSpec(shards="folder", task_prefix="say: ")


def test_a_line_ends_at_line_feeds_only(tmp_path: Path) -> None:
    odd = "a\u2028b\x85c\x0bd\x0ce\x1cf\u2029g\rh"
    spec = aligned(tmp_path, f"{odd}\nx\n".encode(), b"1\n2\n")
    assert read(spec) == [(1, odd, "1"), (2, "x", "2")]


def test_carriage_returns_and_byte_order_marks_are_left_out(tmp_path: Path) -> None:
    spec = aligned(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", b"eins\nzwei\n\n"[:-1])
    reader = CorpusReader(spec)
    assert [tuple(pair) for pair in reader] == [(1, "one", "eins"), (2, "two", "zwei")]
    source, target = reader.facts
    assert source.byte_order_mark
    assert source.carriage_returns == 2
    assert not target.byte_order_mark
    assert target.carriage_returns == 0


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(b"one\teins\n", mtime=0))
    (tmp_path / "pairs.tsv").write_bytes(gzip.compress(b"one\teins\n", mtime=0))
    for name in ("pairs.tsv.gz", "pairs.tsv"):
        reader = CorpusReader(CorpusSpec(file=str(tmp_path / name)))
        assert [tuple(pair) for pair in reader] == [(1, "one", "eins")]
        assert reader.facts[0].compressed


def test_jsonl(tmp_path: Path) -> None:
    line = {"target": "zwei\u2028", "source": "two\t", "id": 7}
    spec = single(tmp_path, "pairs.jsonl", json.dumps(line).encode() + b"\n")
    assert read(spec) == [(1, "two\t", "zwei\u2028")]


@given(
    pairs=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\n\t\r\0"))] * 2),
        min_size=1,
    )
)
@settings(max_examples=50)
def test_every_form_holds_the_same_pairs(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    first = pairs[0][0].lstrip("\ufeff")
    pairs = [(first, pairs[0][1].lstrip("\ufeff")), *pairs[1:]]
    specs = [
        aligned(
            folder,
            "".join(f"{source}\n" for source, _ in pairs).encode(),
            "".join(f"{target}\n" for _, target in pairs).encode(),
        ),
        single(folder, "p.tsv", "".join(f"{s}\t{t}\n" for s, t in pairs).encode()),
        single(
            folder,
            "p.jsonl",
            "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs).encode(),
        ),
    ]
    expected = [(line, *pair) for line, pair in enumerate(pairs, start=1)]
    for spec in specs:
        assert read(spec) == expected
        assert (
            list(CorpusTexts([spec, spec], "target", LongWords("bpe"))) == [t for _, t in pairs] * 2
        )


@pytest.mark.parametrize("swapped", [False, True])
def test_files_out_of_step(tmp_path: Path, swapped: bool) -> None:
    sides = b"1\n2\n3\n4\n5\n", b"1\n2\n3\n"
    spec = aligned(tmp_path, *(reversed(sides) if swapped else sides))
    counts = (3, 5) if swapped else (5, 3)
    error = refused(spec, "source has {} lines and its target has {}".format(*counts))
    assert error.where == f"{spec.source} and {spec.target}"


def test_missing_files_directories_and_locked_files(tmp_path: Path) -> None:
    good = single(tmp_path, "good.tsv", b"a\tb\n")
    refused(CorpusSpec(file=str(tmp_path / "no.tsv")), "No such file")
    (tmp_path / "folder.tsv").mkdir()
    refused(CorpusSpec(file=str(tmp_path / "folder.tsv")), "This is a directory")
    with pytest.raises(DataError, match="No such file"):
        content_hash(CorpusSpec(file=str(tmp_path / "no.tsv")))
    if os.name != "nt" and os.geteuid() != 0:
        (tmp_path / "good.tsv").chmod(0)
        refused(good, "Cannot be opened")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = single(tmp_path, "locked.tsv", b"a\tb\n")

    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", locked)
    assert "Permission denied" in str(refused(spec, "Cannot be opened"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\xe4\td\n", "Line 2 is not UTF-8 .byte 2 of the line is 0xe4"),
        (b"a\tb\nc\td\x00\n", "Line 2 holds a NUL byte .byte 4"),
        ("a\tb\n".encode("utf-16"), "byte order mark of UTF-16"),
        ("a\tb\n".encode("utf-16-le"), "NUL byte"),
        (b"", "no pairs"),
        (b"a\tb\n\n", "1 fields"),
        (b"a\tb\tc\n", "3 fields"),
        (gzip.compress(b"a\tb\n" * 9999, mtime=0)[:-20], "Cannot be read past line"),
        (
            gzip.compress(b"a\tb\n", mtime=0)[:10] + b"\xff" * 30,
            "Cannot be read past line",
        ),  # not deflate
        (gzip.compress(b"a\tb\n")[:-8] + b"\x00" * 8, "Cannot be read past line"),  # wrong checksum
    ],
    ids=[
        "not-utf-8",
        "nul",
        "utf-16",
        "utf-16-unmarked",
        "empty",
        "no-tab",
        "two-tabs",
        "cut-gzip",
        "not-deflate",
        "wrong-checksum",
    ],
)
def test_bad_tsv(tmp_path: Path, content: bytes, message: str) -> None:
    spec = single(tmp_path, "bad.tsv", content)
    assert "bad.tsv" in str(refused(spec, message))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{'source': 1}", "not JSON"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
        ('["a", "b"]', "holds list"),
        ('{"x": "a", "y": "b"}', "no 'source' or 'target'; keys found: 'x', 'y'"),
        ("{}", "keys found: none"),
        ('{"source": "a", "target": 5}', "'target' is not text"),
        ('{"source": "a", "target": "b\\nc"}', "'target' holds a line break"),
        ('{"source": "\\u0000", "target": "b"}', "'source' holds"),
        ('{"source": "\\ud800", "target": "b"}', "'source' holds"),
    ],
)
def test_bad_jsonl(tmp_path: Path, line: str, message: str) -> None:
    good = '{"source": "a", "target": "b"}'
    spec = single(tmp_path, "bad.jsonl", f"{good}\n{line}\n{good}\n".encode())
    assert refused(spec, message).where == f"{tmp_path / 'bad.jsonl'}:2"


def test_names_that_say_nothing_of_the_form(tmp_path: Path) -> None:
    refused(single(tmp_path, "pairs.txt", b"a\tb\n"), "read from .tsv, .csv, .jsonl")
    refused(single(tmp_path, "pairs.tsv.gz", b"a\tb\n"), "not compressed")


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    reader = CorpusReader(single(tmp_path, "p.tsv", b"a\tb\n" * 100))
    assert reader.progress == (0, 400)
    assert len(list(reader)) == 100
    assert reader.progress == (400, 400)


def test_earlier_damage_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_bytes("ok\n\ufffd\nok\n\ufffd\ufffd\n".encode())
    file = TextFile(tmp_path / "f.txt")
    assert len(list(file)) == 4
    assert (file.facts.replaced, file.facts.replaced_examples) == (2, [2, 4])


def test_content_hash_follows_bytes_not_names(tmp_path: Path) -> None:
    first = content_hash(single(tmp_path, "a.tsv", b"a\tb\n"))
    assert content_hash(single(tmp_path, "b.tsv", b"a\tb\n")) == first
    assert content_hash(single(tmp_path, "b.tsv", b"a\tc\n")) != first
    one = content_hash(aligned(tmp_path, b"ab\n", b"c\n"))
    assert content_hash(aligned(tmp_path, b"a\n", b"bc\n")) != one
    assert content_hash(aligned(tmp_path, b"c\n", b"ab\n")) != one


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_is_refused(tmp_path: Path) -> None:
    """Opening one that nobody writes to would wait for ever."""
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"named pipe.*") as caught:
        TextFile(tmp_path / "pipe.txt")
    assert caught.value.remedy is not None
    assert "to a file" in caught.value.remedy
    os.mkfifo(tmp_path / "images")
    with pytest.raises(DataError, match="named pipe"):
        read_images(tmp_path / "images")
    assert list(TextFile(os.devnull)) == []
