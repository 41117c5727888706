"""`classify --labels`, `embed --images` and `evaluate --data` on a model of images and texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import heedful

SHAPE = {"width": 16, "encoder_layers": 1, "num_heads": 2, "feedforward": 24}
LABELS = ("a cat", "a dog", "two cats")


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    draw = np.random.default_rng(0)
    return [
        {"image": draw.integers(0, 256, (8, 8)).tolist(), "caption": LABELS[number % 3]}
        for number in range(9)
    ]


@pytest.fixture(scope="module")
def clip(tmp_path_factory, rows) -> Path:
    """A model that has hardly learned anything."""
    out = tmp_path_factory.mktemp("runs") / "clip"
    settings = {"model": SHAPE, "images": {"patch_size": 4}, "data": {"max_length": 16}}
    heedful.train(rows, out, task="contrast", settings=settings, max_steps=2, callbacks=[])
    return out


@pytest.fixture(scope="module")
def names(tmp_path_factory, rows) -> list[str]:
    place = tmp_path_factory.mktemp("pictures")
    for number, row in enumerate(rows[:2]):
        Image.fromarray(np.array(row["image"], np.uint8)).save(place / f"{number}.png")
    return [str(place / f"{number}.png") for number in range(2)]


def test_images_are_labelled_by_given_texts(run, clip, names) -> None:
    expected = heedful.load(clip).classify(names, ["cat", "dog"], template="a {}")
    words = ("--labels", "cat", "dog", "--template", "a {}")
    items = [json.loads(line) for line in run("classify", clip, *names, *words, "--json").lines]
    assert [item["image"] for item in items] == names
    for item, labels in zip(items, expected, strict=True):
        assert [each["label"] for each in item["labels"]] == [each.label for each in labels]
        found = [each["probability"] for each in item["labels"]]
        assert found == pytest.approx([each.probability for each in labels], abs=1e-4)
        assert sum(found) == pytest.approx(1)
    (line,) = run("classify", clip, names[0], "--labels", "a cat", "a dog").lines
    assert line.split("\t")[0] == names[0]


def test_texts_and_images_become_vectors(run, clip, names) -> None:
    model = heedful.load(clip)
    (line,) = run("embed", clip, "two cats", "--json").lines
    assert json.loads(line)["vector"] == pytest.approx(model.embed(["two cats"])[0], abs=1e-5)
    items = [json.loads(line) for line in run("embed", clip, "--images", *names, "--json").lines]
    assert [item["image"] for item in items] == names
    for item, vector in zip(items, model.embed_images(names), strict=True):
        assert item["vector"] == pytest.approx(vector, abs=1e-5)
    first, _ = run("embed", clip, "--images", *names).lines
    name, numbers = first.split("\t")
    assert (name, len(numbers.split())) == (names[0], 16)


def test_retrieval_is_measured(run, clip, rows, tmp_path: Path) -> None:
    file = tmp_path / "pictures.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = json.loads(run("evaluate", clip, "--data", file, "--json").out)
    assert told["images"] == 9
    scores = {name: each["score"] for name, each in told["scores"].items()}
    assert scores == heedful.evaluate(clip, rows)
    assert scores["text_recall_at_5"] == 1  # of three captions
    assert "text recall at 1" in run("evaluate", clip, "--data", file).err


def test_one_tower_is_looked_at(run, clip, rows) -> None:
    assert "cat" in run("inspect", clip, "two cats").out
    seen = heedful.inspect.load(clip, tower="images")
    image = np.zeros((1, 8, 8), np.float32)
    found = heedful.inspect.attention(seen, heedful.inspect.see(seen, image))
    assert found
    assert "log_scale" in run("info", clip).err
    wrong = run("heads", clip, "--data", "texts.txt")
    assert wrong.status == 2
    assert "has two encoders" in wrong.err


def test_mistakes_are_told(run, clip, names) -> None:
    for words, told in (
        (("classify", clip, names[0]), "At least two labels are needed"),
        (("classify", clip, names[0], "--labels", "cat"), "At least two labels are needed"),
        (("classify", "digits", names[0], "--labels", "a", "b"), "has labels of its own"),
        (("classify", clip, names[0], "--labels", "a", "b", "--template", "c"), "no {} in the"),
        (("classify", clip, names[0], "--labels", "猫", "cat"), "1 character unknown"),
        (("classify", clip, "none.png", "--labels", "a", "c"), "none.png: No such file"),
        (("embed", clip, "a cat", "--images", names[0]), "a text or --images, not both"),
        (("embed", clip, "cat", "--pooling", "mean"), "vectors of one kind"),
        (("embed", "english-masked", "--images", names[0]), "does not compare images"),
        (("translate", clip, "a cat"), "no translator"),
        (("generate", clip, "--prompt", "a cat"), "continues no text"),
    ):
        done = run(*words)
        assert done.status == 2, done.err
        assert told in done.err
        assert "Traceback" not in done.err
    empty = run("embed", clip, stdin=b"a cat\n\n")
    assert (empty.status, "line 2: The caption '' has no words" in empty.err) == (2, True)
