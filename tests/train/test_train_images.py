"""Images through the same trainer, from scratch and from a trained model, without a tokenizer."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ConfigError, DataError, ModelError
from heedful.events import Events, Recorder
from heedful.models.checkpoint import load_model, read_weights
from heedful.models.images.vision import VisionModel
from heedful.train.objective import LossContext
from heedful.train.run import run_training
from heedful.train.run_config import resolve_settings, settings_of_run
from heedful.train.run_settings import RunSettings
from heedful.train.task import Task, prepare_task

from .conftest import noted_losses, short_run

SHAPE = {"width": 16, "encoder_layers": 2, "num_heads": 2, "feedforward": 32}
AUGMENT = {"shift": 1, "rotate": 10.0, "scale": 0.1, "erase": 0.3}
SIDE = 8


def stripes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Bright stripes in noise: across for 0, down for 1, none for 2."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 80, (len(labels), SIDE, SIDE))
    for image, label in zip(images, labels, strict=True):
        if label < 2:
            (image if label == 0 else image.T)[draw.integers(0, 2) :: 3] += 150
    return images.astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder: Path, name: str, count: int, seed: int, classes: int = 3) -> dict[str, str]:
    labels = np.random.default_rng(seed + 100).integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    files = {"source": folder / f"{name}.images", "target": folder / f"{name}.labels"}
    files["source"].write_bytes(idx(stripes(labels, seed)))
    files["target"].write_bytes(idx(labels))
    return {side: str(file) for side, file in files.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("images")
    return {
        "train": [
            write(folder, "train", 90, 1),
            write(folder, "more", 20, 2) | {"weight": 2.0},
        ],
        "valid": [write(folder, "valid", 50, 3)],
        "batch_tokens": 17 * 16,  # 4 x 4 patches and [CLS]
        "cache": str(folder / "cache"),
    }


def settings(files: dict[str, Any], **changes: Any) -> RunSettings:
    kept = {
        "images": {"patch_size": 2},
        "augment": AUGMENT,
        "tokenizer": {},
        "checkpoint": {"every_steps": 5, "average_count": 2},
        "max_steps": 30,
    }
    return short_run("images", SHAPE, files, kept | changes)


def prepared(run: Path, chosen: RunSettings) -> Task:
    return prepare_task(run, chosen, None, Events([]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Any]):
    """A run that was never stopped, and its summary."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, run_training(run, settings(files), events=Events([]))


