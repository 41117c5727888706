"""Files that changed since a model was saved are refused, and so are absurd sizes and pipes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import ModelError
from heedful.models import model_directory
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, read_weights, save_model
from heedful.models.model_directory import read_facts, renew_digests, verified
from heedful.models.shape_to_spec import translator_spec
from heedful.pipelines.numpy_translation import NumpyTranslationPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair
from tests.models.test_spec_questions import SHAPE

STORED = Path(__file__).parents[1] / "compat/stored/translator"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pair = train_pair(TokenizerSpec(kind="characters"), ["ab cd"], ["ba dc"])
    torch.manual_seed(0)
    model = build_model(translator_spec(SHAPE, pair.source.size, pair.target.size))
    directory = tmp_path_factory.mktemp("saved") / "model"
    save_model(model, pair, directory)
    return directory


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_the_config_has_the_digest_of_every_other_file(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    others = {path.name for path in directory.iterdir()} - {"config.json"}
    assert config["schema_version"] == 2
    assert set(config["files"]) == others
    for name in others:
        digest = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        assert config["files"][name] == [digest]


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8, 0.999])
@pytest.mark.parametrize("read", [load_model, read_weights])
def test_a_flipped_bit_in_the_weights_is_noticed(
    directory: Path, place: float, read: Callable[[Path], Any]
) -> None:
    weights = directory / "model.safetensors"
    size = weights.stat().st_size
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    flip(weights, 8 * header + int(place * 8 * (size - header)))
    with pytest.raises(ModelError, match=r"model.safetensors is not the file that was saved"):
        read(directory)


def test_the_numpy_runtime_leaves_a_damaged_model_to_those_who_say_so(directory: Path) -> None:
    if NumpyTranslationPipeline.load(directory, device="cpu", precision="fp32") is None:
        pytest.skip("needs kernels in C")
    flip(directory / "model.safetensors", 8 * (directory / "model.safetensors").stat().st_size - 1)
    assert NumpyTranslationPipeline.load(directory, device="cpu", precision="fp32") is None


def test_a_changed_tokenizer_is_noticed(directory: Path) -> None:
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ModelError, match=r"tokenizer.json is not the file"):
        load_model(directory)


def test_files_of_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "CHUNK", 1000)
    for name, size in {"empty": 0, "one": 1000, "three": 2001}.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    digests = model_directory.file_digests(tmp_path, leave_out="config.json")
    assert {name: len(chunks) for name, chunks in digests.items()} == {
        "empty": 1,
        "one": 1,
        "three": 3,
    }
    with verified(tmp_path, digests):
        pass
    for bit in (5, 8 * 1500, 8 * 2001 - 1):
        flip(tmp_path / "three", bit)
        with pytest.raises(ModelError, match="three is not"), verified(tmp_path, digests):
            pass
        flip(tmp_path / "three", bit)
    with (tmp_path / "one").open("ab") as file:  # its first chunk is as it was
        file.write(b"x")
    with pytest.raises(ModelError, match="one is not"), verified(tmp_path, digests):
        pass
    (tmp_path / "one").unlink()
    with pytest.raises(ModelError, match="lacks one"), verified(tmp_path, digests):
        pass


def test_what_the_readers_say_comes_first(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), verified(tmp_path, {"missing": ["0"]}):
        _ = 1 // 0


def change(directory: Path, path: str, value: object) -> None:
    config = json.loads((directory / "config.json").read_text())
    *tables, name = path.split(".")
    table = config["model"]
    for each in tables:
        table = table[int(each)] if each.isdecimal() else table[each]
    table[name] = value
    (directory / "config.json").write_text(json.dumps(config))


PART = "encoder.pattern.0.sublayers.0.part"


@pytest.mark.parametrize(
    ("path", "number", "limit"),
    [
        ("encoder.num_layers", 10**9, "1 layers"),
        ("decoder.num_layers", 10**30, "2 layers"),
        ("width", 10**9, "in any dimension"),
        ("target_vocabulary", 10**12, "in any dimension"),
        (f"{PART}.num_heads", 10**9, "in any dimension"),
        (f"{PART}.head_width", 10**9, "in any dimension"),
        ("encoder.pattern.0.sublayers.1.part.width", 10**9, "in any dimension"),
        (
            "encoder.pattern.0.sublayers.1.part.experts",
            {"num_experts": 10**9, "per_token": 2},
            "in any dimension",
        ),
        ("embedding.positions.max_length", 10**30, "in any dimension"),
        ("embedding.positions.max_length", 10**9, "positions.weight is"),
    ],
)
@pytest.mark.parametrize("read", [load_model, read_facts])
def test_absurd_sizes_are_refused_at_once(
    directory: Path, path: str, number: object, limit: str, read: Callable[[Path], Any]
) -> None:
    change(directory, path, number)
    if read is read_facts and "weight" in limit:
        return
    began = time.perf_counter()
    with pytest.raises(ModelError, match=limit) as error:
        read(directory)
    assert time.perf_counter() - began < 5
    assert str(directory) in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(directory: Path, name: str) -> None:
    (directory / name).unlink()
    os.mkfifo(directory / name)
    for read in (load_model, read_facts):
        with pytest.raises(ModelError, match=r"no ordinary file|neither a model directory"):
            read(directory)


def test_digests_can_be_renewed_after_a_change_on_purpose(directory: Path) -> None:
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    before = read_facts(directory)
    renew_digests(directory)
    load_model(directory)
    assert read_facts(directory).spec == before.spec
