"""A small translator of letters, and shards of text for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

QUICK = ["--device", "cpu", "--beam", "2", "--max-length", "12"]


def words(seed: int, count: int) -> list[str]:
    """Lines of the letters that the translator knows."""
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefgh", k=draw.randint(1, 20))) for _ in range(count)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pair = train_pair(TokenizerSpec(kind="characters"), ["abcdefgh"] * 3, ["abcdefgh"] * 3)
    torch.manual_seed(0)
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32, max_length=40
    )
    directory = tmp_path_factory.mktemp("letters") / "model"
    save_model(
        Translator(translator_spec(shape, pair.source.size, pair.target.size)), pair, directory
    )
    return directory


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[[int, int], Path]:
    """Makes a folder of shards in text, each of so many lines."""

    def make(shards: int, lines: int) -> Path:
        folder = tmp_path / "corpus"
        folder.mkdir()
        for number in range(shards):
            text = "".join(f"{word}\n" for word in words(number, lines))
            (folder / f"part-{number:02}.txt").write_text(text, encoding="utf-8")
        return folder

    return make
