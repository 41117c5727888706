"""A toy text with a rule, whose gaps are filled by encoder-decoders trained on it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.cli.main import main

FLAGS: dict[str, Any] = {
    "tokenizer.kind": "characters",
    "model.width": 32,
    "model.encoder-layers": 1,
    "model.decoder-layers": 1,
    "model.num-heads": 2,
    "model.feedforward": 64,
    "model.dropout": 0,
    "model.positions": "rotary",
    "data.documents": "line",
    "data.max-length": 24,
    "data.batch-tokens": 512,
    "schedule.peak-learning-rate": 0.01,
    "schedule.warmup-steps": 20,
    "checkpoint.average": "none",
    "validation.every-steps": 180,
    "precision": "fp32",
}
LETTERS = "abcdefgh"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_text(path: Path, seed: int, lines: int, *, rule: bool) -> Path:
    """Two letters take turns in a line of 12; without the rule, letters as they come."""
    draw = random.Random(seed)
    texts = [
        "".join(draw.sample(LETTERS, k=2)) * 6 if rule else "".join(draw.choices(LETTERS, k=12))
        for _ in range(lines)
    ]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def trained(
    folder: Path, capsys: pytest.CaptureFixture[str], task: str, *, rule: bool = True
) -> tuple[Path, float]:
    """A run and its validation loss."""
    run = folder / f"{task}-{rule}"
    train = write_text(folder / "train.txt", 1, 2000, rule=rule)
    valid = write_text(folder / "valid.txt", 2, 200, rule=rule)
    flags = FLAGS | {"max-steps": 180 if rule else 60}
    words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    files = ["--train", str(train), "--valid", str(valid)]
    assert main(["train", str(run), "--task", task, *files, *words, "--json"]) == 0
    return run, json.loads(capsys.readouterr().out)["scores"]["loss"]


def filled(
    capsys: pytest.CaptureFixture[str], run: Path, text: str
) -> list[list[tuple[str, float]]]:
    """For each mask the candidates."""
    assert main(["fill", str(run), text, "--top", "3", "--json"]) == 0
    found: dict[int, list[tuple[str, float]]] = {}
    for one in json.loads(capsys.readouterr().out)["candidates"]:
        found.setdefault(one["mask"], []).append((one["token"], one["probability"]))
    return list(found.values())


# Of 12 letters span corruption hides 2 in a span, and asks for them, 2 sentinels and the end.
# Denoising hides 3 or 4 and asks for all 12 and the end.
@pytest.mark.parametrize(("task", "targets"), [("span_corruption", 5), ("denoising", 13)])
def test_gaps_are_filled_by_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, targets: int
) -> None:
    run, loss = trained(tmp_path, capsys, task)
    _, control = trained(tmp_path, capsys, task, rule=False)
    hidden = 2 if task == "span_corruption" else 12
    unigram = hidden * math.log(8) / targets
    assert loss < 0.1 * unigram
    assert control > 2 * math.log(8) / targets  # nothing tells two letters that are hidden
    ((best, *others),) = filled(capsys, run, "cf[MASK]cfcfcfcf")
    assert best[0] == "cf"
    assert best[1] > 0.8
    assert all(probability < best[1] for _, probability in others)
