"""The toy text of `test_toy_text`, learned by mixers with a state, through the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from heedful.cli.main import main

from .test_toy_text import one_thread, write_text

__all__ = ["one_thread"]

KINDS = {
    "s4d": {"mixer": "s4d"},
    "mamba": {"mixer": "mamba"},
    "rwkv": {"mixer": "rwkv", "network": "channel_mix"},
    "hybrid": {"mixer": "mamba", "attention-every": 2, "decoder-layers": 2},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_letter_is_predicted_from_the_one_before_last(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_text(tmp_path / "a.txt", 1, 30_000)
    valid = write_text(tmp_path / "b.txt", 2, 2000)
    model = {"width": 32, "decoder-layers": 1, "num-heads": 2, "feedforward": 64, "dropout": 0}
    model |= {"positions": "none", **KINDS[name]}
    flags = {f"model.{option}": value for option, value in model.items()} | {
        "task": "causal_lm",
        "tokenizer.kind": "characters",
        "data.max-length": 32,
        "data.batch-tokens": 512,
        "schedule.kind": "cosine",
        "schedule.peak-learning-rate": 0.02,
        "schedule.warmup-steps": 10,
        "validation.every-steps": 80,
        "checkpoint.average": "none",
        "max-steps": 80,
        "precision": "fp32",
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    run = str(tmp_path / "run")
    status = main(["train", run, "--train", str(train), "--valid", str(valid), *words, "--json"])
    assert status == 0
    loss = json.loads(capsys.readouterr().out)["scores"]["loss"]
    # A model that forgets the letter before the last knows no more than that there are eight.
    entropy = (30 * math.log(2) + 2 * math.log(8)) / 32
    assert 0.99 * entropy < loss < 1.2 * entropy < math.log(8) / 2
