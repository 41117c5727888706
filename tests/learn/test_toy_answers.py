"""Toy records that an encoder reads and a decoder answers, through the real command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli.main import main

STEPS = {"rising": 1, "falling": -1, "flat": 0}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def picture(way: str, first: int) -> list[list[int]]:
    """A row that rises, falls or stays from a first value on, and its mirror image."""
    row = [(first + STEPS[way] * column) % 8 for column in range(6)]
    return [row, row[::-1]]


ALL = [
    {"pixels": picture(way, first), "caption": f"{way} from {word}"}
    for way in STEPS
    for first, word in enumerate(WORDS)
]


def write_records(path: Path, seed: int, count: int) -> Path:
    records = random.Random(seed).choices(ALL, k=count)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def train(folder: Path, source: str, *more: str) -> tuple[Path, Path]:
    """Train a small encoder-decoder; return its run and the validation file."""
    run = folder / "run"
    files = [str(write_records(folder / f"{seed}.jsonl", seed, 1500 // seed**4)) for seed in (1, 2)]
    flags = {
        "tokenizer.kind": "characters",
        "model.width": 32,
        "model.encoder-layers": 1,
        "model.decoder-layers": 2,
        "model.num-heads": 2,
        "model.feedforward": 64,
        "model.dropout": 0,
        "model.positions": "learned",
        "data.batch-tokens": 1024,
        "data.max-length": 24,
        "schedule.kind": "cosine",
        "schedule.peak-learning-rate": 0.01,
        "schedule.warmup-steps": 20,
        "validation.every-steps": 250,
        "checkpoint.average": "none",
        "max-steps": 250,
        "precision": "fp32",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += ["--train", files[0], "--valid", files[1], "--tokens.source", source, *more]
    assert main(["train", str(run), "--task", "tokens", *words, "--json"]) == 0
    return run, Path(files[1])


def written(run: Path, asked: list[dict[str, object]], out: Path, *flags: str) -> list[object]:
    """Return the records that `heedful generate` makes of their beginnings."""
    asking = out.with_suffix(".asked")
    asking.write_text("".join(json.dumps(each) + "\n" for each in asked))
    assert main(["generate", str(run), "-i", str(asking), "-o", str(out), *flags]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_captions_are_learned_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ("--tokens.fields", "pixels:8:2x6", "caption:text:any")
    run, valid = train(tmp_path, "pixels", *fields)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(valid), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    # A caption follows from its picture.
    assert scores["fields"]["caption"]["nats_per_record"] < 0.2
    assert scores["exact"] == {"caption": 1.0}
    assert scores["fields"].keys() == {"caption", "end"}

    asked = [{"pixels": each["pixels"]} for each in ALL]
    assert written(run, asked, tmp_path / "greedy") == ALL
    assert written(run, asked, tmp_path / "beam", "--beam", "3") == ALL
    # A beginning of the answer is kept, and batches with others change nothing.
    begun = [{**asked[0], "caption": "flat"}, asked[5], {**asked[1], "caption": "fl"}, asked[0]]
    mixed = written(run, begun, tmp_path / "mixed")
    assert [each["caption"][:4] for each in (mixed[0], mixed[2])] == ["flat", "flat"]
    assert [mixed[1], mixed[3]] == [ALL[5], ALL[0]]

    measured = heedful.evaluate(run, str(valid))
    assert measured.pop("exact") == scores["exact"]
    assert measured["fields"]["caption"] == pytest.approx(scores["fields"]["caption"])
    (found,) = heedful.load(run).generate([json.dumps(asked[3])], sampling=True, n_best=2)
    assert json.loads(found.text) == ALL[3]
    assert len(found.others) == 1

    for record, told in (
        ('{"caption": "flat"}', "The field 'pixels' is missing"),
        ('{"pixels": [[1]]}', "The field 'pixels' is 1 × 1, not 2 × 6"),
        (json.dumps({**asked[0], "colour": 1}), "There is no field 'colour'"),
        ("{", "This is no record"),
    ):
        assert main(["generate", str(run), record]) == 2
        error = capsys.readouterr().err
        assert "record 1" in error
        assert told in error
    assert main(["generate", str(run), json.dumps(asked[0]), "--stream"]) == 2
    assert "no stream of text" in capsys.readouterr().err


def test_pictures_are_written_for_captions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other way with the same records; a picture has all of its pixels, from the start on."""
    fields = ("--tokens.fields", "pixels:8:2x6", "caption:text:18")
    run, valid = train(tmp_path, "caption", *fields)
    asked = [{"caption": each["caption"]} for each in ALL]
    assert written(run, asked, tmp_path / "greedy") == [
        {"caption": each["caption"], "pixels": each["pixels"]} for each in ALL
    ]
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(valid), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["fields"]["pixels"]["nats_per_record"] < 0.2
    assert "exact" not in scores  # a picture has many good values
