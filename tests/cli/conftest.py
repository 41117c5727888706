"""A small model directory, made without training, and the command line run in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from heedful.cli.main import main
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ALPHABET = "abcdefgh ijklmnop"
SHAPE = TranslatorShape(
    width=16,
    encoder_layers=1,
    decoder_layers=1,
    num_heads=2,
    feedforward=32,
    dropout=0.0,
    max_length=32,
)


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines of standard output; only a line feed ends one."""
        assert self.out == "" or self.out.endswith("\n")
        return self.out.split("\n")[:-1]


Run = Callable[..., Ran]


def write_model(directory: Path, seed: int) -> Path:
    spec = TokenizerSpec(kind="characters")
    tokenizers = train_pair(spec, [ALPHABET] * 3, [ALPHABET] * 3)
    torch.manual_seed(seed)
    model = Translator(translator_spec(SHAPE, tokenizers.source.size, tokenizers.target.size))
    save_model(model, tokenizers, directory)
    return directory


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return write_model(tmp_path_factory.mktemp("models") / "one", seed=1)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the same shape and vocabulary with other weights."""
    return write_model(tmp_path_factory.mktemp("models") / "two", seed=2)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line: words, and what is on standard input."""

    def run_it(*words: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run_it


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Two aligned files of 60 pairs: the target is the source backwards."""
    source, target = tmp_path / "pairs.src", tmp_path / "pairs.tgt"
    words = [ALPHABET[i % 7 : i % 7 + 3 + i % 5].strip() for i in range(60)]
    source.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    target.write_text("".join(f"{word[::-1]}\n" for word in words), encoding="utf-8")
    return source, target
