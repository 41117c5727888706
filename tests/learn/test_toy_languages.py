"""Toy languages learned through the real command line, from text files to translations."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.cli.main import main
from tests.learn.toy_settings import TOY_SETTINGS

LETTERS = "abcdefghij"
SETTINGS = TOY_SETTINGS | {
    "model.width": 64,
    "model.feedforward": 128,
    "tokenizer.kind": "characters",
    "data.batch-tokens": 384,
    "schedule.warmup-steps": 50,
    "max-steps": 400,
}

LANGUAGES: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_corpus(folder: Path, language: Callable[[str], str], held_out: int) -> tuple[Path, ...]:
    """Training source and target, and held-out source and target: no source is in both."""
    draw = random.Random(11)
    sources = {"".join(draw.choices(LETTERS, k=draw.randint(3, 6))) for _ in range(12_000)}
    texts = sorted(sources)
    draw.shuffle(texts)
    paths = tuple(folder / name for name in ("train.src", "train.tgt", "test.src", "test.tgt"))
    parts = texts[held_out:], texts[:held_out]
    for part, (source, target) in zip(parts, (paths[:2], paths[2:]), strict=True):
        source.write_text("".join(f"{text}\n" for text in part), encoding="utf-8")
        target.write_text("".join(f"{language(text)}\n" for text in part), encoding="utf-8")
    return paths


PACKED = {"data.packed-length": 64, "data.max-length": 31, "max-steps": 300}
"""Batches of six rows, each of some eleven pairs."""


@pytest.mark.parametrize(
    ("name", "changes"),
    [("copy", {}), ("reverse", {}), ("sort", {}), ("reverse", PACKED)],
    ids=["copy", "reverse", "sort", "reverse-packed"],
)
def test_language_is_learned(name: str, changes: dict[str, object], tmp_path: Path) -> None:
    train_source, train_target, source, reference = write_corpus(tmp_path, LANGUAGES[name], 300)
    run, output = tmp_path / "run", tmp_path / "output"
    settings = SETTINGS | changes
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    corpora = ["--train", str(train_source), str(train_target)]
    assert main(["train", str(run), *corpora, *flags]) == 0
    command = ["translate", str(run), "-i", str(source), "-o", str(output), "--beam", "1"]
    assert main(command) == 0
    outputs, references = (path.read_text("utf-8").splitlines() for path in (output, reference))
    right = sum(ours == theirs for ours, theirs in zip(outputs, references, strict=True))
    assert right >= 0.98 * len(references), f"{right} of {len(references)}"
