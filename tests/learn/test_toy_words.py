"""Toy tags and toy questions with a rule, learned by encoders through the real command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.cli.main import main

SHAPE: dict[str, Any] = {
    "model.width": 32,
    "model.encoder-layers": 2,
    "model.num-heads": 2,
    "model.feedforward": 64,
    "model.dropout": 0,
    "model.positions": "rotary",
    "data.batch-tokens": 1024,
    "schedule.peak-learning-rate": 0.005,
    "schedule.warmup-steps": 20,
    "checkpoint.average": "none",
    "precision": "fp32",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def ran(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    """The JSON lines of a command."""
    assert main([*map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def train(
    capsys: pytest.CaptureFixture[str], run: Path, files: tuple[Path, Path], flags: dict[str, Any]
) -> dict[str, Any]:
    words = [word for name, value in (SHAPE | flags).items() for word in (f"--{name}", value)]
    (told,) = ran(capsys, "train", run, "--train", files[0], "--valid", files[1], *words)
    scores: dict[str, Any] = told["scores"]
    return scores


def write_tagged(path: Path, seed: int, sentences: int) -> Path:
    """Names of one word or two: the second has the kind of the word before it."""
    draw = random.Random(seed)
    rows = []
    for _ in range(sentences):
        for _ in range(draw.randint(1, 12)):
            kind, words = draw.choice([("PER", ("ann", "bob")), ("LOC", ("mount", "lake"))])
            rows.append(f"{draw.choice(words)} B-{kind}\n")
            if draw.random() < 0.5:
                rows.append(f"stone I-{kind}\n")
            if draw.random() < 0.3:
                rows.append("sees O\n")
        rows.append("\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_tags_that_depend_on_the_word_before_are_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        write_tagged(tmp_path / "a.conll", 1, 1000),
        write_tagged(tmp_path / "b.conll", 2, 100),
    )
    # shorter than many sentences, so there are windows in training too
    flags = {"task": "tag", "data.max-length": 20, "validation.every-steps": 120, "max-steps": 120}
    scores = train(capsys, tmp_path / "run", files, flags)
    assert scores["accuracy"] >= 0.99
    assert scores["span_f1"] >= 0.98
    text = "bob stone sees lake stone " * 8  # longer than the model can read at once
    (found,) = ran(capsys, "tag", tmp_path / "run", text)
    assert [one["token"] for one in found["labels"]] == text.split()
    expected = ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"] * 8
    given = [one["label"] for one in found["labels"]]
    assert sum(ours == right for ours, right in zip(given, expected, strict=True)) >= 38


NAMES = ["ann", "bob", "cleo", "dan"]
THINGS = ["apples", "bread", "cheese", "dates", "eggs"]


def write_questions(path: Path, seed: int, count: int) -> Path:
    """Who eats what: a name that the context lacks has no answer."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        people = draw.sample(NAMES, k=3)
        eaten = draw.choices(THINGS, k=3)
        context = " ".join(f"{who} {what}" for who, what in zip(people, eaten, strict=True))
        asked = draw.choice(NAMES)
        answers = []
        if asked in people:
            what = eaten[people.index(asked)]
            answers = [{"text": what, "start": context.index(asked) + len(asked) + 1}]
        lines.append({"question": asked, "context": context, "answers": answers})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_questions_are_answered_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (
        write_questions(tmp_path / "a.jsonl", 1, 2000),
        write_questions(tmp_path / "b.jsonl", 2, 200),
    )
    flags = {
        "task": "answer",
        "data.max-length": 16,
        "validation.every-steps": 300,
        "max-steps": 300,
    }
    scores = train(capsys, tmp_path / "run", files, flags)
    assert scores["exact_match"] >= 0.95
    assert scores["f1"] >= scores["exact_match"]
    told = ran(
        capsys, "answer", tmp_path / "run", "bob eggs ann dates dan bread", "--question", "ann"
    )
    assert (told[0]["text"], told[0]["start"], told[0]["end"]) == ("dates", 13, 18)
    (none,) = ran(
        capsys, "answer", tmp_path / "run", "bob eggs ann dates dan bread", "--question", "cleo"
    )
    assert (none["text"], none["start"], none["end"]) == ("", 0, 0)
    assert none["probability"] > 0.5
