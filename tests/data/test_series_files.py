"""Time series: read from files, cut into windows, scaled and put into bins."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.corpus_spec import CorpusSpec, RecordSpec
from heedful.data.field_inference import train_fields
from heedful.data.record_files import record_reader
from heedful.data.series_files import SeriesRecords, bins_of, scale_of, values_of
from heedful.errors import DataError
from heedful.text.tokenizer_spec import TokenizerSpec

SPEC = RecordSpec(reader="series", bins=8, bin_limit=2.0, context=3, horizon=2)
TABLE = "day,shop,café\n1 May,1,\n2 May,2.5,-4\n\n3 May,3e1,5\n4 May,,6\n"

finite = st.floats(-1e6, 1e6, allow_subnormal=False)


def read(path: Path) -> list[list[float]]:
    return [series.tolist() for _, series in SeriesRecords(path, SPEC).series()]


def windows(path: Path, spec: RecordSpec = SPEC) -> list[Any]:
    return [
        record["values"] for _, record in record_reader(CorpusSpec(file=str(path)), spec).records()
    ]


def test_columns_of_a_table_are_series(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TABLE.replace("\n\n", "\n"), encoding="utf-8")
    assert read(path) == [[1, 2.5, 30], [-4, 5, 6]]
    zipped = tmp_path / "b.csv.gz"
    zipped.write_bytes(gzip.compress(b"1;-2\n3;4\n"))
    assert read(zipped) == [[1, 3], [-2, 4]]
    single = tmp_path / "c.csv"
    single.write_text("sold\n5\n6\n\n", encoding="utf-8")
    assert read(single) == [[5, 6]]


def test_every_form_of_file_has_the_same_windows(tmp_path: Path) -> None:
    series = np.array([[9.0, 1, 1, -1, 3, 0, 1, 0], [4, 4, 4, 4, 8, 8, 8, 0]])
    np.save(tmp_path / "a.npy", series)
    np.savetxt(tmp_path / "a.csv", series.T, delimiter=",")
    lists = (json.dumps(series[0].tolist()), json.dumps({"values": series[1].tolist()}))
    (tmp_path / "a.jsonl").write_text("\n".join(lists))
    # The last windows end with the series, the first with what is left: contexts are 1 1 -1, …
    expected = [[6, 6, 2, 7, 4], [2, 7, 4, 5, 4], [6, 6, 6, 7, 7], [5, 6, 6, 6, 4]]
    # Scales are 1 and 4/3; 4 and 20/3.
    for name in ("a.npy", "a.csv", "a.jsonl"):
        assert windows(tmp_path / name) == expected, name


def test_a_reader_knows_its_fields(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((1, 5)))
    reader = record_reader(CorpusSpec(file=str(tmp_path / "a.npy")), SPEC)
    made = train_fields([reader], SPEC, TokenizerSpec(kind="characters"), print)
    assert [field.write() for field in made.fields] == ["values:8:5"]
    assert made.reading["context"] == 3
    hashes = {
        SeriesRecords(tmp_path / "a.npy", SPEC.model_copy(update=changed)).content_hash()
        for changed in ({}, {"bins": 9}, {"bin_limit": 3.0}, {"context": 2}, {"horizon": 1})
    }
    assert len(hashes) == 5


@given(st.lists(finite, min_size=1, max_size=9), st.integers(-20, 20))
def test_bins_keep_a_value_to_half_a_bin_in_any_unit(values: list[float], power: int) -> None:
    spec = RecordSpec(bins=50, bin_limit=5.0)
    array = np.array(values)
    scale = scale_of(array)
    codes = bins_of(array, scale, spec)
    assert codes.min() >= 0
    assert codes.max() < 50
    middle = values_of(codes, scale, spec)
    inside = np.abs(array) <= 5 * scale
    assert (np.abs(middle - array)[inside] <= 0.1000001 * scale).all()
    assert (codes[array > 5 * scale] == 49).all()
    assert (codes[array < -5 * scale] == 0).all()
    # A power of two changes no digit, so that the codes are the same to the last bin.
    if array.any():
        assert scale_of(array * 2.0**power) == scale * 2.0**power
        assert (bins_of(array * 2.0**power, scale * 2.0**power, spec) == codes).all()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", TABLE, r"column shop, line 4: The cell is no number: ''"),
        ("a.csv", "a,b\n1,2\nx,2\n3,2\n", r"column a, line 3: .*'x'"),
        ("a.csv", "a,b\n1,2,3\n", r"A row has 3 cells, and the first one 2"),
        ("a.csv", "a\n1\n2\n3\n4\n", r"column a: The series has 4 values, fewer than .* 3 .* 2"),
        ("a.csv", "", r"holds no series"),
        ("a.jsonl", "[1, 2, 3, NaN, 5]\n", r"a\.jsonl:1: The value 4 is missing"),
        ("a.jsonl", '{"sold": [1, 2]}\n', r"a\.jsonl:1: .*no series"),
        ("a.jsonl", "[[1, 2], [3, 4]]\n", r"a\.jsonl:1: .*no series"),
        ("a.npy", "", r"Cannot be read as NumPy arrays"),
    ],
)
def test_what_is_no_series_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        list(record_reader(CorpusSpec(file=str(path)), SPEC))
