"""A toy text learned, then another from that model by low-rank changes: the real command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.cli.main import main
from heedful.models.checkpoint import read_weights

FLAGS = {
    "task": "causal_lm",
    "data.max-length": "24",
    "data.batch-tokens": "768",
    "data.documents": "line",
    "schedule.kind": "cosine",
    "schedule.warmup-steps": "10",
    "schedule.peak-learning-rate": "0.02",
    "max-steps": "120",
    "validation.every-steps": "120",
    "checkpoint.average": "none",
    "precision": "fp32",
}
DIALS = {
    "tokenizer.kind": "characters",
    "model.width": "32",
    "model.decoder-layers": "2",
    "model.num-heads": "2",
    "model.feedforward": "64",
    "model.dropout": "0",
    "model.positions": "rotary",
}
MATRICES = ["query", "key", "value", "output", "feedforward.up", "feedforward.down"]
GREEDY = ["--max-length", 6]


def lora(base: Path) -> dict[str, str]:
    """Flags of a low-rank run with a new token."""
    return {
        "init": str(base),
        "lora.rank": "4",
        "lora.alpha": "8",
        "lora.targets": "query key value output feedforward.*",
        "tokenizer.extend": "<new>",
    }


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_steps(path: Path, seed: int, lines: int, step: int, names: list[str]) -> Path:
    """Lines that go round eight letters by equal steps from anywhere."""
    draw = random.Random(seed)
    rows = []
    for _ in range(lines):
        start = draw.randrange(8)
        rows.append("".join(names[(start + step * i) % 8] for i in range(20)) + "\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_another_language_is_learned_beside_a_frozen_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(run: Path, step: int, names: list[str], flags: dict[str, Any]) -> dict[str, Any]:
        training = write_steps(tmp_path / f"{step}a.txt", 1, 600, step, names)
        validation = write_steps(tmp_path / f"{step}b.txt", 2, 60, step, names)
        words = [word for name, value in flags.items() for word in (f"--{name}", *value.split())]
        corpora = ["--train", training, "--valid", validation]
        return run_command(capsys, "train", run, *corpora, *words)

    def continued(model: Path) -> str:
        return str(run_command(capsys, "generate", model, "--prompt", "ad", *GREEDY)["text"])

    base, tuned, merged = tmp_path / "base", tmp_path / "tuned", tmp_path / "merged"
    letters = list("abcdefgh")
    # Guessing costs ln 8 = 2.08 for a letter; what cannot be known is the first of a line.
    assert train(base, 1, letters, FLAGS | DIALS)["scores"]["loss"] < 0.5
    summary = train(tuned, 3, [*letters[:2], "<new>", *letters[3:]], FLAGS | lora(base))
    assert summary["scores"]["loss"] < 0.5
    assert summary["trained_parameters"] < summary["parameters"] / 2
    assert continued(tuned) == "gbeh<new>f"
    before, after = read_weights(base / "model"), read_weights(tuned / "model")
    for name, tensor in before.items():
        if not name.endswith(tuple(f"{matrix}.weight" for matrix in MATRICES)):
            assert torch.equal(after[name][: len(tensor)], tensor), name
    run_command(capsys, "merge", base, tuned, merged)
    assert continued(merged) == continued(tuned)
    for name, tensor in read_weights(merged).items():
        torch.testing.assert_close(tensor, after[name], rtol=1e-5, atol=1e-5)
