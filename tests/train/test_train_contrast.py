"""Images and captions through the same trainer: two encoders with vectors in one space (CLIP)."""

from __future__ import annotations

import json
import re
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
    captions = [row["caption"] for row in rows]
    # Captions of two of the three, as labels in a template.
    found = model.classify(images, ["lie", "stand"], template="bars that {}", top=1)
    assert [labels[0].label for labels in model.classify(images, CAPTIONS[:2], top=1)] == [
        f"bars that {labels[0].label}" for labels in found
    ]
    assert found != model.classify(images, ["lie", "stand"], top=1)
    pairs = zip(found, captions, strict=True)
    right = [labels[0].label == said.split()[-1] for labels, said in pairs if "bars" in said]
    assert np.mean(right) > 0.9
    of_images, of_texts = model.embed_images(images), model.embed(list(CAPTIONS))
    assert np.allclose(np.linalg.norm(of_images, axis=1), 1, atol=1e-5)
    nearest = model.retrieve(of_texts, of_images, top=10)
    for said, numbers in zip(CAPTIONS, nearest, strict=True):
        assert np.mean([captions[number] == said for number, _ in numbers]) > 0.9
        assert [cosine for _, cosine in numbers] == sorted((c for _, c in numbers), reverse=True)
    recall = model.recall(images, captions)
    both = (recall["text_recall_at_1"] + recall["image_recall_at_1"]) / 2
    assert both == pytest.approx(summary.scores["recall"]) == pytest.approx(1, abs=0.1)
    assert heedful.evaluate(model, rows) == heedful.evaluate(run, files["valid"][0]["file"])
    assert heedful.evaluate(model, rows) == pytest.approx(recall)


def test_examples_in_memory_are_trained_on(tmp_path: Path) -> None:
    rows = [row | {"image": np.array(row["image"])} for row in records(9, 1)]
    shape = {"model": SHAPE, "images": {"patch_size": 4}}
    heedful.train(rows, tmp_path / "run", task="contrast", settings=shape, max_steps=1)
    assert heedful.load(tmp_path / "run").embed(["a grey wall"]).shape == (1, 16)


@pytest.mark.parametrize("text_pooling", ["first", "last", "mean"])
def test_the_loss_compares_all_pairs_of_a_batch(tmp_path: Path, files, text_pooling: str) -> None:
    """By loops: of all captions an image finds one equal to its own, a caption such an image."""
    task = prepare_task(tmp_path, settings(files), None, Events([]))
    spec = task.new_model().spec.model_copy(update={"text_pooling": text_pooling})  # type: ignore
    torch.manual_seed(1)
    model = TwoTowers(spec).eval()
    batch: Any = task.source.batch(0, 0)
    assert len(set(batch.targets.tolist())) < len(batch.targets)
    result = task.objective.loss(model, batch, LossContext(1))
    result.loss_sum.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    images, texts = [], []
    with torch.no_grad():
        for image, ids, at in zip(batch.images, batch.ids, batch.positions, strict=True):
            # Alone and without padding: a pair's vectors do not depend on its neighbours.
            real = int((at >= 0).sum())
            images.append(model.image_vectors(image[None])[0])
            texts.append(model.text_vectors(ids[None, :real], at[None, :real])[0])
    expected = 0.0
    for one, other in ((images, texts), (texts, images)):
        for number, query in zip(batch.targets, one, strict=True):
            scores = torch.stack([query @ each for each in other]) / 0.07
            right = batch.targets == number
            expected -= float(scores.log_softmax(0)[right].mean()) / 2
    assert float(result.loss_sum.detach()) == pytest.approx(expected, rel=1e-4)
    assert result.tokens == len(batch.targets)


def test_the_temperature_is_bounded(tmp_path: Path, files: dict[str, Any]) -> None:
    model: Any = prepare_task(tmp_path, settings(files), None, Events([])).new_model()
    vectors = torch.eye(3, 16)
    with torch.no_grad():
        assert float(model.scores(vectors, vectors).max()) == pytest.approx(1 / 0.07)
        model.log_scale.fill_(9.0)
        assert float(model.scores(vectors, vectors).max()) == pytest.approx(100.0)


