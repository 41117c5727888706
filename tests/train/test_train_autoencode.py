"""Autoencoders through the same trainer: resumed, split and accumulated runs, and unused codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful.cli.main import main
from heedful.data.encoded_images import ImageBatch
from heedful.errors import ConfigError, DataError, ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model, read_weights
from heedful.models.images.autoencoder import (
    Autoencoder,
    Reconstruction,
    code_perplexity,
    nearest,
    used_codes,
)
from heedful.pipelines.image_codes import CodePipeline
from heedful.train.objective import LossContext, LossSum
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task
from heedful.train.tasks.autoencoder_loss import AutoencoderObjective

from .conftest import noted_losses, short_run

SHAPE = {
    "width": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "num_heads": 2,
    "feedforward": 32,
}


def pictures(count: int, seed: int) -> np.ndarray:
    """Squares of 4 × 4 pixels, each dark or light, in images of 8 × 8."""
    cells = np.random.default_rng(seed).integers(0, 2, (count, 2, 2)) * 120 + 60
    return cells.repeat(4, 1).repeat(4, 2).astype(np.uint8)


def write(file: Path, count: int, seed: int) -> dict[str, str]:
    lines = (json.dumps({"image": each.tolist(), "caption": "x"}) for each in pictures(count, seed))
    file.write_text("".join(f"{line}\n" for line in lines))
    return {"file": str(file)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("images")
    return {
        "train": [write(folder / "train.jsonl", 60, 1)],
        "valid": [write(folder / "valid.jsonl", 20, 2)],
        "batch_tokens": 4 * 12,
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    kept = {
        "images": {"channels": 1, "patch_size": 4, "codes": 8, "code_width": 4},
        "tokenizer": {},
        "max_steps": 40,
        "checkpoint": {"every_steps": 10, "average": "none"},
    }
    return short_run("autoencode", SHAPE, files, kept | changes)


def prepared(run: Path, chosen: RunSettings) -> Task:
    return prepare_task(run, chosen, None, Events([]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Any]):
    """A run that was never stopped, and its summary."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, run_training(run, settings(files), events=Events([]))


