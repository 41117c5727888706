"""Files of records: lines of JSON, arrays, images."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful.data.corpus_spec import CorpusSpec, RecordSpec
from heedful.data.field_inference import train_fields
from heedful.data.record_files import record_reader
from heedful.errors import ConfigError, DataError, UserError
from heedful.text.tokenizer_spec import TokenizerSpec


def read(path: Path, **spec: Any) -> list[Any]:
    reader = record_reader(CorpusSpec(file=str(path)), RecordSpec(**spec))
    return [record for _, record in reader.records()]


def fields(path: Path, **spec: Any) -> str:
    reader = record_reader(CorpusSpec(file=str(path)), RecordSpec(**spec))
    texts = TokenizerSpec(kind="characters")
    made = train_fields([reader], RecordSpec(**spec), texts, print)
    return " ".join(field.write() for field in made.fields)


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_arrays_are_records(tmp_path: Path) -> None:
    images = np.arange(12).reshape(3, 2, 2)
    np.save(tmp_path / "a.npy", images)
    assert read(tmp_path / "a.npy") == [{"values": image.tolist()} for image in images]
    np.savez(tmp_path / "a.npz", label=np.array([2, 0, 1]), pixels=images)
    assert read(tmp_path / "a.npz")[0] == {"label": 2, "pixels": [[0, 1], [2, 3]]}
    assert fields(tmp_path / "a.npz") == "label:3:1 pixels:12:2x2"


def test_fields_are_found_in_the_data(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        {"kind": "up", "notes": [3, 1], "steps": [[0, 1], [1, 1]], "moves": ["left"]},
        {"kind": "down", "notes": [9], "steps": [[1, 0]], "moves": ["right", "left"]},
    )
    assert fields(path) == "kind:names:1 notes:10:any steps:2:anyx2 moves:names:any"
    assert fields(path, fields=("notes:60", "kind:names")) == "notes:60:any kind:names:any"
    texts = [{"caption": f"picture number {number}"} for number in range(300)]
    assert fields(lines(tmp_path / "b.jsonl", *texts)) == "caption:text:any"


def test_images_are_records(tmp_path: Path) -> None:
    pixels = np.array([[[0, 128], [255, 16]]], np.uint8)
    head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (1, 2, 2))
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(head + pixels.tobytes()))
    assert read(path, reader="images", levels=4) == [{"pixels": [[0, 2], [3, 0]]}]
    # Without labels as with them, images are brought to the size that is asked for.
    assert read(path, reader="images", levels=4, size=1) == [{"pixels": [[1]]}]
    labels = bytes([0, 0, 8, 1]) + (1).to_bytes(4, "big") + bytes([7])
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    assert read(path, reader="images", levels=2) == [{"label": "7", "pixels": [[0, 1], [1, 0]]}]
    assert read(path, reader="images", levels=4, size=1) == [{"label": "7", "pixels": [[1]]}]
    assert fields(path, reader="images", levels=2) == "label:names:1 pixels:2:2x2"
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    Image.fromarray(pixels[0]).save(folder / "a.png")
    found = read(tmp_path / "photos", reader="images", levels=4, size=2)
    assert found == [{"label": "cat", "pixels": [[0, 2], [3, 0]]}]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    pickled = tmp_path / "a.npy"
    pickled.write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match=r"a\.npy.*Cannot be read"):
        read(pickled)
    np.save(tmp_path / "b.npy", np.array([0.5]))
    with pytest.raises(DataError, match="float64"):
        read(tmp_path / "b.npy")
    np.savez(tmp_path / "c.npz", a=np.zeros(2, int), b=np.zeros(3, int))
    with pytest.raises(DataError, match="different numbers of records: a 2, b 3"):
        read(tmp_path / "c.npz")
    (tmp_path / "d.jsonl").write_text("[1, 2]\n7\n")
    with pytest.raises(DataError, match=r"d\.jsonl:2.*neither an object nor a list"):
        read(tmp_path / "d.jsonl")
    with pytest.raises(DataError, match="neither an IDX file"):
        read(tmp_path / "d.jsonl", reader="images")
    with pytest.raises(ConfigError, match="no record reader is called 'imges'"):
        RecordSpec.parse({"reader": "imges"})


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"a": "x"}, "numbers in some records, strings in others"),
        ({"a": 0.5}, r"e\.jsonl:2: a.*neither whole numbers"),
        ({"a": {"b": 1}}, "neither whole numbers"),
        ({"a": [[1], [2, 3]]}, "neither whole numbers"),
        ({"a": None}, "neither whole numbers"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, second: Any, told: str) -> None:
    path = lines(tmp_path / "e.jsonl", {"a": 1}, second)
    with pytest.raises(UserError, match=told):
        fields(path)
