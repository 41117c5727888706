"""Shard folders: made of every form of corpus, read as they were written or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from heedful.apps.shards.shard_writer import write_shards
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import CorpusReader
from heedful.data.shard_folder import ShardFolder, open_shards
from heedful.errors import DataError

PAIRS = [(f"source {i}, é \u2028", f"target {i}\twith tab" if i % 3 else "") for i in range(25)]


def pairs_file(folder: Path) -> CorpusSpec:
    path = folder / "pairs.jsonl.gz"
    lines = [json.dumps({"source": s, "target": t}) + "\n" for s, t in PAIRS]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return CorpusSpec(file=str(path))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards([pairs_file(tmp_path)], tmp_path / "shards", shard_examples=10)
    return tmp_path / "shards"


def index_of(folder: Path) -> dict:
    return json.loads((folder / "index.json").read_text())


def change_index(folder: Path, **changes: object) -> None:
    (folder / "index.json").write_text(json.dumps(index_of(folder) | changes))


def test_shards_hold_the_pairs_in_their_order(shards: Path) -> None:
    folder = ShardFolder(shards, "pairs")
    assert len(folder) == 25
    assert folder.starts.tolist() == [0, 10, 20, 25]
    assert [p for n, size in enumerate((10, 10, 5)) for p in folder.pairs(n, range(size))] == PAIRS
    assert folder.pairs(1, [7, 0]) == [PAIRS[17], PAIRS[10]]
    assert folder.text_bytes == sum(len(t.encode()) for pair in PAIRS for t in pair)
    assert folder.line_of(12) == f"{shards}/shard-000001.jsonl.gz:3"


def test_a_shard_is_a_corpus_of_its_own(shards: Path) -> None:
    read = CorpusReader(CorpusSpec(file=str(shards / "shard-000002.jsonl.gz")))
    assert [(source, target) for _, source, target in read] == PAIRS[20:]


def test_every_form_gives_the_same_shards(tmp_path: Path) -> None:
    pairs = [(source, target.replace("\t", " ")) for source, target in PAIRS]
    for side, name in enumerate(("a.src", "a.tgt")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs))
    (tmp_path / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    aligned = CorpusSpec(source=str(tmp_path / "a.src"), target=str(tmp_path / "a.tgt"))
    for out, spec in (("one", aligned), ("two", CorpusSpec(file=str(tmp_path / "a.tsv")))):
        write_shards([spec], tmp_path / out, shard_examples=7)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["index.json", *(f"shard-00000{i}.jsonl.gz" for i in range(4))]
    assert (tmp_path / "one" / names[1]).read_bytes()[4:8] == bytes(4)  # gzip's time of writing
    assert all(
        (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        for name in names
    )


def test_texts_keep_their_lines(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("one\ntwo\n\n\nthree\n")
    spec = CorpusSpec(file=str(tmp_path / "book.txt"))
    write_shards([spec, spec], tmp_path / "out", shard_examples=3, unit="paragraph")
    folder = ShardFolder(tmp_path / "out", "texts")
    assert folder.texts(0, range(3)) == ["one\ntwo", "three", "one\ntwo"]
    assert folder.texts(1, [0]) == ["three"]


def test_a_shard_ends_where_it_has_much_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.apps.shards.shard_writer.LARGEST_TEXT", 40)
    index = write_shards([pairs_file(tmp_path)], tmp_path / "out", shard_examples=1000)
    assert len(index.shards) > 10
    assert all(shard.text_bytes < 40 + 40 for shard in index.shards)


def test_nothing_is_left_of_a_corpus_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n" * 30 + "no pair\n")
    with pytest.raises(DataError, match=r"a\.tsv:31"):
        write_shards(
            [CorpusSpec(file=str(tmp_path / "a.tsv"))], tmp_path / "out", shard_examples=10
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


def test_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    spec = CorpusSpec(file=str(tmp_path / "a.jsonl"))
    with pytest.raises(DataError, match=r"a\.jsonl:2.*surrogate"):
        write_shards([spec], tmp_path / "out", shard_examples=10, unit="line")


def test_what_is_wrong_with_a_shard_is_named(shards: Path) -> None:
    path = shards / "shard-000001.jsonl.gz"
    whole = path.read_bytes()
    folder = ShardFolder(shards, "pairs")
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"shard-000001.*cut short"):
        folder.pairs(1, [0])
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(DataError, match=r"shard-000001.*SHA-256 differs"):
        folder.pairs(1, [0])
    path.unlink()
    with pytest.raises(DataError, match=r"shard-000001.*is missing"):
        folder.pairs(1, [0])
    assert folder.pairs(0, [0]) == PAIRS[:1]  # the others can be used


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"source": "a"}\n', r"shard-000000\.jsonl\.gz:1.*no 'target'"),
        (b"[1]\n", r"shard-000000\.jsonl\.gz:1.*list instead of an object"),
        (b"a\n", r"shard-000000\.jsonl\.gz:1.*not JSON"),
        (b"a\nb\n", r"2 lines, and the index says 1"),
        (b"a", r"0 lines, and the index says 1"),
    ],
)
def test_lines_that_are_no_pairs_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    packed = gzip.compress(content)
    (tmp_path / "shard-000000.jsonl.gz").write_bytes(packed)
    entry = {"file": "shard-000000.jsonl.gz", "examples": 1, "bytes": len(packed)}
    entry |= {"text_bytes": 1, "sha256": hashlib.sha256(packed).hexdigest()}
    index = {"schema_version": 1, "kind": "pairs", "shards": [entry]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        ShardFolder(tmp_path, "pairs").pairs(0, [0])


def test_a_folder_that_is_none_of_shards_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hold pairs, and this task is trained on texts"):
        ShardFolder(shards, "texts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no index\.json.*heedful data shard"):
        ShardFolder(tmp_path / "empty", "pairs")
    entries = index_of(shards)["shards"]
    for changes, message in [
        ({"schema_version": 2}, r"schema version 2, and this program reads 1"),
        ({"shards": []}, "damaged"),
        ({"shards": [entries[0] | {"file": "../shard.gz"}]}, "no file of the folder"),
        ({"shards": [entries[0] | {"examples": "ten"}]}, r"damaged.*examples"),
    ]:
        copy = tmp_path / "copy"
        shutil.copytree(shards, copy)
        change_index(copy, **changes)
        with pytest.raises(DataError, match=message):
            ShardFolder(copy, "pairs")
        shutil.rmtree(copy)
    (shards / "index.json").write_text("[")
    with pytest.raises(DataError, match="index cannot be read"):
        ShardFolder(shards, "pairs")


def test_the_fingerprint_is_of_the_content(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "moved")
    first = ShardFolder(shards, "pairs").fingerprint
    assert ShardFolder(tmp_path / "moved", "pairs").fingerprint == first
    change_index(tmp_path / "moved", shards=index_of(shards)["shards"][::-1])
    assert ShardFolder(tmp_path / "moved", "pairs").fingerprint != first


def test_reverse_languages_are_refused(tmp_path: Path) -> None:
    for name, languages in (("a", ("en", "de")), ("b", ("de", "en")), ("c", ("en", "fr"))):
        write_shards([pairs_file(tmp_path)], tmp_path / name, shard_examples=9, languages=languages)
    specs = {name: CorpusSpec(shards=str(tmp_path / name)) for name in "abc"}
    assert len(open_shards([specs["a"], specs["c"]], "pairs")) == 2
    with pytest.raises(DataError, match="languages are mixed up"):
        open_shards([specs["a"], specs["c"], specs["b"]], "pairs")
