"""Toy pictures with a rule, learned by a vision Transformer through the real command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from heedful.cli.main import main

SIDE = 12
FLAGS: dict[str, Any] = {
    "task": "images",
    "images.patch-size": 3,
    "images.channels": 1,
    "augment.shift": 1,
    "model.width": 32,
    "model.encoder-layers": 2,
    "model.num-heads": 2,
    "model.feedforward": 64,
    "model.dropout": 0,
    "data.batch-tokens": 1088,
    "schedule.peak-learning-rate": 0.003,
    "schedule.warmup-steps": 20,
    "validation.every-steps": 150,
    "max-steps": 150,
    "checkpoint.average": "none",
    "precision": "fp32",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def bars(kind: str, draw: np.random.Generator) -> np.ndarray:
    """A bright bar somewhere in noise: across, down, or aslant."""
    pixels = draw.integers(0, 90, (SIDE, SIDE))
    start, length = draw.integers(0, 4), draw.integers(6, 9)
    at, place = np.arange(start, start + length), draw.integers(0, SIDE)
    rows, columns = {"across": (place, at), "down": (at, place), "aslant": (at, at)}[kind]
    pixels[rows, columns] = draw.integers(150, 256, length)
    return pixels.astype(np.uint8)


def write_bars(folder: Path, count: int, seed: int) -> Path:
    draw = np.random.default_rng(seed)
    for kind in ("across", "down", "aslant"):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(bars(kind, draw)).save(folder / kind / f"{number}.png")
    return folder


def test_bars_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, valid = write_bars(tmp_path / "train", 150, 1), write_bars(tmp_path / "valid", 40, 2)
    words = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    run = str(tmp_path / "run")
    assert main(["train", run, "--train", str(train), "--valid", str(valid), *words, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["accuracy"] >= 0.95
    assert scores["macro_f1"] >= 0.95

    other = write_bars(tmp_path / "other", 20, 3)
    assert main(["classify", run, str(other), "--json"]) == 0
    items = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(items) == 60
    right = [Path(item["image"]).parent.name == item["labels"][0]["label"] for item in items]
    assert sum(right) / len(right) >= 0.95
