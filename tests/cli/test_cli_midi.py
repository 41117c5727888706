"""Music through the command line: learned from MIDI files, continued, and written as MIDI again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heedful.data.midi_files import read_moments, write_moments

pytest.importorskip("mido", reason="needs mido, which reads MIDI files")


def canon(start: int, length: int) -> list[list[int]]:
    """A scale of whole tones, and a second voice that follows two moments later."""
    scale = [50 + 2 * ((start + n) % 6) for n in range(length)]
    return [[pitch, 0 if n < 2 else scale[n - 2]] for n, pitch in enumerate(scale)]


def test_a_canon_is_learned_and_written(run, tmp_path: Path) -> None:
    (tmp_path / "heard").mkdir()
    for number in range(12):
        write_moments(tmp_path / "heard" / f"{number}.mid", canon(number, 24), tempo=90)
    words = "--task tokens --tokens.reader midi --tokens.size 12 --tokens.fields notes:128:anyx2"
    words += " --model.width 32 --model.decoder-layers 2 --model.num-heads 2"
    words += " --model.feedforward 64 --model.dropout 0 --model.positions axes --max-steps 150"
    words += " --schedule.peak-learning-rate 0.01 --schedule.warmup-steps 20"
    words += " --data.batch-tokens 600 --data.max-length 40"
    trained = run("train", tmp_path / "run", "--train", tmp_path / "heard", *words.split())
    assert trained.status == 0, trained.err
    asked = json.dumps({"notes": canon(1, 12)[:6]})
    (line,) = run("generate", tmp_path / "run", asked).lines
    tunes = tmp_path / "tunes.jsonl"
    tunes.write_text(line + "\n")
    made = run("data", "midi", tunes, "--out", tmp_path / "tunes", "--tempo", 120)
    assert made.status == 0, made.err
    assert read_moments(tmp_path / "tunes" / "1.mid") == canon(1, 12)


@pytest.mark.parametrize(
    ("line", "flags", "said"),
    [
        ('{"notes": [[60], [61, 62]]}', (), "tunes.jsonl:1: The field 'notes' holds no notes"),
        ('{"notes": [[60]]}', ("--field", "melody"), "The field 'melody' holds no notes"),
        ('{"notes": [[100]]}', ("--lowest", 30), "0 to 98"),
        ('{"notes": [[true]]}', (), "holds no notes"),
        ('{"notes": [[60]]}', ("--lowest", 0), "--lowest 0: A pitch is from 1 to 127"),
        ('{"notes": [[60]]}', ("--tempo", 0), "--tempo 0.0: A tempo is from 4 to 1000"),
    ],
)
def test_mistakes_are_told(run, tmp_path: Path, line: str, flags: tuple, said: str) -> None:
    (tmp_path / "tunes.jsonl").write_text(line + "\n")
    wrong = run("data", "midi", tmp_path / "tunes.jsonl", "--out", tmp_path / "out", *flags)
    assert (wrong.status, said in wrong.err) == (2, True), wrong.err
    assert not (tmp_path / "out").exists()