def test_images_are_learned_and_a_resumed_run_is_the_same(tmp_path: Path, files, whole) -> None:
    run, summary = whole
    assert summary.scores.keys() == {"loss", "codes_used", "code_perplexity"}
    assert summary.scores["loss"] < 0.2  # of the variance of the pixels
    assert 1.9 < summary.scores["code_perplexity"] <= summary.scores["codes_used"] <= 8
    run_training(tmp_path / "parts", settings(files, max_steps=13), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(run)
    assert parts.scores == summary.scores
    first, again = (read_weights(path / "model") for path in (run, tmp_path / "parts"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_pipeline_gives_codes_of_images_and_images_of_codes(files, whole) -> None:
    run, summary = whole
    pipeline = heedful.load(run)
    assert isinstance(pipeline, CodePipeline)
    images = list(pictures(20, 2))
    codes = pipeline.encode(images)
    assert {each.shape for each in codes} == {(2, 2)}
    drawn = pipeline.decode(codes)
    error = np.mean((np.stack(drawn).astype(float) - np.stack(images)) ** 2)
    variance = np.mean(np.square(np.array(pipeline.spec.pixels.std) * 255))
    # Rounded to bytes.
    assert error / variance == pytest.approx(summary.scores["loss"], rel=0.05)
    one_by_one = [pipeline.encode([each], batch_tokens=1)[0] for each in images]
    assert np.array_equal(np.stack(one_by_one), np.stack(codes))


def test_evaluate_measures_what_comes_back(
    files, whole, capsys: pytest.CaptureFixture[str]
) -> None:
    run, summary = whole
    assert main(["evaluate", str(run), "--data", files["valid"][0]["file"], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    scores = {name: each["score"] for name, each in report["scores"].items()}
    assert report["images"] == 20
    pipeline, images = heedful.load(run), list(pictures(20, 2))
    drawn = np.stack(pipeline.decode(pipeline.encode(images))).astype(float)
    error = np.mean((drawn - np.stack(images)) ** 2) / 255**2
    assert scores["mean_squared_error"] == pytest.approx(error)
    assert scores["signal_to_noise"] == pytest.approx(-10 * np.log10(error))
    assert scores["codes_used"] == summary.scores["codes_used"]
    assert scores["code_perplexity"] == pytest.approx(summary.scores["code_perplexity"])


class Halving(torch.nn.Module):
    """Halves all pixels; the pixels of an image are the vector of its only patch."""

    def __init__(self, *codes: tuple[float, float, float, float]) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(codes))

    def forward(self, images: Tensor, capture: object = None) -> Reconstruction:
        vectors = images.flatten(1)[:, None]
        return Reconstruction(0.5 * images, vectors, self.table, nearest(vectors, self.table))


UP, DOWN, LEFT = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)


def batch_of(*vectors: tuple[float, ...]) -> ImageBatch:
    images = torch.tensor(vectors).reshape(-1, 1, 2, 2)
    numbers = torch.arange(len(images))
    return ImageBatch(images, numbers, numbers)


def loss_of(model: torch.nn.Module, batch: ImageBatch, commitment: float = 0.25) -> LossSum:
    return AutoencoderObjective(commitment).loss(model, batch, LossContext(1))


def test_the_loss_by_hand() -> None:
    near, batch = (0.8, 0.6, 0.0, 0.0), batch_of((0.8, 0.6, 0.0, 0.0), DOWN)
    found = loss_of(Halving(UP, DOWN), batch)
    error = (0.5**2 + 0.5**2) / 4  # vectors have the length 1, and four pixels each
    distance = (1 - near[0]) ** 2 + near[1] ** 2
    assert found.tokens == 2
    assert float(found.extras["nll"]) == pytest.approx(error)
    assert found.loss_sum.item() == pytest.approx(error + 1.25 * distance)
    free = loss_of(Halving(UP, DOWN), batch, 0.0)
    assert free.loss_sum.item() == pytest.approx(error + distance)
    measured = loss_of(Halving(UP, DOWN).eval(), batch)
    assert measured.loss_sum.item() == pytest.approx(error)


def test_a_code_without_a_patch_is_drawn_to_the_nearest_patch() -> None:
    model = Halving(UP, DOWN, LEFT)
    close = (0.0, 0.6, 0.8, 0.0)
    loss_of(model, batch_of(UP, DOWN, (0.0, 0.8, 0.6, 0.0))).loss_sum.backward()
    assert model.table.grad is not None
    pull = -model.table.grad[2]
    assert pull[1] > 0  # towards the third patch, whose code is DOWN
    assert float(model.table.grad[0].abs().sum()) == 0
    model.table.grad = None
    loss_of(model, batch_of(UP, DOWN, close)).loss_sum.backward()
    with torch.no_grad():
        model.table[2] = torch.nn.functional.normalize(
            model.table[2] - 0.1 * model.table.grad[2], dim=0
        )
    assert nearest(torch.tensor(close), model.table) == 2


def test_losses_of_parts_add_up_where_each_part_has_all_codes() -> None:
    model, vectors = Halving(UP, DOWN), [(0.8, 0.6, 0.0, 0.0), DOWN, UP, (0.0, 0.6, 0.8, 0.0)]
    batch = batch_of(*vectors)
    parts = [loss_of(model, batch.part(0, 2)), loss_of(model, batch.part(2, 4))]
    whole = loss_of(model, batch)
    torch.testing.assert_close(sum(each.loss_sum for each in parts), whole.loss_sum)
    assert sum(each.tokens for each in parts) == whole.tokens == 4


def test_accumulated_batches_are_one_update(tmp_path: Path, files: dict[str, Any]) -> None:
    """Two batches in an update give weights from which a resumed run goes on, bit for bit."""
    chosen = {"optimizer": {"accumulate": 2}, "max_steps": 12}
    run_training(tmp_path / "whole", settings(files, **chosen), events=Events([]))
    run_training(
        tmp_path / "parts", settings(files, **chosen | {"max_steps": 5}), events=Events([])
    )
    run_training(tmp_path / "parts", settings(files, **chosen), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(tmp_path / "whole")


def test_codes_in_use_and_their_perplexity() -> None:
    counts = torch.tensor([5.0, 5.0, 0.0, 5.0, 5.0])
    assert used_codes(counts) == 4
    assert code_perplexity(counts) == pytest.approx(4)
    assert code_perplexity(torch.tensor([7.0, 0.0])) == 1
    assert 1 < code_perplexity(torch.tensor([9.0, 1.0])) < 2


def test_a_trained_autoencoder_is_trained_further(tmp_path: Path, files, whole) -> None:
    run, summary = whole
    brought = {"init": str(run), "model": {}, "images": {}, "max_steps": 10}
    more = run_training(tmp_path / "more", settings(files, **brought), events=Events([]))
    model, _ = load_model(tmp_path / "more")
    assert isinstance(model, Autoencoder)
    assert model.spec.codes == 8
    assert more.scores["loss"] < 2 * summary.scores["loss"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": {"channels": 1, "patch_size": 3}}, "Patches of 3 pixels do not fill a side"),
        ({"images": {"channels": 1, "pooling": "mean"}}, "images.pooling is for images"),
        ({"model": {**SHAPE, "positions": "rotary"}}, "are learned, not rotary"),
        ({"tokenizer": {"vocabulary_size": 50}}, "are for text; this task is autoencode"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, files, changes: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepared(tmp_path, settings(files, **changes))


def test_another_model_to_begin_with_is_refused(tmp_path: Path, files, whole) -> None:
    run, _ = whole
    differing = {"init": str(run), "model": {}, "images": {"codes": 9}}
    with pytest.raises(ConfigError, match=r"images\.codes is 9, and the model's 8"):
        prepared(tmp_path, settings(files, **differing))
    classified = {"init": str(run), "model": {}, "images": {}, "task": "images"}
    with pytest.raises(ModelError, match="of the kind autoencoder; the task images trains"):
        prepared(tmp_path, resolve_settings(None, None, {"data": files} | classified))


@pytest.mark.parametrize(
    "codes", [[[0, 1]], [[0, 1], [2]], [[0, 8], [0, 0]], [[-1, 0], [0, 0]], [[0.5, 0], [0, 0]], "x"]
)
def test_codes_of_another_shape_or_model_are_refused(whole, codes: Any) -> None:
    with pytest.raises(DataError, match=r"item 2.*2 rows of 2 whole numbers from 0 to 7"):
        heedful.load(whole[0]).decode([[[0, 1], [2, 3]], codes])