def test_a_batch_is_not_computed_in_parts(tmp_path: Path, files: dict[str, Any]) -> None:
    batch: Any = prepare_task(tmp_path, settings(files), None, Events([])).source.batch(0, 0)
    with pytest.raises(RunError, match=r"batch_tokens: .*batch of 16 pairs.*compares all of them"):
        batch.part(0, len(batch.targets) // 2)
    assert batch.part(0, 1).target_tokens == 1  # a stand-in, whose gradient does not count


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"batch_tokens": 33}}, "no room for two images"),
        ({"parallel": {"parts": 2}}, r"parallel.parts = 2.*compares all pairs"),
        ({"parallel": {"shard": 2}}, r"parallel.shard = 2.*compares all pairs"),
        ({"init": "somewhere"}, "trained anew"),
        ({"images": {"patch_size": 3}}, "Patches of 3 pixels do not fill a side of 8"),
        ({"validation": {"metrics": ["bleu"], "choose_by": "bleu"}}, "bleu cannot be measured"),
        ({"objective": {"mask_share": 0.5}}, "this task is contrast"),
    ],
)
def test_settings_that_do_not_go_with_pairs(tmp_path: Path, files, changes, told) -> None:
    data = files | changes.pop("data", {})
    with pytest.raises(ConfigError) as wrong:
        prepare_task(tmp_path, settings(data, **changes), None, Events([]))
    assert re.search(told, str(wrong.value)), wrong.value


PLAIN = records(6, 1)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (PLAIN[0] | {"caption": " "}, r"valid.jsonl, image 7: The caption ' ' has no words"),
        (PLAIN[0] | {"caption": "天 bars"}, r"image 7: The caption '天 bars' has 1 char.*: 天"),
        (PLAIN[0] | {"image": [[0, 1], [1, 0]]}, r"image 7: The image has 2 × 2 .*not 8 × 8"),
        (PLAIN[0] | {"image": [[0, 1], [1]]}, r"valid.jsonl:7: The rows .* differ in length"),
        ({"image": PLAIN[0]["image"]}, r"valid.jsonl:7: The line is no object with a caption"),
    ],
)
def test_captions_and_images_that_cannot_be_used_are_named(
    tmp_path: Path, files: dict[str, Any], row: Any, told: str
) -> None:
    valid = [written(tmp_path / "valid.jsonl", [*PLAIN, row])]
    with pytest.raises(DataError, match=told):
        prepare_task(tmp_path / "run", settings(files | {"valid": valid}), None, Events([]))


def test_one_caption_teaches_nothing(tmp_path: Path, files: dict[str, Any]) -> None:
    train = [written(tmp_path / "one.jsonl", PLAIN[:1] * 3)]
    with pytest.raises(DataError, match="the only caption is 'bars that lie'"):
        prepare_task(tmp_path / "run", settings(files | {"train": train}), None, Events([]))


def test_texts_and_labels_that_cannot_be_read_are_named(whole) -> None:
    model = heedful.load(whole[0])
    image = np.array(PLAIN[0]["image"], np.uint8)
    with pytest.raises(DataError, match=r"line 2: The caption '' has no words.*Give words"):
        model.embed(["a grey wall", ""])
    with pytest.raises(DataError, match=r"'鸟' has 1 character unknown to the model"):
        model.classify([image], ["a grey wall", "鸟"])
    with pytest.raises(DataError, match="more than the 24"):
        model.embed(["bars " * 30])
    for labels in (["a grey wall"], ["bars", "bars"]):
        with pytest.raises(ConfigError, match="At least two labels are needed, and all must"):
            model.classify([image], labels)
    with pytest.raises(ConfigError, match=r"no \{\} in the place"):
        model.classify([image], ["bars", "a wall"], template="a picture")
    with pytest.raises(ConfigError, match="top = 0"):
        model.classify([image], ["bars", "a wall"], top=0)
