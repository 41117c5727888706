"""Pairs and labelled texts as people have them: tables, named keys, folders, tar files."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from heedful.data.corpus_spec import PAIR_FORMS, CorpusSpec, DataSpec
from heedful.data.pair_corpus import CorpusReader, content_hash
from heedful.data.table_file import FORMATS
from heedful.data.text_corpus import DocumentReader, labelled_reader, question_reader, tagged_reader
from heedful.errors import ConfigError, DataError

from ..examples import slow_examples

Pairs = list[tuple[str, str]]
LANGUAGES = ("en", "de")
PAIRS = [("A dog, “big”.", "Ein Hund; groß."), ('"two" cats', "zwei\u2028Katzen"), ("", " ")]


def columns(pairs: Pairs) -> dict[str, list[str]]:
    return {"en": [source for source, _ in pairs], "de": [target for _, target in pairs]}


def nested(pairs: Pairs) -> list[dict[str, Any]]:
    return [{"id": 1, "translation": {"de": target, "en": source}} for source, target in pairs]


def write_parquet(path: Path, pairs: Pairs) -> None:
    table = pyarrow.Table.from_pylist(nested(pairs))
    vectors = pyarrow.array([[0.5]] * len(pairs))
    raw = pyarrow.array([b"\xff"] * len(pairs))
    parquet.write_table(table.append_column("vector", vectors).append_column("raw", raw), path)


def write_csv(path: Path, pairs: Pairs, delimiter: str = ",") -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerows([("id", "EN", "DE"), *(("1", *pair) for pair in pairs)])


def write_tar(path: Path, pairs: Pairs) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number, pair in enumerate(pairs):
            values = zip(("jpg", "src", "tgt"), (b"\xff", *(t.encode() for t in pair)), strict=True)
            for ending, content in values:
                member = tarfile.TarInfo(f"part/{number:04}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_stream(folder: Path, pairs: Pairs) -> None:
    """Write as `save_to_disk` of `datasets` does."""
    folder.mkdir()
    names = [f"data-0000{part}-of-00002.arrow" for part in (0, 1)]
    middle = len(pairs) // 2
    for name, part in zip(names, (pairs[:middle], pairs[middle:]), strict=True):
        table = pyarrow.Table.from_pylist(nested(part), pyarrow.schema(SCHEMA))
        with pyarrow.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_indices": None}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "dataset_info.json").write_text("{}", encoding="utf-8")


SIDES = pyarrow.struct([("de", pyarrow.string()), ("en", pyarrow.large_string())])
SCHEMA = [("id", pyarrow.int64()), ("translation", SIDES)]
WRITERS: dict[str, Callable[[Path, Pairs], None]] = {
    "p.parquet": write_parquet,
    "p.feather": lambda path, pairs: feather.write_feather(pyarrow.table(columns(pairs)), path),
    "p.csv": write_csv,
    "p.tar.gz": write_tar,
    "folder": write_stream,
    "p.json": lambda path, pairs: path.write_text(json.dumps(nested(pairs), indent=1)) and None,
    "p.ndjson": lambda path, pairs: (
        path.write_text("".join(json.dumps(row) + "\n" for row in nested(pairs))) and None
    ),
    "p.jsonl": lambda path, pairs: (
        path.write_text(
            "".join(json.dumps({"en_XX": s, "de_DE": t}) + "\n" for s, t in pairs), "utf-8"
        )
        and None
    ),
}

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0\ufeff"), max_size=8)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
@settings(max_examples=slow_examples(25))
def test_every_form_holds_the_same_pairs(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    for name, write in WRITERS.items():
        write(folder / name, pairs)
        reader = CorpusReader(CorpusSpec(file=str(folder / name), languages=LANGUAGES))
        found = [tuple(pair) for pair in reader]
        assert found == [(row, *pair) for row, pair in enumerate(pairs, 1)], name
        done, total = reader.progress
        assert 0 < done <= total


def test_zstd_is_told_by_content(tmp_path: Path) -> None:
    text = b"one\teins\ntwo\tzwei\n"
    for name in ("pairs.tsv.zst", "pairs.tsv"):
        with pyarrow.output_stream(tmp_path / name, compression="zstd") as file:
            file.write(text)
        pairs = CorpusReader(CorpusSpec(file=str(tmp_path / name)))
        assert [tuple(pair) for pair in pairs] == [(1, "one", "eins"), (2, "two", "zwei")]
    (tmp_path / "plain.tsv.zst").write_bytes(text)
    with pytest.raises(DataError, match="not compressed with zstd"):
        CorpusReader(CorpusSpec(file=str(tmp_path / "plain.tsv.zst")))


def test_the_folder_of_a_library_and_its_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(nested(PAIRS))
    datasets.DatasetDict({"train": whole}).save_to_disk(tmp_path / "all")
    whole.select([2, 0]).save_to_disk(tmp_path / "some")
    with pytest.raises(DataError, match="splits train"):
        CorpusReader(CorpusSpec(file=str(tmp_path / "all")))
    spec = CorpusSpec(file=str(tmp_path / "all" / "train"), languages=LANGUAGES)
    assert [pair[1:] for pair in CorpusReader(spec)] == PAIRS
    spec = CorpusSpec(file=str(tmp_path / "some"), languages=LANGUAGES)
    assert [pair[1:] for pair in CorpusReader(spec)] == [PAIRS[2], PAIRS[0]]


@pytest.mark.parametrize(
    ("name", "content", "keys", "expected"),
    [
        # Exports of Tatoeba: numbers and sentences in turn, without a header.
        ("t.tsv", "7\tHi\t9\tHallo\n", ("2", "4"), [("Hi", "Hallo")]),
        ("t.csv", "Hi,Hallo\n", ("1", "2"), [("Hi", "Hallo")]),
        ("t.csv", 'id;Text;"Ziel"\n1;Hi;"a ""b"";c"\n', ("Text", "Ziel"), [("Hi", 'a "b";c')]),
        ("t.tsv", "source\ttarget\nHi\t\"Hallo\n", (None, None), [("Hi", '"Hallo')]),
        ("t.tsv", "English\tGerman\nHi\tHallo\n", (None, None), [("Hi", "Hallo")]),
        ("t.tsv", "am\tan\n", (None, None), [("am", "an")]),
        ("t.jsonl", '{"src": "Hi", "trg": "Hallo", "id": 3}\n', (None, None), [("Hi", "Hallo")]),
        ("t.jsonl", '{"input": "Hi", "target": "Hallo"}\n', (None, None), [("Hi", "Hallo")]),
        ("t.jsonl", '{"a": {"b": "Hi"}, "c": "Hallo"}\n', ("a.b", "c"), [("Hi", "Hallo")]),
        ("t.jsonl", '{"q": "Hi", "target": "Hallo"}\n', ("q", None), [("Hi", "Hallo")]),
    ],
)  # fmt: skip
def test_headers_and_named_keys(
    tmp_path: Path,
    name: str,
    content: str,
    keys: tuple[str | None, str | None],
    expected: Pairs,
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    # Given once for all corpora, as by --data.source-key.
    data = DataSpec.parse(
        {"train": [{"file": str(tmp_path / name)}]}
        | {f"{side}_key": key for side, key in zip(("source", "target"), keys, strict=True) if key}
    )
    assert [pair[1:] for pair in CorpusReader(data.train[0])] == expected
    assert DataSpec.parse(data.plain()) == data


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"Hello,Hallo\n", "does not name the columns source and target; it has: 'Hello'"),
        ("a.csv", b"source,target\na,b,c\n", "has 3 columns"),
        ("a.csv", b'source,target\n"a,b\n', "past row 0"),
        ("a.json", b'[{"de": "a", "en": "b"}]', "keys found: 'de', 'en'"),
        ("a.jsonl", b'{"translation": {"de": "a", "en": "b"}}', "'translation.de', '"),
        ("a.parquet", b"PAR1 cut short", "Cannot be read as Parquet"),
        ("a.arrow", b"", "Cannot be read as Arrow"),
        ("a.tar", b"no archive at all", "Cannot be read as tar"),
        ("a.tsv", b"PK\x03\x04 and more", "a ZIP archive, as .xlsx"),
        ("a.jsonl", b"PAR1\x15\x04", "it is Parquet"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(CorpusReader(CorpusSpec(file=str(tmp_path / name))))


def test_without_pyarrow_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet", PAIRS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'heedful\[tables\]'"):
        CorpusReader(CorpusSpec(file=str(tmp_path / "a.parquet")))


def test_keys_belong_to_the_hash_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b"}\n', encoding="utf-8")
    spec = {"file": str(tmp_path / "a.jsonl")}
    hashes = {
        content_hash(CorpusSpec(**spec, languages=LANGUAGES)),
        content_hash(CorpusSpec(**spec, languages=LANGUAGES[::-1])),
        content_hash(CorpusSpec(**spec, source_key="en", target_key="de")),
        content_hash(CorpusSpec(**spec)),
    }
    assert len(hashes) == 4


def test_labels_and_texts_of_tables(tmp_path: Path) -> None:
    names = {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}
    table = pyarrow.table({"sentence": ["bad", "good"], "label": [0, 1], "idx": [5, 6]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": names})})
    parquet.write_table(table, tmp_path / "sst.parquet")
    (tmp_path / "sst.tsv").write_text("sentence\tlabel\nbad\tneg\ngood\tpos\n", encoding="utf-8")
    for name, has_header in (("sst.parquet", False), ("sst.tsv", True)):
        reader = labelled_reader(CorpusSpec(file=str(tmp_path / name)))
        assert [each[1:] for each in reader.examples()] == [("bad", "neg"), ("good", "pos")]
        assert reader.has_header is has_header
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "t.parquet")
    texts = DocumentReader(tmp_path / "t.parquet", "file")
    assert [document.text for document in texts] == ["one", "two"]
    # A file of commas is a text to a language model, as before.
    (tmp_path / "t.csv").write_text("text\none\n", encoding="utf-8")
    assert [each.text for each in DocumentReader(tmp_path / "t.csv", "file")] == ["text\none\n"]


def test_tags_and_questions_of_tables(tmp_path: Path) -> None:
    names = {"features": {"ner": {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}}}}
    table = pyarrow.table({"words": [["in", "Rome"]], "ner": [[0, 1]]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": names})})
    parquet.write_table(table, tmp_path / "ner.parquet")
    data = DataSpec.parse(
        {
            "train": [{"file": str(tmp_path / "ner.parquet")}],
            "source_key": "words",
            "target_key": "ner",
        }
    )
    (sentence,) = tagged_reader(data.train[0], data)
    assert (sentence.words, sentence.tags) == (["in", "Rome"], ["O", "B"])
    rows = [
        {
            "question": "Where?",
            "context": "In Rome.",
            "answers": {"text": ["Rome"], "answer_start": [3]},
        },
        {"question": "When?", "context": "In Rome.", "answers": {"text": [], "answer_start": []}},
    ]
    schema = pyarrow.Table.from_pylist(rows).schema
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "squad.parquet")
    questions = list(question_reader(CorpusSpec(file=str(tmp_path / "squad.parquet"))))
    assert [question.answers for question in questions] == [(("Rome", 3),), ()]


def test_a_value_without_room_is_no_crash(tmp_path: Path) -> None:
    days = pyarrow.array([3_000_000], pyarrow.int32()).cast(pyarrow.date32())
    inner = pyarrow.StructArray.from_arrays([days, pyarrow.array(["a"])], ["day", "text"])
    parquet.write_table(pyarrow.table({"source": ["a"], "inner": inner}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="past row 0: date value out of range"):
        list(CorpusReader(CorpusSpec(file=str(tmp_path / "d.parquet"))))


def test_settings_and_readers_know_the_same_forms() -> None:
    assert set(PAIR_FORMS) == FORMATS.keys()
