"""`heedful classify` and `heedful info` on a model of images."""

from __future__ import annotations

import json
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.cli.text_io import one_line
from heedful.models.checkpoint import save_model
from heedful.models.images.resnet import ResNet
from heedful.models.images.resnet_spec import ResNetSpec
from heedful.models.images.vision import VisionModel
from heedful.models.images.vision_spec import VisionSpec

SPEC = {
    "width": 16,
    "image_size": 8,
    "patch_size": 4,
    "channels": 1,
    "encoder": {
        "num_layers": 2,
        "block": {
            "norm_placement": "pre",
            "self_attention": {"num_heads": 2},
            "feedforward": {"width": 24},
        },
    },
    "labels": ["cat", "dog", "tab\there"],
    "pixels": {"resample": "bilinear", "mean": [0.4], "std": [0.3]},
}


def write_model(directory: Path, **changes) -> Path:
    torch.manual_seed(0)
    model = VisionModel(VisionSpec.parse(SPEC | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_model(model, None, directory)
    return directory


@pytest.fixture(scope="module")
def seer(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("seers") / "seer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four pictures, two of them in a folder below."""
    place = tmp_path_factory.mktemp("pictures")
    (place / "more").mkdir()
    draw = np.random.default_rng(0)
    for name, size in (("b.png", 8), ("a.jpg", 11), ("more/c.jpeg", 8), ("more/d.PNG", 20)):
        pixels = draw.integers(0, 256, (size, size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(place / name)
    (place / "notes.txt").write_text("of pictures")
    return place


@pytest.fixture(scope="module")
def names(folder: Path) -> list[str]:
    return [str(folder / name) for name in ("a.jpg", "b.png", "more/c.jpeg", "more/d.PNG")]


@pytest.fixture(scope="module")
def python(seer: Path, names: list[str]):
    """What the library says of the same pictures."""
    return heedful.load(seer).classify(names)


def close(found: list[dict], expected: list[list]) -> bool:
    """Whether the labels of JSON items are these; batches differ in the last digits."""
    pairs = zip((item["labels"] for item in found), expected, strict=True)
    return all(
        (mine["label"], mine["probability"])
        == (one.label, pytest.approx(one.probability, abs=1e-6))
        for labels, wanted in pairs
        for mine, one in zip(labels, wanted, strict=True)
    )


def plain(names, python) -> list[str]:
    return [
        f"{name}\t{labels[0].label}\t{labels[0].probability:.4f}".replace("tab\t", "tab\\t")
        for name, labels in zip(names, python, strict=True)
    ]


def test_files_and_folders(run, seer, folder, names, python) -> None:
    assert run("classify", seer, folder).lines == plain(names, python)
    assert run("classify", seer, *reversed(names)).lines == plain(names, python)[::-1]
    mixed = run("classify", seer, names[3], folder / "more", "--json").lines
    items = [json.loads(line) for line in mixed]
    assert [item["image"] for item in items] == [names[n] for n in (3, 2, 3)]
    assert close(items, [python[n] for n in (3, 2, 3)])
    assert len(python[0]) == 3
    assert sum(label.probability for label in python[0]) == pytest.approx(1)


def test_top(run, seer, names, python) -> None:
    two = run("classify", seer, names[0], "--top", 2)
    first, second = python[0][:2]
    shown = [
        f"{one.label}\t{one.probability:.4f}".replace("b\t", "b\\t") for one in (first, second)
    ]
    assert two.lines == ["\t".join([names[0], *shown])]
    (line,) = run("classify", seer, names[0], "--top", 1, "--json").lines
    assert close([json.loads(line)], [[first]])
    assert heedful.load(seer).classify(names, top=2)[0] == [first, second]
    wrong = run("classify", seer, names[0], "--top", 0)
    assert (wrong.status, "--top 0" in wrong.err) == (2, True)


def test_a_list_of_files(run, seer, names, python, tmp_path: Path) -> None:
    listed, out, report = (tmp_path / name for name in ("list", "out", "report"))
    lines = [names[1], "", names[0], "  "]
    listed.write_text("\n".join(lines) + "\n")
    expected = plain(names, python)
    words = ("-i", listed, "-o", out, "--report", report, "--batch-size", 1)
    done = run("classify", seer, *words)
    assert (done.status, done.out) == (0, "")
    assert out.read_text().splitlines() == [expected[1], "", expected[0], ""]
    told = json.loads(report.read_text())
    assert (told["command"], told["items"]) == ("classify", 4)
    piped = run("classify", seer, "--json", stdin=listed.read_bytes()).lines
    assert close([json.loads(line) for line in piped], [python[1], [], python[0], []])
    assert run("classify", seer).lines == []


def test_idx_files(run, seer, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (70, 8, 8)).astype(np.uint8)
    file = tmp_path / "test.idx"
    file.write_bytes(struct.pack(">HBB3i", 0, 8, 3, *pixels.shape) + pixels.tobytes())
    expected = heedful.load(seer).classify(list(pixels))
    items = [json.loads(line) for line in run("classify", seer, file, "--json").lines]
    assert [item["image"] for item in items] == [f"{file}:{n}" for n in range(1, 71)]
    found = [label["probability"] for item in items for label in item["labels"]]
    wanted = [label.probability for labels in expected for label in labels]
    assert found == pytest.approx(wanted, abs=1e-6)


def test_what_an_image_is_labelled_does_not_depend_on_its_company(seer, names, python) -> None:
    pipeline = heedful.load(seer)
    for number, name in enumerate(names):
        (alone,) = pipeline.classify([name])
        assert [one.label for one in alone] == [one.label for one in python[number]]
        for one, other in zip(alone, python[number], strict=True):
            assert one.probability == pytest.approx(other.probability, abs=1e-6)


def test_mistakes_are_told(run, seer, names, model, folder, tmp_path: Path) -> None:
    text = folder / "notes.txt"
    out = tmp_path / "out"
    for words, told in (
        ((names[0], text), f"{text}: It is no PNG or JPEG picture"),
        ((tmp_path / "nowhere.png",), "nowhere.png: No such file"),
        ((tmp_path,), "There is no picture or sound in the folder"),
        ((names[0], "-i", text), "not both"),
        ((names[0], "--batch-size", 0), "batch_size = 0"),
    ):
        done = run("classify", seer, *words, "-o", out)
        assert (done.status, done.out) == (2, ""), words
        assert told in done.err
        assert "Traceback" not in done.err
        assert not out.exists()
    two = run("classify", model, "a", "b")
    assert (two.status, "2 texts" in two.err) == (2, True)
    wrong = run("classify", model, "a")
    assert "no encoder of text" in wrong.err
    unlabelled = write_model(tmp_path / "unlabelled", labels=[])
    assert "no classifier" in run("classify", unlabelled, names[0]).err
    strict = write_model(tmp_path / "strict", pixels={"mean": [0.4], "std": [0.3]})
    assert "11 × 11 pixels" in run("classify", strict, names[0]).err


def test_info(run, seer) -> None:
    facts = json.loads(run("info", seer, "--json").lines[0])
    model = VisionModel(VisionSpec.parse(SPEC))
    assert facts["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert facts["operations"]["training_image"] == 3 * facts["operations"]["image"]
    shown = run("info", seer)
    assert shown.status == 0
    assert "training image" in shown.err


def test_a_residual_network_is_used_by_the_same_verbs(run, names, tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = {name: SPEC[name] for name in ("image_size", "channels", "labels", "pixels")}
    model = ResNet(ResNetSpec.parse(plain | {"width": 4, "blocks": [1, 1]})).eval()
    save_model(model, None, tmp_path / "net")
    expected = heedful.load(tmp_path / "net").classify(names, top=1)
    lines = run("classify", tmp_path / "net", *names).lines
    labels = [one_line(each[0].label) for each in expected]
    assert [line.split("\t")[1] for line in lines] == labels
    facts = json.loads(run("info", tmp_path / "net", "--json").lines[0])
    assert facts["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert facts["operations"]["training_image"] == 3 * facts["operations"]["image"]
    for verb, *words in (
        ("inspect", "text"),
        ("plan", "--devices", "8xH100"),
        ("export", tmp_path / "out", "--format", "hf"),
        ("export", tmp_path / "out", "--format", "onnx"),
    ):
        refused = run(verb, tmp_path / "net", *words)
        assert refused.status != 0
        assert "'resnet'" in refused.err
        assert "it should not" not in refused.err


def test_sounds_are_learned_as_pictures(run, tmp_path: Path) -> None:
    """Rising and falling tones, of other pitches and lengths than those that were heard."""
    draw = np.random.default_rng(4)

    def sound(name: str, rising: bool) -> Path:
        path, rate = tmp_path / name, 8000
        times = np.arange(round(draw.uniform(0.2, 0.5) * rate)) / rate
        pitch = draw.uniform(400, 900) * 2.0 ** ((2 if rising else -2) * times / times[-1])
        wobble = np.sin(2 * np.pi * np.cumsum(pitch) / rate) + 0.05 * draw.normal(size=len(times))
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes((wobble * 12_000).astype("<i2").tobytes())
        return path

    for number in range(24):
        sound(f"heard/up/{number}.wav", True)
        sound(f"heard/down/{number}.wav", False)
    words = "--task images --images.size 16 --images.channels 1 --images.patch-size 4"
    words += " --model.width 32 --model.encoder-layers 2 --model.num-heads 2"
    words += " --model.feedforward 64 --max-steps 60 --schedule.peak-learning-rate 0.003"
    words += " --schedule.warmup-steps 10 --model.dropout 0 --data.batch-tokens 800"
    trained = run("train", tmp_path / "run", "--train", tmp_path / "heard", *words.split())
    assert trained.status == 0, trained.err
    others = [sound(f"new/{number}.wav", number % 2 == 0) for number in range(12)]
    labelled = run("classify", tmp_path / "run", *others, "--top", 1, "--json").lines
    given = [json.loads(line)["labels"][0]["label"] for line in labelled]
    assert given == ["up", "down"] * 6
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    wrong = run("classify", tmp_path / "run", tmp_path / "broken.wav")
    assert (wrong.status, "broken.wav: The sound cannot be read" in wrong.err) == (2, True)
