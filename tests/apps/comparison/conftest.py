"""A small text and a configuration of a language model that is trained on it in a second."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.config import dump_toml, merge


def write_text(path: Path, seed: int, length: int) -> None:
    draw = random.Random(seed)
    words = ["rot", "grün", "blau", "und", "über"]
    path.write_text(" ".join(draw.choice(words) for _ in range(length)) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("texts")
    write_text(folder / "train.txt", 1, 600)
    write_text(folder / "valid.txt", 2, 60)
    return {
        "task": "causal_lm",
        "model": {"width": 8, "decoder_layers": 1, "num_heads": 2, "feedforward": 8, "dropout": 0},
        "tokenizer": {"kind": "characters"},
        "data": {
            "train": [{"file": str(folder / "train.txt")}],
            "valid": [{"file": str(folder / "valid.txt")}],
            "max_length": 16,
            "batch_tokens": 128,
        },
        "schedule": {"kind": "constant", "warmup_steps": 5, "peak_learning_rate": 0.01},
        "checkpoint": {"every_steps": 10, "average": "none"},
        "validation": {"every_steps": 10},
        "max_steps": 40,
        "precision": "fp32",
        "device": "cpu",
    }


WriteConfig = Callable[..., Path]


@pytest.fixture
def write(settings: dict[str, Any], tmp_path: Path) -> WriteConfig:
    """Writes a configuration with some settings changed."""

    def written(name: str, **changes: Any) -> Path:
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(dump_toml(merge(settings, changes)), encoding="utf-8")
        return path

    return written
