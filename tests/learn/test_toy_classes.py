"""A toy labelling and a toy text with a rule, learned by encoders through the real command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.cli.main import main

WORDS = ["sun", "rain", "wind", "snow"]
SHAPE: dict[str, Any] = {
    "model.width": 32,
    "model.encoder-layers": 2,
    "model.num-heads": 2,
    "model.feedforward": 64,
    "model.dropout": 0,
    "data.max-length": 16,
    "data.batch-tokens": 1024,
    "schedule.peak-learning-rate": 0.005,
    "schedule.warmup-steps": 20,
    "checkpoint.average": "none",
    "precision": "fp32",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def train(
    capsys: pytest.CaptureFixture[str], run: Path, files: tuple[Path, Path], flags: dict[str, Any]
) -> dict[str, Any]:
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    corpora = ["--train", str(files[0]), "--valid", str(files[1])]
    assert main(["train", str(run), *corpora, *words, "--json"]) == 0
    scores: dict[str, Any] = json.loads(capsys.readouterr().out)["scores"]
    return scores


def write_labelled(path: Path, seed: int, lines: int) -> Path:
    """The label is which of two words comes first: no bag of words tells."""
    draw = random.Random(seed)
    rows = []
    for _ in range(lines):
        words = draw.choices(WORDS, k=draw.randint(2, 6))
        found = [word for word in words if word in ("sun", "rain")]
        rows.append(f"{' '.join(words)}\t{found[0] if found else 'neither'}\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_a_labelling_by_order_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        write_labelled(tmp_path / "a.tsv", 1, 2000),
        write_labelled(tmp_path / "b.tsv", 2, 300),
    )
    flags = {"task": "classify", "validation.every-steps": 150, "max-steps": 150}
    scores = train(capsys, tmp_path / "run", files, SHAPE | flags)
    assert scores["accuracy"] >= 0.98
    assert scores["macro_f1"] >= 0.98


def write_alternating(path: Path, seed: int, lines: int) -> Path:
    """Two letters take turns in a line: a hidden one stands two places from where it is."""
    draw = random.Random(seed)
    pairs = ["".join(draw.sample("abcdefgh", k=2)) for _ in range(lines)]
    path.write_text("".join(f"{pair * 6}\n" for pair in pairs), encoding="utf-8")
    return path


def test_hidden_letters_are_found_where_the_text_tells_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        write_alternating(tmp_path / "a.txt", 1, 2000),
        write_alternating(tmp_path / "b.txt", 2, 300),
    )
    flags = {
        "task": "masked_lm",
        "tokenizer.kind": "characters",
        "model.positions": "rotary",
        "data.documents": "line",
        "validation.every-steps": 150,
        "max-steps": 150,
    }
    loss = train(capsys, tmp_path / "run", files, SHAPE | flags)["loss"]
    # Guessing costs ln 8 = 2.08, knowing the pair but not whose turn it is ln 2 = 0.69.
    assert loss < 0.1
