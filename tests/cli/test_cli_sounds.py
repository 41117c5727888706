"""Strings of tones through the command line: learned from WAV files, written down, measured."""

from __future__ import annotations

import json
import random
import wave
from pathlib import Path

import numpy as np

HERTZ = {"low": 300, "mid": 900, "high": 2500}
RATE = 8000


def write_tones(path: Path, names: list[str], draw: random.Random) -> None:
    """Tones of 100 to 200 ms with silence after each."""
    pieces = [np.zeros(400)]
    for name in names:
        time = np.arange(draw.randint(800, 1600)) / RATE
        pieces += [np.sin(2 * np.pi * HERTZ[name] * time), np.zeros(draw.randint(500, 800))]
    noise = np.random.default_rng(draw.randrange(10**6)).normal(0, 0.01, sum(map(len, pieces)))
    samples = (0.5 * np.concatenate(pieces) + noise) * 32767
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def write_list(folder: Path, count: int, seed: int) -> Path:
    draw = random.Random(seed)
    folder.mkdir()
    lines = []
    for number in range(count):
        names = draw.choices(list(HERTZ), k=draw.randint(1, 3))
        write_tones(folder / f"{number}.wav", names, draw)
        lines.append(json.dumps({"sound": f"{number}.wav", "text": " ".join(names)}) + "\n")
    (folder / "list.jsonl").write_text("".join(lines))
    return folder / "list.jsonl"


def test_tones_are_written_down(run, tmp_path: Path) -> None:
    heard, others = write_list(tmp_path / "heard", 300, 1), write_list(tmp_path / "others", 30, 2)
    words = "--task tokens --tokens.reader sounds --tokens.fields sound:16:anyx2x20 text:text:any"
    words += " --tokens.source sound --tokens.rows --tokens.writer ctc"
    words += " --tokenizer.vocabulary-size 60 --model.width 32 --model.encoder-layers 2"
    words += " --model.num-heads 2 --model.feedforward 64 --model.dropout 0 --max-steps 80"
    words += " --model.positions rotary --checkpoint.average none"
    words += " --schedule.peak-learning-rate 0.01 --schedule.warmup-steps 20"
    words += " --data.batch-tokens 12000 --data.max-length 2000"
    model = tmp_path / "run"
    trained = run("train", model, "--train", heard, *words.split())
    assert trained.status == 0, trained.err
    measured = run("evaluate", model, "--data", others, "--json")
    scores = json.loads(measured.out)["scores"]
    assert scores["word_error_rate"]["text"] <= 0.1
    assert "word error rate" in run("evaluate", model, "--data", others).err
    wanted = [json.loads(line)["text"] for line in others.read_text().splitlines()]
    (alone,) = run("generate", model, others.parent / "0.wav", "--beam", 4).lines
    assert json.loads(alone)["text"] == wanted[0]
    # Files may be named in records and as lines.
    asked = f"{others.parent / '1.wav'}\n" + json.dumps({"sound": str(others.parent / "2.wav")})
    found = run("generate", model, stdin=asked.encode()).lines
    assert [json.loads(line)["text"] for line in found] == wanted[1:3]
    wrong = run("generate", model, tmp_path / "none.wav")
    assert (wrong.status, "none.wav: No such file" in wrong.err) == (2, True), wrong.err
    looked = run("inspect", model, json.dumps({"sound": [[[0] * 20] * 2]}))
    assert (looked.status, "reads rows of tokens" in looked.err) == (2, True), looked.err
