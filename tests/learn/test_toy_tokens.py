"""Toy pictures of known entropy, learned as token sequences through the real command line."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from heedful.cli.main import main

KINDS = {"rising": 1, "falling": -1, "flat": 0}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def picture(kind: str, first: int) -> list[list[int]]:
    """A row that rises, falls or stays from a first value on, and its mirror image."""
    row = [(first + KINDS[kind] * column) % 8 for column in range(6)]
    return [row, row[::-1]]


def write_pictures(path: Path, seed: int, count: int) -> Path:
    draw = random.Random(seed)
    records = [
        {"kind": kind, "pixels": picture(kind, draw.randrange(8))}
        for kind in draw.choices(list(KINDS), k=count)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("given", [False, True])
def test_pictures_are_learned_down_to_their_entropy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    run = tmp_path / "run"
    train = write_pictures(tmp_path / "train.jsonl", 1, 2000)
    valid = write_pictures(tmp_path / "valid.jsonl", 2, 200)
    flags = {
        "model.width": 32,
        "model.decoder-layers": 2,
        "model.num-heads": 2,
        "model.feedforward": 64,
        "model.dropout": 0,
        "model.positions": "axes",
        "data.batch-tokens": 1024,
        "schedule.kind": "cosine",
        "schedule.peak-learning-rate": 0.01,
        "schedule.warmup-steps": 20,
        "validation.every-steps": 150,
        "checkpoint.average": "none",
        "max-steps": 150,
        "precision": "fp32",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    if given:
        words += ["--tokens.fields", "kind:names:1:given", "pixels:8:2x6"]
    files = ["--train", str(train), "--valid", str(valid)]
    assert main(["train", str(run), "--task", "tokens", *files, *words, "--json"]) == 0
    capsys.readouterr()

    assert main(["evaluate", str(run), "--data", str(valid), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    # The first value of a picture is one of eight; everything after it follows.
    assert scores["fields"]["pixels"]["nats_per_record"] == pytest.approx(math.log(8), abs=0.08)
    assert ("kind" in scores["fields"]) is not given
    if not given:
        assert scores["fields"]["kind"]["nats_per_record"] == pytest.approx(math.log(3), abs=0.05)

    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(valid.read_text().splitlines()[0] + '\n{"kind": "up", "pixels": []}\n')
    assert main(["evaluate", str(run), "--data", str(wrong)]) == 2
    assert "record 2: The field 'kind' has no value 'up'" in capsys.readouterr().err

    prompts = [{"kind": kind, "pixels": [first]} for kind in KINDS for first in (2, 5)]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    assert main(["generate", str(run), "-i", str(asked)]) == 0
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [{**each, "pixels": picture(each["kind"], each["pixels"][0])} for each in prompts]
    assert written == expected
