"""Lists of sounds and texts as records: moments and levels, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heedful.data.corpus_spec import RecordSpec
from heedful.data.sound_files import SoundRecords, moments, with_moments
from heedful.errors import DataError

from .test_sound_files import tone, write

RATE = 8000


def test_a_moment_takes_40_ms_and_has_two_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(1000, RATE, 0.5), RATE)
    found = np.array(moments(path, 16))
    # A column of the spectrogram is a window of 25 ms, every 10 ms: 48 in half a second.
    assert found.shape == (12, 2, 20)
    assert found.max() == 15
    assert found.min() >= 0
    # The lowest band is the last; 1,000 Hz are in the middle of the mel scale up to 4,000.
    assert 8 <= found.mean((0, 1)).argmax() <= 11


def test_a_sound_that_begins_late_has_its_levels_late(tmp_path: Path) -> None:
    whole = np.concatenate([np.zeros(RATE // 5), tone(1000, RATE, 0.2), np.zeros(RATE // 5)])
    found = np.array(moments(write(tmp_path / "a.wav", whole, RATE), 16)).max((1, 2))
    assert not found[:4].any()
    assert (found[5:9] == 15).all()
    assert not found[11:].any()


def test_the_frames_of_a_moment_follow_each_other(tmp_path: Path) -> None:
    # The third of four columns is the first whose 25 ms reach into the tone.
    late = np.concatenate([np.zeros(round(0.235 * RATE)), tone(1000, RATE, 0.3)])
    first, second = np.array(moments(write(tmp_path / "a.wav", late, RATE), 16))[5]
    assert first.max() == 0
    assert second.max() >= 10


def listed(folder: Path, *lines: object) -> SoundRecords:
    path = folder / "list.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SoundRecords(path, RecordSpec(reader="sounds", levels=8))


def test_paths_start_from_the_list(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    path = write(tmp_path / "sounds" / "a.wav", tone(500, RATE), RATE)
    records = listed(tmp_path, {"sound": "sounds/a.wav", "text": "five"})
    ((where, record),) = records.records()
    assert where.endswith("list.jsonl:1")
    assert record == {"sound": moments(path, 8), "text": "five"}
    assert with_moments(str(path), Path(), 8, "x") == {"sound": moments(path, 8)}
    before = records.content_hash()
    write(path, tone(600, RATE), RATE)
    assert records.content_hash() != before


def test_what_is_no_sound_is_named(tmp_path: Path) -> None:
    write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    write(tmp_path / "short.wav", tone(500, RATE, 0.04), RATE)
    (tmp_path / "broken.wav").write_bytes(b"RIFF....WAVE")
    cases = {
        "silent": ({"sound": "silent.wav"}, "silent.wav"),
        "a moment takes 4": ({"sound": "short.wav"}, "short.wav"),
        "cannot be read": ({"sound": "broken.wav"}, "broken.wav"),
        "No such file": ({"sound": "none.wav"}, "none.wav"),
        "names no sound": ({"text": "five"}, "list.jsonl:1"),
    }
    for message, (line, where) in cases.items():
        with pytest.raises(DataError, match=message) as error:
            list(listed(tmp_path, line).records())
        assert str(error.value.where).endswith(where)
        assert error.value.remedy
    with pytest.raises(DataError, match="names no sound"):
        listed(tmp_path, {"text": "five"}).content_hash()
