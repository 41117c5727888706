"""A toy text of known entropy, learned by a language model through the real command line."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from heedful.cli.main import main


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_text(path: Path, seed: int, length: int) -> Path:
    """Each letter is one of two, equally likely, and which two follows from the one before last."""
    draw = random.Random(seed)
    letters = [0, 1]
    while len(letters) < length:
        letters.append((2 * letters[-2] + draw.randint(0, 1)) % 8)
    path.write_text("".join("abcdefgh"[letter] for letter in letters), encoding="utf-8")
    return path


def test_a_text_is_learned_down_to_its_entropy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train, valid = (
        write_text(tmp_path / "a.txt", 1, 60_000),
        write_text(tmp_path / "b.txt", 2, 4000),
    )
    flags = {
        "task": "causal_lm",
        "tokenizer.kind": "characters",
        "model.width": 32,
        "model.decoder-layers": 2,
        "model.num-heads": 2,
        "model.feedforward": 64,
        "model.dropout": 0,
        "model.positions": "rotary",
        "data.max-length": 32,
        "data.batch-tokens": 1024,
        "schedule.kind": "cosine",
        "schedule.peak-learning-rate": 0.01,
        "schedule.warmup-steps": 20,
        "validation.every-steps": 300,
        "checkpoint.average": "none",
        "max-steps": 300,
        "precision": "fp32",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    status = main(
        ["train", str(run), "--train", str(train), "--valid", str(valid), *words, "--json"]
    )
    out = capsys.readouterr().out
    assert status == 0
    loss = json.loads(out)["scores"]["loss"]
    # Of a window of 32 tokens the first is read as the begin token. The letters that decide on its
    # first two predictions lie before what it shows.
    entropy = (30 * math.log(2) + 2 * math.log(8)) / 32
    assert 0.99 * entropy < loss < 1.05 * entropy
    # Windows without overlap are those of validation.
    measure = ["evaluate", str(run), "--text", str(valid), "--stride", "32", "--json"]
    assert main(measure) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["loss"] == pytest.approx(loss, rel=1e-5)
