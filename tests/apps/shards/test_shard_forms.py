"""Each form of shard gains its translations and keeps all else."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.shards.shard_forms import CHUNK, TableColumns, translate_text
from heedful.cli.main import main
from heedful.errors import DataError

from .conftest import QUICK, words

LINES = [*words(7, 12), "", "ab" * 10]


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines as `heedful translate -i` writes them."""
    folder = tmp_path_factory.mktemp("single")
    (folder / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    assert main(["translate", str(model), *QUICK, "-i", f"{folder}/in", "-o", f"{folder}/o"]) == 0
    return (folder / "o").read_text(encoding="utf-8").split("\n")[:-1]


def translated(model: Path, tmp_path: Path, name: str, content: bytes, *flags: str) -> bytes:
    """The content of a shard's translation."""
    shard, out = tmp_path / "in" / name, tmp_path / "out"
    shard.parent.mkdir()
    shard.write_bytes(content)
    assert (
        main(["translate", str(model), *QUICK, "--shards", f"{shard}", "--out", f"{out}", *flags])
        == 0
    )
    return (out / name).read_bytes()


def test_plain_lines(model: Path, tmp_path: Path, expected: list[str]) -> None:
    content = "".join(f"{line}\n" for line in LINES).encode()
    out = translated(model, tmp_path, "a.txt", content)
    assert out == "".join(f"{line}\n" for line in expected).encode()


def test_gzip_stays_gzip(model: Path, tmp_path: Path, expected: list[str]) -> None:
    content = gzip.compress("\r\n".join(LINES).encode())
    out = translated(model, tmp_path, "a.txt.gz", content)
    assert gzip.decompress(out) == "".join(f"{line}\n" for line in expected).encode()
    assert out[4:8] == bytes(4), "no time: equal texts are equal bytes"


@pytest.mark.parametrize(
    "flags", [["--scores"], ["--n-best", "2"], ["--alignment"], ["--prefix", "a"]]
)
def test_lines_are_those_of_a_single_file(model: Path, tmp_path: Path, flags: list[str]) -> None:
    content = "".join(f"{line}\n" for line in LINES).encode()
    out = translated(model, tmp_path, "a.txt", content, *flags)
    single = ["-i", f"{tmp_path}/in/a.txt", "-o", f"{tmp_path}/single"]
    assert main(["translate", str(model), *QUICK, *single, *flags]) == 0
    assert out == (tmp_path / "single").read_bytes()


def test_a_table_with_names(model: Path, tmp_path: Path, expected: list[str]) -> None:
    rows = ["id\tsource\tmore", *(f"{i}\t{line}\tx {i}" for i, line in enumerate(LINES))]
    flags = ["--column", "source", "--translation-column", "german"]
    out = translated(model, tmp_path, "a.tsv", "\n".join(rows).encode(), *flags)
    wanted = [f"{rows[0]}\tgerman"]
    wanted += [f"{row}\t{line}" for row, line in zip(rows[1:], expected, strict=True)]
    assert out.decode().split("\n") == [*wanted, ""]


def test_a_table_without_names(model: Path, tmp_path: Path, expected: list[str]) -> None:
    rows = [f"{line}\t{i}" for i, line in enumerate(LINES)]
    out = translated(model, tmp_path, "a.tsv", "\n".join(rows).encode(), "--column", "1")
    wanted = [f"{row}\t{line}" for row, line in zip(rows, expected, strict=True)]
    assert out.decode().split("\n") == [*wanted, ""]


def test_json_lines(model: Path, tmp_path: Path, expected: list[str]) -> None:
    items = [f'{{"id":{i}, "text": "{line}",  "x": 1.50 }} ' for i, line in enumerate(LINES)]
    content = "\n".join([*items, "", '{"text": null}']).encode()
    *out, blank, null, end = translated(model, tmp_path, "a.jsonl", content).decode().split("\n")
    for item, line, result in zip(items, expected, out, strict=True):
        assert json.loads(result) == {**json.loads(item), "translation": line}
        assert result.startswith(item.rstrip(" }")), "other values keep their spelling"
    assert (blank, json.loads(null)["translation"], end) == ("", None, "")


def test_parquet(model: Path, tmp_path: Path, expected: list[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = pa.array([*LINES, None], pa.large_string())
    names = pa.array(["x", "y"] * 7 + ["x"]).dictionary_encode()
    table = pa.table({"id": pa.array(range(15), pa.int16()), "text": texts, "names": names})
    table = table.replace_schema_metadata({"made": "by hand"})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=4, compression="gzip")
    result = translated(model, tmp_path, "a.parquet", buffer.getvalue())
    file = pq.ParquetFile(io.BytesIO(result))
    assert [file.metadata.row_group(n).num_rows for n in range(4)] == [4, 4, 4, 3]
    assert file.metadata.row_group(0).column(0).compression == "GZIP"
    found = file.read()
    assert found.column("translation").to_pylist() == [*expected, None]
    assert found.drop(["translation"]).equals(pq.read_table(io.BytesIO(buffer.getvalue())))
    assert found.schema.metadata[b"made"] == b"by hand"


def test_parquet_without_rows(model: Path, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), buffer)
    out = translated(model, tmp_path, "a.parquet", buffer.getvalue())
    assert pq.read_table(io.BytesIO(out)).to_pydict() == {"text": [], "translation": []}


def test_a_shard_without_lines_is_one_without_lines(model: Path, tmp_path: Path) -> None:
    assert translated(model, tmp_path, "a.txt", b"") == b""


class Upper:
    """Stands for a translator; keeps how many texts it got at once, and their numbers."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, texts: list[str], first_line: int, /) -> list[str]:
        self.calls.append((first_line, len(texts)))
        return [text.upper() for text in texts]


def upper(folder: Path, form: str, content: str, columns: TableColumns | None = None) -> str:
    shard, output = folder / f"shard{form}", io.BytesIO()
    shard.write_bytes(content.encode())
    list(translate_text(shard, form, output, Upper(), columns or TableColumns()))
    return output.getvalue().decode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(), json_values, max_size=3), st.text(), st.booleans())
    )
)
def test_any_object_keeps_its_values(
    tmp_path_factory: pytest.TempPathFactory, items: list[tuple[dict[str, Any], str, bool]]
) -> None:
    objects = [{**other, "text": text} for other, text, _ in items]
    for each in objects:
        each.pop("translation", None)
    lines = [json.dumps(o, ensure_ascii=a) for o, (_, _, a) in zip(objects, items, strict=True)]
    content = "".join(f"{line}\n" for line in lines)
    result = upper(tmp_path_factory.mktemp("json"), ".jsonl", content)
    found = [json.loads(line) for line in result.split("\n")[:-1]]
    assert found == [{**each, "translation": each["text"].upper()} for each in objects]


def test_texts_are_translated_a_chunk_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n" * (CHUNK + 5), encoding="utf-8")
    translate = Upper()
    rows = translate_text(tmp_path / "a.txt", ".txt", io.BytesIO(), translate, TableColumns())
    assert list(rows) == [CHUNK, 5]
    assert translate.calls == [(1, CHUNK), (CHUNK + 1, 5)]


def wrong() -> Iterator[tuple[str, str, str, TableColumns]]:
    yield ".tsv", "a\tb\nx\ty\n", "shard.tsv:1: There is no column 'text'", TableColumns()
    yield ".tsv", "text\tb\nx\n", "shard.tsv:2: The line has 1 columns, and not 2", TableColumns()
    yield (
        ".tsv",
        "a\tb\n",
        "shard.tsv:1: The line has 2 columns, and no column 3",
        TableColumns("3"),
    )
    yield ".tsv", "text\ttranslation\n", "a column 'translation' already", TableColumns()
    yield (
        ".jsonl",
        '{"text": "a"}\n{"txt": "b"}\n',
        "shard.jsonl:2: There is no column",
        TableColumns(),
    )
    yield ".jsonl", "[1]\n", "shard.jsonl:1: The line is no JSON object", TableColumns()
    yield ".jsonl", "{\n", "shard.jsonl:1: The line is not JSON", TableColumns()
    yield ".jsonl", '{"text": 3}\n', "shard.jsonl:1: The value of 'text' is no text", TableColumns()
    yield ".jsonl", '{"text": "\\ud800"}\n', "a lone surrogate", TableColumns()
    yield ".jsonl", '{"text": "a", "translation": 1}\n', "a column 'translation'", TableColumns()


@pytest.mark.parametrize(("form", "content", "words", "columns"), list(wrong()))
def test_what_cannot_be_read_is_named(
    tmp_path: Path, form: str, content: str, words: str, columns: TableColumns
) -> None:
    with pytest.raises(DataError) as failure:
        upper(tmp_path, form, content, columns)
    assert words in str(failure.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"txt": ["a"]}, "There is no column 'text'"),
        ({"text": [1]}, "The column 'text' holds int64, and no texts"),
        ({"text": ["a"], "translation": ["b"]}, "There is a column 'translation' already"),
    ],
)
def test_tables_that_do_not_fit_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Any, words: str
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    shards = ["--shards", f"{tmp_path}/a.parquet", "--out", f"{tmp_path}/out"]
    assert main(["translate", str(model), *QUICK, *shards]) == 1
    assert words in capsys.readouterr().err


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return None if name in ("pyarrow", "ray") else find(name)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    (tmp_path / "a.parquet").touch()
    shards = ["--shards", f"{tmp_path}/a.parquet", "--out", f"{tmp_path}/out"]
    assert main(["translate", "en-de", *shards]) == 2
    assert "pip install 'heedful[ray]'" in capsys.readouterr().err
    assert main(["translate", "en-de", *shards, "--engine", "ray"]) == 2
    assert "--engine ray needs ray and pyarrow" in capsys.readouterr().err