def test_a_stopped_and_resumed_run_is_the_same(tmp_path: Path, files: dict[str, Any], whole):
    run, summary = whole
    run_training(tmp_path / "parts", settings(files, max_steps=13), events=Events([]))
    parts = run_training(tmp_path / "parts", settings(files), resume=True, events=Events([]))
    assert noted_losses(tmp_path / "parts") == noted_losses(run)
    assert parts.scores == summary.scores
    assert summary.epochs > 1
    assert summary.scores["accuracy"] > 0.6
    assert summary.scores.keys() == {"loss", "accuracy", "macro_f1"}
    first, again = (read_weights(path / "model") for path in (run, tmp_path / "parts"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_model_directory_knows_labels_and_pixels_and_has_no_tokenizer(
    files: dict[str, Any], whole
) -> None:
    run, summary = whole
    assert not (run / "tokenizer").exists()
    assert sorted(p.name for p in (run / "model").iterdir()) == ["config.json", "model.safetensors"]
    model, tokenizers = load_model(run)
    assert tokenizers is None
    assert isinstance(model, VisionModel)
    assert model.spec.class_names == ("0", "1", "2")
    assert model.spec.pixels is not None
    every = [np.fromfile(f["source"], np.uint8)[16:] for f in files["train"]]
    pixels = np.concatenate(every) / 255
    assert model.spec.pixels.mean == pytest.approx((pixels.mean(),))
    assert model.spec.pixels.std == pytest.approx((pixels.std(),))

    content = np.fromfile(files["valid"][0]["source"], np.uint8)[16:].reshape(-1, SIDE, SIDE)
    right = np.fromfile(files["valid"][0]["target"], np.uint8)[8:]
    found = heedful.load(run).classify(list(content), top=1)
    accuracy = np.mean([labels[0].label == str(n) for labels, n in zip(found, right, strict=True)])
    assert accuracy == pytest.approx(summary.scores["accuracy"])


def test_every_image_is_shown_as_often_as_its_weight_says(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    task = prepared(tmp_path, settings(files))
    for epoch in (0, 1):
        shown = np.zeros(110, int)
        for number in range(task.source.count(epoch)):
            batch = task.source.batch(epoch, number)
            assert len(batch.images) <= 16
            np.add.at(shown, batch.indices.numpy(), 1)
        assert shown.tolist() == [1] * 90 + [2] * 20
    assert task.source.lines([0, 90]) == [
        f"{files['train'][0]['source']}, image 1",
        f"{files['train'][1]['source']}, image 1",
    ]
    first = [task.source.batch(epoch, 0).indices.tolist() for epoch in (0, 1)]
    assert first[0] != first[1]


def test_images_change_with_the_epoch_and_keep_their_labels(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    task = prepared(tmp_path, settings(files))
    right = np.fromfile(files["train"][0]["target"], np.uint8)[8:]
    seen: dict[int, list[torch.Tensor]] = {}
    for epoch in (0, 1):
        for number in range(task.source.count(epoch)):
            batch = task.source.batch(epoch, number)
            again = task.source.batch(epoch, number)
            assert torch.equal(batch.images, again.images)
            for at, index in enumerate(batch.indices.tolist()):
                if index < 90:
                    assert batch.targets[at] == right[index]
                    seen.setdefault(index, []).append(batch.images[at])
    assert all(len(both) == 2 and not torch.equal(*both) for both in seen.values())
    still = prepared(tmp_path, settings(files, augment={}))
    batch = still.source.batch(0, 0)
    plain = still.source.make(batch.indices.numpy(), 1)
    assert torch.equal(batch.images, plain.images)


def test_the_loss_is_that_of_the_labels(tmp_path: Path, files: dict[str, Any]) -> None:
    for pooling in ("first", "mean"):
        images = {"patch_size": 2, "pooling": pooling}
        task = prepared(tmp_path, settings(files, images=images, model={**SHAPE, "dropout": 0.0}))
        model = task.new_model().train()
        batch = task.source.batch(0, 0)
        result = task.objective.loss(model, batch, LossContext(1))
        result.loss_sum.backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        probabilities = model.class_logits(model(batch.images)).softmax(-1)
        expected = -probabilities[torch.arange(len(batch.targets)), batch.targets].log().sum()
        torch.testing.assert_close(result.loss_sum, expected)
        assert result.tokens == len(batch.indices)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"images": {"patch_size": 3}}, "Patches of 3 pixels do not fill a side of 8"),
        ({"tokenizer": {"vocabulary_size": 40}}, r"tokenizer.vocabulary_size: .* are for text"),
        ({"objective": {"mask_share": 0.5}}, "objective.mask_share"),
        (
            {"model": {**SHAPE, "positions": "rotary"}},
            "positions of an image's patches are learned",
        ),
        ({"validation": {"metrics": ["bleu"], "choose_by": "loss"}}, "bleu cannot be measured"),
        ({"images": {"patch_size": 1}, "data": {"batch_tokens": 64}}, "no room for an image"),
    ],
)
def test_settings_that_do_not_go_with_images(tmp_path: Path, files, changes, told) -> None:
    if "data" in changes:
        changes = changes | {"data": files | changes["data"]}
    with pytest.raises(ConfigError, match=told):
        prepared(tmp_path, settings(files, **changes))
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize(
    ("section", "tasks"),
    [
        ({"augment": {"shift": 1}}, "images.* and contrast"),
        ({"images": {"size": 8}}, "images.* and diffusion"),
    ],
)
def test_settings_of_images_are_refused_elsewhere(tmp_path: Path, section, tasks: str) -> None:
    (tmp_path / "a.tsv").write_text("sun\tgood\nrain\tbad\n", encoding="utf-8")
    data = {"train": [{"file": str(tmp_path / "a.tsv")}]}
    chosen = resolve_settings(None, None, {"task": "classify", "data": data, **section})
    with pytest.raises(ConfigError, match=f"is for {tasks}; this task is classify"):
        prepare_task(tmp_path, chosen, None, Events([]))


