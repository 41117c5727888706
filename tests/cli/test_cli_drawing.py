"""`heedful generate` with a model of the task diffusion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.models.checkpoint import save_model
from heedful.models.images.denoiser import Denoiser
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import denoiser_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer


@pytest.fixture(scope="module")
def drawer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["a one", "a two"])
    shape = TranslatorShape(width=16, num_heads=2, encoder_layers=1, decoder_layers=1)
    sizes = {"image_size": 4, "patch_size": 2, "channels": 1}
    spec = denoiser_spec(shape, tokenizer.size, 8, **sizes, words=("a", "one", "two"))
    torch.manual_seed(2)
    model = Denoiser(spec)
    torch.nn.init.normal_(model.projection.weight, std=0.2)
    directory = tmp_path_factory.mktemp("models") / "drawer"
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


def test_pictures_are_lines_of_json_or_files(
    run, drawer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long files are read: a part at a time, whose captions are numbered on.
    monkeypatch.setattr("heedful.cli.generate.CHUNK", 1)
    flags = ("--steps", 2, "--guidance", 3, "--seed", 4)
    expected = heedful.load(drawer).draw(["a one", "a two"], steps=2, guidance=3, seed=4)
    done = run("generate", drawer, *flags, stdin=b"a one\na two\n")
    found = [json.loads(line) for line in done.lines]
    assert [each["caption"] for each in found] == ["a one", "a two"]
    assert [each["image"] for each in found] == [each.tolist() for each in expected]
    # Such lines are what training reads.
    out = tmp_path / "drawn"
    files = run("generate", drawer, *flags, "--out", out, stdin=b"a one\na two\n").lines
    assert files == [str(out / "0001.png"), str(out / "0002.png")]
    for file, picture in zip(files, expected, strict=True):
        assert np.array_equal(np.asarray(Image.open(file)), picture)
    (line,) = run("generate", drawer, "a one", *flags, "--out", tmp_path / "b", "--json").lines
    assert json.loads(line) == {"image": str(tmp_path / "b" / "0001.png"), "caption": "a one"}


def test_mistakes_are_told(run, drawer: Path, tmp_path: Path) -> None:
    lines = tmp_path / "captions.txt"
    lines.write_text("a one\na three\n")
    for words, told in (
        (("-i", lines), f"{lines}:2: No caption of the training data has the word 'three'"),
        (("a one", "--steps", 1001), "steps = 1001: The way from noise to an image has 1 to 1,000"),
        (("a one", "--beam", 2), "This model draws pictures, and --beam is for texts"),
        (("a one", "--stream"), "--stream is for texts"),
        (("a one", "--out", tmp_path), "This path exists already"),
    ):
        done = run("generate", drawer, *words)
        assert (done.status, done.out) == (2, ""), words
        assert told in done.err
    # A folder that was made and got no picture would be in the way of the next try.
    assert run("generate", drawer, "a three", "--out", tmp_path / "none").status == 2
    assert not (tmp_path / "none").exists()
    text = run("generate", "english", "The", "--steps", 3)
    assert (text.status, "This model writes text, and --steps" in text.err) == (2, True)
    assert "captions beside noisy images" in run("inspect", drawer, "a one").err
    hugging = run("export", drawer, tmp_path / "hf", "--format", "hf")
    assert "No architecture of transformers that Heedful writes is of the kind" in hugging.err
