"""A tiny corpus and settings with which a run takes a second."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.config import merge
from heedful.events import Event, Metric
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def write_reversed(directory: Path, name: str, count: int, seed: int) -> dict[str, str]:
    """Pairs whose target is the source backwards, as aligned files."""
    draw = random.Random(seed)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(1, 6))] for _ in range(count)]
    paths = {"source": directory / f"{name}.source", "target": directory / f"{name}.target"}
    paths["source"].write_text("".join(" ".join(line) + "\n" for line in lines))
    paths["target"].write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    return {side: str(path) for side, path in paths.items()}


def write_text(
    path: Path, seed: int, lines: int, *, words: Sequence[str] = WORDS[:4], each: int = 6
) -> str:
    """A text of random words, some on each line."""
    draw = random.Random(seed)
    text = "".join(" ".join(draw.choices(words, k=each)) + "\n" for _ in range(lines))
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("corpus")
    return {
        "train": [write_reversed(directory, "train", 200, 1)],
        "valid": [write_reversed(directory, "valid", 12, 2)],
        "batch_tokens": 120,
        "cache": str(directory / "cache"),
    }


MakeSettings = Callable[..., RunSettings]


@pytest.fixture(scope="session")
def make_settings(corpus: dict[str, Any]) -> MakeSettings:
    def make(**changes: Any) -> RunSettings:
        base = {
            "model": {
                "width": 16,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "num_heads": 2,
                "feedforward": 16,
            },
            "tokenizer": {"vocabulary_size": 60},
            "data": corpus,
            "schedule": {"warmup_steps": 10, "peak_learning_rate": 0.01},
            "validation": {"every_steps": 8, "beam": 1, "metrics": ["chrf"], "choose_by": "loss"},
            "checkpoint": {"every_steps": 4, "average_count": 3},
            "max_steps": 20,
            "precision": "fp32",
        }
        return RunSettings.parse(merge(base, changes))

    return make


def short_run(
    task: str, shape: Mapping[str, Any], data: Mapping[str, Any], changes: Mapping[str, Any]
) -> RunSettings:
    """Settings of 20 updates in which checkpoints, their average and validation have their turn.

    Args:
        task: any but translation, which `make_settings` is for.
        shape: of the model, without its dropout.
        data: the table of that name.
        changes: other tables, whole, and values.
    """
    values: dict[str, Any] = {
        "task": task,
        "model": {**shape, "dropout": 0.1},
        "tokenizer": {"vocabulary_size": 40},
        "data": data,
        "schedule": {"warmup_steps": 5, "peak_learning_rate": 0.01},
        "validation": {"every_steps": 10},
        "checkpoint": {"every_steps": 4, "average_count": 2},
        "max_steps": 20,
        "precision": "fp32",
    }
    return resolve_settings(None, None, values | changes)


class Crash(Exception):
    """Stands for a kill: nothing gets a chance to be saved."""


class CrashAt:
    """A sink that crashes at the metrics of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def handle(self, event: Event) -> None:
        if isinstance(event, Metric) and event.kind == "train" and event.step == self.step:
            raise Crash

    def close(self) -> None:
        pass


def noted_losses(run: Path) -> list[tuple[int, float]]:
    """The step and the loss of every update that a run noted."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(e["step"], e["loss"]) for e in events if "event" not in e]
