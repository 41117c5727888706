"""A toy language with soft terms, through the real command line: terms never seen are used."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli.main import main
from heedful.pipelines.glossary import Glossary

WORDS = {"ab": "no", "cd": "pq", "ef": "rs", "gh": "tu", "ij": "vw", "kl": "xy"}
SETTINGS = {
    "model.width": 48,
    "model.encoder-layers": 2,
    "model.decoder-layers": 2,
    "model.num-heads": 4,
    "model.feedforward": 96,
    "model.dropout": 0,
    "model.norm": "rms",
    "model.norm-placement": "pre",
    "model.positions": "rotary",
    "model.activation": "swiglu",
    "tokenizer.kind": "characters",
    "data.batch-tokens": 768,
    "objective.label-smoothing": 0,
    "schedule.kind": "cosine",
    "schedule.peak-learning-rate": 0.006,
    "schedule.warmup-steps": 40,
    "soft-terms-share": 0.6,
    "max-steps": 500,
    "precision": "fp32",
    "seed": 3,
}
Pairs = list[tuple[str, str]]


def draw_terms(draw: random.Random, count: int) -> Pairs:
    """Names of the source, and of the target: nothing in the one tells the other."""
    names = (["".join(draw.choices("abcdefgh", k=4)) for _ in range(count)] for _ in range(2))
    return list(zip(*names, strict=True))


def draw_sentence(draw: random.Random, terms: Pairs) -> tuple[str, str]:
    """Words and a term; the translation has the same order."""
    pairs = [(word, WORDS[word]) for word in draw.choices(sorted(WORDS), k=draw.randint(1, 2))]
    pairs.insert(draw.randint(0, len(pairs)), draw.choice(terms))
    source, target = zip(*pairs, strict=True)
    return " ".join(source), " ".join(target)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained with soft terms, and texts and a glossary with terms it has never seen."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("terms")
    draw = random.Random(5)
    terms = draw_terms(draw, 800)
    known = {name for pair in terms for name in pair}
    fresh = [pair for pair in draw_terms(draw, 150) if not known & set(pair)]
    for name, count, own in (("train", 4000, terms), ("test", 100, fresh)):
        pairs = [draw_sentence(draw, own) for _ in range(count)]
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
        rows = "".join(f"{source}\t{target}\n" for source, target in dict(own).items())
        (folder / f"{name}.tsv").write_text(rows)
    assert train(folder, "run", "--soft-terms", str(folder / "train.tsv")) == 0
    return folder


def train(folder: Path, run: str, *more: str) -> int:
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    corpus = [str(folder / "train.src"), str(folder / "train.tgt")]
    return main(["train", str(folder / run), "--train", *corpus, *flags, *more])


def test_terms_never_seen_are_used(folder: Path) -> None:
    output = folder / "output"
    target = (folder / "test.tgt").read_text().splitlines()
    command = ["translate", str(folder / "run"), "-i", str(folder / "test.src"), "-o", str(output)]
    soft = ["--glossary", str(folder / "test.tsv"), "--glossary-mode", "soft"]
    scores = []
    for more in (soft, []):
        assert main([*command, *more]) == 0
        lines = output.read_text("utf-8").splitlines()
        scores.append(sum(a == b for a, b in zip(lines, target, strict=True)) / len(lines))
    assert scores[0] >= 0.9
    assert scores[1] <= 0.1
