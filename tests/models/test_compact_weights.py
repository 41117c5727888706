"""Weights of 8 and 16 bits: how near they are, and what a damaged file says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load_file, save_file

import heedful
from heedful.errors import ModelError
from heedful.models.checkpoint import load_model, save_model
from heedful.models.compact_weights import compact, restore
from heedful.models.model_directory import renew_digests
from heedful.pipelines.numpy_translation import NumpyTranslationPipeline
from heedful.search.search_settings import SearchSettings
from tests.apps.studio.conftest import write_translator

NUMBERS = st.floats(-1000, 1000, width=32)


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS))
def test_a_row_is_right_to_half_a_step(matrix: np.ndarray) -> None:
    back = restore(compact({"w": matrix}, "int8"))["w"]
    assert back.dtype == np.float32
    step = np.abs(matrix).max(1, keepdims=True) / 127
    assert (np.abs(back - matrix) <= step / 2 * (1 + 1e-5) + 1e-30).all()


@given(arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=6), elements=NUMBERS))
def test_halves_are_right_to_their_digits(array: np.ndarray) -> None:
    back = restore(compact({"w": array}, "float16"))["w"]
    np.testing.assert_allclose(back, array, rtol=2**-11, atol=2**-25)


def test_too_large_for_half_is_refused() -> None:
    with pytest.raises(ModelError, match="larger than float16"):
        compact({"w": np.full(3, 1e6, np.float32)}, "float16")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_translator(tmp_path / "model", "sinusoidal", seed=3)


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_every_route_reads_it(model: Path, tmp_path: Path, storage: str) -> None:
    loaded, tokenizers = load_model(model)
    small = tmp_path / "small"
    save_model(loaded, tokenizers, small, storage=storage)
    expected = {name: t.numpy() for name, t in load_model(small)[0].state_dict().items()}
    own = {name: t.numpy() for name, t in loaded.state_dict().items()}
    for name, array in restore(compact(own, storage)).items():
        np.testing.assert_array_equal(expected[name], array)
    texts = ["the cat sat on a mat", "dogs and cats"]
    by_torch = list(heedful.load(small).translate(texts, beam=2))
    direct = NumpyTranslationPipeline.load(small, device="cpu", precision="fp32")
    if direct is not None:
        assert list(direct.translate(texts, SearchSettings(beam=2))) == by_torch
    eight = heedful.load(small, precision="int8").translate(texts, beam=2)
    assert len(eight) == 2


def test_the_command_writes_it(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    words = ["export", str(model), str(out), "--format", "heedful", "--quantization", "int8"]
    subprocess.run([sys.executable, "-m", "heedful", *words], check=True, capture_output=True)
    assert json.loads((out / "config.json").read_text())["schema_version"] == 3
    stored = load_file(out / "model.safetensors")
    matrices = {name for name, array in stored.items() if array.dtype == np.int8}
    assert matrices
    assert all(f"{name}.scale" in stored for name in matrices)
    assert (out / "model.safetensors").stat().st_size < (
        0.55 * (model / "model.safetensors").stat().st_size
    )


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_wrong_factors_are_refused_in_words(model: Path, tmp_path: Path, damage: str) -> None:
    loaded, tokenizers = load_model(model)
    small = tmp_path / "small"
    save_model(loaded, tokenizers, small, storage="int8")
    file = small / "model.safetensors"
    stored = load_file(file)
    name = next(each for each in stored if each.endswith(".scale"))
    if damage == "missing":
        del stored[name]
    else:
        stored[name] = stored[name][:-1]
    save_file(stored, file)
    renew_digests(small)
    with pytest.raises(ModelError, match="lacks the factors") as error:
        load_model(small)
    assert error.value.where is not None
    assert name in error.value.where
