"""A residual network through the trainer: resumed, split, skipped, averaged, begun with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from heedful.device import Precision
from heedful.errors import ConfigError, ModelError
from heedful.events import Events
from heedful.models.checkpoint import load_model, read_weights
from heedful.models.images.resnet import ResNet
from heedful.models.images.resnet_spec import ResNetSpec
from heedful.train import update as updates
from heedful.train.objective import LabelObjective, LossContext, LossSum
from heedful.train.optimizers import build_optimizer
from heedful.train.parallel.distribution import check_batch_norm
from heedful.train.run import run_training
from heedful.train.run_settings import OptimizerSettings
from heedful.train.task import Task, prepare_task
from heedful.train.tasks.image_task import image_scores
from heedful.train.update import Updater

from .conftest import noted_losses, short_run
from .test_train_images import write

NETWORK = {"network": "resnet", "blocks": [1, 1], "stage_width": 4}
CPU = Precision("fp32", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("images")
    train, valid = (write(folder, name, 60, seed) for name, seed in (("train", 1), ("valid", 2)))
    # 16 images of 4 x 4 places.
    return {"train": [train], "valid": [valid], "batch_tokens": 256, "cache": str(folder / "cache")}


def settings(files: dict[str, Any], **changes: Any):
    kept = {"images": NETWORK, "tokenizer": {}, "model": {}, "max_steps": 30}
    return short_run("images", {}, files, kept | changes)


def prepared(run: Path, files: dict[str, Any], **changes: Any) -> Task:
    return prepare_task(run, settings(files, **changes), None, Events([]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Any]):
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, run_training(run, settings(files), events=Events([]))


def statistics(model: Any) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: dict[str, Any], whole):
    run, summary = whole
    run_training(tmp_path / "parts", settings(files, max_steps=13), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(run)
    assert parts.scores == summary.scores
    assert summary.scores["accuracy"] > 0.6
    first, again = (read_weights(path / "model") for path in (run, tmp_path / "parts"))
    assert sum("running" in name for name in first) == 12
    assert all(torch.equal(first[name], again[name]) for name in first)
    model, _ = load_model(run)
    assert isinstance(model, ResNet)
    assert model.spec.num_states == 16


class Failing(LabelObjective):
    """A loss for which memory runs out, or that is not a number, for some numbers of images."""

    def __init__(self, most: int = 1000, bad: int = -1) -> None:
        super().__init__(image_scores, 0.0)
        self.most, self.bad = most, bad

    def loss(self, model: Any, batch: Any, context: LossContext) -> LossSum:
        result = super().loss(model, batch, context)
        count = len(batch.images)
        if count > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        if count == self.bad:
            result = replace(result, loss_sum=result.loss_sum * float("nan"))
        return result


@pytest.fixture
def batches(tmp_path: Path, files: dict[str, Any]):
    source = prepared(tmp_path, files).source
    return [source.batch(0, number) for number in range(2)]


def updater(objective: LabelObjective) -> Updater:
    torch.manual_seed(0)
    sizes = {"width": 4, "blocks": (1, 1), "image_size": 8, "channels": 1}
    model = ResNet(ResNetSpec(**sizes, labels=("0", "1", "2")))
    optimizer = build_optimizer(model, OptimizerSettings(kind="adamw"))
    return Updater(model, objective, optimizer, CPU, seed=3)


def assert_equal(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_parts_count_as_batches_and_failed_attempts_do_not_count(batches) -> None:
    """Memory that runs out leaves what the same parts give where it suffices."""
    split = updater(Failing(most=10))
    result = split.update(batches, 1, 0.01)
    assert result is not None
    assert result.too_large
    halves = []
    for batch in batches:
        half, count = len(batch.images) // 2, len(batch.images)
        assert half <= 10 < count
        halves += [batch.part(0, half), batch.part(half, count)]
    direct = updater(Failing())
    direct.update(halves, 1, 0.01)
    assert_equal(split.model.state_dict(), direct.model.state_dict())
    # What does not hold: a whole batch has other means, so another gradient.
    together = updater(Failing())
    together.update(batches, 1, 0.01)
    name = "stem.norm.running_mean"
    assert not torch.equal(together.model.state_dict()[name], split.model.state_dict()[name])


@pytest.mark.parametrize("deferred", [False, True])
def test_updates_that_are_not_made_leave_statistics_alone(
    batches, deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if deferred:
        monkeypatch.setattr(updates, "DECIDING", {"cpu"})
    work = updater(Failing(bad=7))
    assert (work.device_step is not None) is deferred
    assert work.update(batches, 1, 0.01) is not None
    before = statistics(work.model)
    bad = batches[0].part(0, 7)
    result = work.update([batches[1], bad], 2, 0.01)
    assert result is not None
    assert not result.finite
    assert_equal(statistics(work.model), before)
    work.diagnose([bad], 2, {})
    assert_equal(statistics(work.model), before)
    assert work.update(batches, 2, 0.01, cancelled=iter([False, True]).__next__) is None
    assert_equal(statistics(work.model), before)
    work.warm_up(batches[0], 1)
    assert_equal(statistics(work.model), before)
    if not deferred:  # a skip stays until the trainer has read it
        work.update(batches, 2, 0.01)
        after = statistics(work.model)
        assert not any(torch.equal(after[name], before[name]) for name in before)


def test_averages_are_of_statistics_too(tmp_path: Path, files: dict[str, Any]) -> None:
    checkpoint = {"every_steps": 2, "average": "last", "average_count": 2, "ema_decay": 0.5}
    chosen = settings(files, checkpoint=checkpoint, max_steps=4, data={**files, "valid": []})
    run_training(tmp_path / "run", chosen, events=Events([]))
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    stored = [load_file(folder / "model.safetensors") for folder in folders]
    averaged = read_weights(tmp_path / "run" / "model")
    assert len(stored) == 2
    for name, tensor in averaged.items():
        torch.testing.assert_close(tensor, (stored[0][name] + stored[1][name]) / 2)
    assert bool((averaged["stem.norm.running_variance"] > 0).all())


def test_training_begins_with_a_network_of_other_labels(
    tmp_path: Path, files: dict[str, Any], whole
) -> None:
    run, _ = whole
    stored = read_weights(run / "model")
    other = {**files, "train": [write(tmp_path, "five", 30, 8, classes=5)], "valid": []}
    task = prepared(tmp_path, other, init=str(run), images={})
    found = task.new_model().state_dict()
    assert found["classifier.output.weight"].shape == (5, 8)
    for name, tensor in found.items():
        assert name.startswith("classifier.") or torch.equal(tensor, stored[name]), name
    for images, told in (
        ({"blocks": [2, 1]}, r"images.blocks is \(2, 1\), and the model's \(1, 1\)"),
        ({"network": "vit"}, "images.network is vit, and the model's resnet"),
        ({"patch_size": 2}, "images.patch_size is 2, and the model's None"),
    ):
        with pytest.raises(ConfigError, match=told):
            prepared(tmp_path, other, init=str(run), images=images)
    with pytest.raises(ConfigError, match=r"'resnet' and has no model\.dropout"):
        prepared(tmp_path, other, init=str(run), images={}, model={"dropout": 0.3})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"num_heads": 4}}, "'resnet' and has no model.num_heads"),
        ({"images": {**NETWORK, "patch_size": 2}}, "'resnet' and has no images.patch_size"),
        ({"images": {"blocks": [1]}}, "'vision' and has no images.blocks"),
        ({"images": {**NETWORK, "blocks": [1] * 5}}, "single place"),
    ],
)
def test_options_of_other_networks(tmp_path: Path, files, changes, told) -> None:
    with pytest.raises(ConfigError, match=told):
        prepared(tmp_path, files, **changes)


def test_several_processes_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    check_batch_norm(prepared(tmp_path, files, images={"patch_size": 2}).new_model())
    with pytest.raises(ConfigError, match="another batch in each process"):
        check_batch_norm(prepared(tmp_path, files).new_model())


def test_checkpointing_needs_blocks(tmp_path: Path, files: dict[str, Any]) -> None:
    task = prepared(tmp_path, files, checkpointing="full")
    with pytest.raises((ConfigError, ModelError), match="block"):
        task.new_model()
