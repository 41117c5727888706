"""Images and captions through the same trainer: two encoders with vectors in one space (CLIP)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ConfigError, DataError, RunError
from heedful.events import Events
from heedful.models.checkpoint import load_model, read_weights
from heedful.models.images.two_towers import TwoTowers
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 16, "encoder_layers": 2, "num_heads": 2, "feedforward": 32}
CAPTIONS = ("bars that lie", "bars that stand", "a grey wall")
SIDE = 8


def picture(kind: int, draw: np.random.Generator) -> list[list[int]]:
    """Bright bars in noise: across for 0, down for 1, none for 2."""
    image = draw.integers(0, 80, (SIDE, SIDE))
    if kind < 2:
        (image if kind == 0 else image.T)[draw.integers(0, 2) :: 3] += 150
    return image.tolist()


def records(count: int, seed: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    kinds = [number % 3 for number in range(count)]
    return [{"image": picture(kind, draw), "caption": CAPTIONS[kind]} for kind in kinds]


def written(path: Path, rows: list[Any]) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"file": str(path)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("captions")
    return {
        "train": [written(folder / "train.jsonl", records(90, 1))],
        "valid": [written(folder / "valid.jsonl", records(30, 2))],
        "batch_tokens": 17 * 16,  # 4 x 4 patches and [CLS]
        "max_length": 24,
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    kept = {
        "images": {"patch_size": 2},
        "augment": {"shift": 1},
        "tokenizer": {"vocabulary_size": 60},
        "checkpoint": {"every_steps": 5, "average_count": 2},
        "max_steps": 30,
    }
    return short_run("contrast", SHAPE, files, kept | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Any]):
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, run_training(run, settings(files), events=Events([]))


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: dict[str, Any], whole):
    run, summary = whole
    run_training(tmp_path / "parts", settings(files, max_steps=13), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(run)
    assert parts.scores == summary.scores
    assert summary.scores.keys() == {"loss", "recall"}
    first, again = (read_weights(path / "model") for path in (run, tmp_path / "parts"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_trained_model_labels_finds_and_measures(files: dict[str, Any], whole) -> None:
    run, summary = whole
    model = heedful.load(run)
    assert isinstance(load_model(run)[0], TwoTowers)
    rows = records(30, 2)
    images = [np.array(row["image"], np.uint8) for row in rows]
    print(summary.scores, model.recall(images, [r["caption"] for r in rows]))