def test_validation_images_must_be_like_the_others(tmp_path: Path, files: dict[str, Any]) -> None:
    unknown = write(tmp_path, "unknown", 10, 5, classes=5)
    with pytest.raises(DataError, match=r"unknown.images, image 4: No training image .*'3'"):
        prepared(tmp_path, settings({**files, "valid": [unknown]}))
    alone = write(tmp_path, "alone", 10, 5, classes=1)
    with pytest.raises(DataError, match="only label is '0'"):
        prepared(tmp_path, settings({**files, "train": [alone]}))
    wide = tmp_path / "wide.images"
    wide.write_bytes(idx(np.zeros((10, 4, 4))))
    valid = {"source": str(wide), "target": unknown["target"]}
    with pytest.raises(DataError, match=r"1 × 4 × 4 .* 1 × 8 × 8"):
        prepared(tmp_path, settings({**files, "valid": [valid]}))


def test_a_run_is_resumed_with_the_same_images_only(tmp_path: Path, files: dict[str, Any]) -> None:
    run_training(tmp_path / "run", settings(files, max_steps=2), events=Events([]))
    first, second = files["train"]
    for train in ([first, {**second, "weight": 1.0}], [first], [second, first]):
        changed = settings({**files, "train": train}, max_steps=4)
        with pytest.raises(DataError, match="not those the run began with"):
            run_training(tmp_path / "run", changed, resume=True, events=Events([]))
    for changes in ({"augment": {**AUGMENT, "shift": 2}}, {"images": {"patch_size": 4}}):
        with pytest.raises(ConfigError, match="cannot be resumed"):
            run_training(
                tmp_path / "run", settings(files, **changes), resume=True, events=Events([])
            )


def test_training_begins_with_a_model_and_a_new_classifier(
    tmp_path: Path, files: dict[str, Any], whole
) -> None:
    run, _ = whole
    before, _ = load_model(run)
    stored = read_weights(run / "model")
    fewer = {**files, "train": [write(tmp_path, "two", 20, 7, classes=2)], "valid": []}
    brought = {"init": str(run), "model": {}, "images": {}}
    same = prepared(tmp_path, settings(fewer, **brought))
    assert same.new_model().spec == before.spec  # its labels hold those of the data
    assert all(torch.equal(t, stored[n]) for n, t in same.new_model().state_dict().items())

    other = {**fewer, "train": [write(tmp_path, "five", 30, 8, classes=5)]}
    recorder = Recorder()
    task = prepare_task(tmp_path, settings(other, **brought), None, Events([recorder]))
    recorder.events.clear()
    model = task.new_model()
    assert model.spec.class_names == ("0", "1", "2", "3", "4")
    assert model.spec.pixels == before.spec.pixels
    notes = [event.text for event in recorder.events]
    found = model.state_dict()
    for name, tensor in found.items():
        assert name.startswith("classifier.") or torch.equal(tensor, stored[name]), name
    assert found["classifier.output.weight"].shape == (5, 16)
    assert [text.split()[0] for text in notes] == ["classifier", "classifier"]
    chosen = settings(other, **brought, max_steps=2)
    assert run_training(tmp_path / "tuned", chosen, events=Events([])).steps == 2
    again = settings_of_run(tmp_path / "tuned", {"max_steps": 4})  # as `train --resume` reads them
    assert run_training(tmp_path / "tuned", again, resume=True, events=Events([])).steps == 4
    stored = settings_of_run(tmp_path / "tuned", {"max_steps": 6})  # as the command line does
    assert run_training(tmp_path / "tuned", stored, resume=True, events=Events([])).steps == 6


def test_a_model_to_begin_with_that_is_another_one(tmp_path, files, whole, encoder_directory):
    run, _ = whole
    for changes, told in (
        ({"model": {"width": 32}}, "model.width is 32, and the model's 16"),
        ({"images": {"patch_size": 4}}, "images.patch_size is 4, and the model's 2"),
        ({"images": {"pooling": "mean"}}, "images.pooling is mean, and the model's first"),
    ):
        given = {"init": str(run), "model": {}, "images": {}} | changes
        with pytest.raises(ConfigError, match=told):
            prepared(tmp_path, settings(files, **given))
    wrong = {"init": str(encoder_directory), "model": {}, "images": {}}
    with pytest.raises(
        ModelError, match="of the kind encoder; the task images trains one of the kind vision"
    ):
        prepared(tmp_path, settings(files, **wrong))
