"""A toy language learned and translated with a shortlist, through the real command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch

from heedful.cli.main import main

LETTERS = "abcdefghij"
CIPHER = dict(zip(LETTERS, "klmnopqrst", strict=True))
SETTINGS = {
    "model.width": 48,
    "model.encoder-layers": 2,
    "model.decoder-layers": 1,
    "model.num-heads": 4,
    "model.feedforward": 96,
    "model.dropout": 0,
    "model.norm": "rms",
    "model.norm-placement": "pre",
    "model.activation": "swiglu",
    "model.positions": "rotary",
    "tokenizer.kind": "characters",
    "data.batch-tokens": 384,
    "objective.label-smoothing": 0,
    "schedule.kind": "cosine",
    "schedule.peak-learning-rate": 0.005,
    "schedule.warmup-steps": 30,
    "max-steps": 450,
    "precision": "fp32",
    "seed": 3,
}


def test_right_translations_come_through_the_right_shortlist(tmp_path: Path) -> None:
    """Each letter becomes another: which one, only pairs can tell."""
    torch.set_num_threads(1)
    draw = random.Random(5)
    texts = sorted({"".join(draw.choices(LETTERS, k=draw.randint(3, 6))) for _ in range(6000)})
    draw.shuffle(texts)
    answers = ["".join(CIPHER[letter] for letter in text) for text in texts]
    parts = {"train": slice(200, None), "test": slice(200)}
    for name, part in parts.items():
        for side, lines in (("src", texts), ("tgt", answers)):
            text = "".join(f"{line}\n" for line in lines[part])
            (tmp_path / f"{name}.{side}").write_text(text, encoding="utf-8")
    wrong = "".join(f"{line}\n" for line in draw.choices("klmno", k=len(texts) - 200))
    (tmp_path / "wrong.tgt").write_text(wrong, encoding="utf-8")

    run, output = str(tmp_path / "run"), tmp_path / "output"
    corpus = [str(tmp_path / "train.src"), str(tmp_path / "train.tgt")]
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    assert main(["train", run, "--train", *corpus, *flags]) == 0

    def right(*more: str) -> float:
        source = str(tmp_path / "test.src")
        assert main(["translate", run, "-i", source, "-o", str(output), *more]) == 0
        found = output.read_text("utf-8").splitlines()
        pairs = zip(found, answers[:200], strict=True)
        return sum(ours == theirs for ours, theirs in pairs) / 200

    def made(target: str) -> dict[str, float]:
        report = tmp_path / "report"
        sides = ["--source", corpus[0], "--target", target]
        small = ["--per-token", "1", "--frequent", "1", "--report", str(report)]
        assert main(["shortlist", run, *sides, *small]) == 0
        facts: dict[str, float] = json.loads(report.read_text("utf-8"))
        return facts

    assert right() >= 0.98
    facts = made(corpus[1])
    assert facts["coverage"] == 1.0
    assert facts["list_size"] < 12
    assert right("--shortlist") >= 0.98
    made(str(tmp_path / "wrong.tgt"))
    assert right("--shortlist") < 0.3
