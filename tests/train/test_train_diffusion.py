"""Diffusion through the same trainer: resumed and split runs, and pictures that obey captions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.models.checkpoint import read_weights
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings
from heedful.train.task import prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "feedforward": 64}
CAPTIONS = ("a bright picture", "a dark picture")


def records(file: Path, count: int, seed: int) -> dict[str, str]:
    """Pictures of 4 × 4 pixels that are bright or dark, with captions that say so."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        base = (200, 40)[number % 2]
        image = [[base + draw.randint(-10, 10) for _ in range(4)] for _ in range(4)]
        lines.append(json.dumps({"image": image, "caption": CAPTIONS[number % 2]}) + "\n")
    file.write_text("".join(lines))
    return {"file": str(file)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pictures")
    return {
        "train": [records(folder / "train.jsonl", 100, 1)],
        "valid": [records(folder / "valid.jsonl", 20, 2)],
        "batch_tokens": 32 * 4,  # 32 pictures of 2 × 2 patches
        "max_length": 32,
        "cache": str(folder / "cache"),
    }


def settings(data: dict[str, Any], **changes: Any) -> RunSettings:
    kept = {
        "images": {"patch_size": 2},
        "checkpoint": {"every_steps": 50, "ema_decay": 0.97},
        "validation": {"every_steps": 40, "metrics": []},
        "max_steps": 110,
    }
    return short_run("diffusion", SHAPE, data, kept | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]):
    """A run that was never stopped, and its summary."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, run_training(run, settings(data), events=Events([]))


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, data: dict[str, Any], whole):
    run, summary = whole
    run_training(tmp_path / "parts", settings(data, max_steps=41), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(data), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(run)
    assert parts.scores == summary.scores
    assert summary.scores.keys() == {"loss"}
    first, again = (read_weights(path / "model") for path in (run, tmp_path / "parts"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_pictures_are_as_their_captions_say(whole) -> None:
    model = heedful.load(whole[0])
    drawn = model.draw([*CAPTIONS * 4, ""], steps=10)
    assert [picture.shape for picture in drawn] == [(4, 4)] * 9
    means = [float(picture.mean()) for picture in drawn]
    assert min(means[0:8:2]) > 150
    assert max(means[1:8:2]) < 90
    assert len({picture.tobytes() for picture in drawn}) == 9  # noise of its own for each


@torch.no_grad()
def test_a_loss_is_the_sum_over_its_parts(data: dict[str, Any], tmp_path: Path) -> None:
    task = prepare_task(tmp_path, settings(data), None, Events([]))
    model = task.new_model().eval()
    torch.nn.init.normal_(model.projection.weight, std=0.1)
    batch = task.source.batch(1, 0)
    losses = [
        task.objective.loss(model, part, LossContext(1))
        for part in (batch, batch.part(0, 5), batch.part(5, 32))
    ]
    assert [each.tokens for each in losses] == [32, 5, 27]
    whole, *parts = (float(each.loss_sum) for each in losses)
    assert whole == pytest.approx(sum(parts), rel=1e-5)
    # Of a model that answers 0 it is the mean square of image − noise.
    torch.nn.init.zeros_(model.projection.weight)
    torch.nn.init.zeros_(model.projection.bias)
    nothing = task.objective.loss(model, batch, LossContext(1))
    expected = np.square(batch.velocities.numpy()).mean(axis=(1, 2, 3)).sum()
    assert float(nothing.loss_sum) == pytest.approx(float(expected), rel=1e-5)


def test_every_validation_has_the_same_noise(data: dict[str, Any], tmp_path: Path) -> None:
    tasks = [
        prepare_task(tmp_path / str(seed), settings(data, seed=seed), None, Events([]))
        for seed in (1, 2)
    ]
    first, other = (next(iter(task.validation)) for task in tasks)
    assert torch.equal(first.images, other.images)
    assert (first.caption_positions >= 0).sum(1).min() > 1  # no caption is dropped
    # In training the seed decides, and the epoch.
    here, there = (task.source.make(np.array([3]), 0) for task in tasks)
    later = tasks[0].source.make(np.array([3]), 1)
    assert not torch.equal(here.images, there.images)
    assert not torch.equal(here.images, later.images)


def test_what_does_not_fit_is_told(data: dict[str, Any], tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.jsonl"
    image = [[1, 2, 3, 4]] * 4
    small = [[1, 2]] * 2
    lines = [{"image": each, "caption": "a picture"} for each in (image, small)]
    mixed.write_text("".join(json.dumps(each) + "\n" for each in lines))
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"image": image, "caption": "a grey picture"}) + "\n")
    for changes, error, told in (
        ({"data": {**data, "train": [{"file": str(mixed)}]}}, DataError, "mixed.jsonl, image 2"),
        ({"data": {**data, "valid": [{"file": str(other)}]}}, DataError, "has the word 'grey'"),
        ({"data": {**data, "batch_tokens": 3}}, ConfigError, "has no room for"),
        ({"data": {**data, "max_length": 3}}, DataError, "more than the 3 of data.max_length"),
        ({"images": {"patch_size": 3}}, ConfigError, "do not fill a side of 4"),
        ({"images": {"pooling": "mean"}}, ConfigError, "images.pooling is for images"),
        ({"augment": {"shift": 1}}, ConfigError, "augment.shift is for images"),
        ({"init": str(tmp_path)}, ConfigError, "A denoiser begins with new weights"),
    ):
        chosen = settings(changes.pop("data", data), **changes)
        with pytest.raises(error, match=told):
            prepare_task(tmp_path / "run", chosen, None, Events([]))
