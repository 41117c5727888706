"""Music from and to MIDI files: what is written is read again; files of others; bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.corpus_spec import RecordSpec
from heedful.data.midi_files import MidiRecords, read_moments, write_moments
from heedful.errors import DataError

mido = pytest.importorskip("mido", reason="needs mido, which reads MIDI files")

PITCHES = st.one_of(st.just(0), st.integers(1, 127))


@st.composite
def moments(draw: st.DrawFn) -> list[list[int]]:
    """Music whose voices all sound at least once: others leave no note in a file."""
    voices = [
        draw(st.lists(PITCHES, min_size=12, max_size=12).filter(any))
        for _ in range(draw(st.integers(1, 5)))
    ]
    return [list(moment) for moment in zip(*voices, strict=True)]


@given(music=moments(), tempo=st.floats(20, 300))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, music: list[list[int]], tempo: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "tune.mid"
    write_moments(path, music, tempo=tempo)
    assert read_moments(path) == music
    seconds = 12 / 4 * 60 / tempo  # twelve sixteenths
    assert mido.MidiFile(path).length == pytest.approx(seconds, rel=1e-3)


def note(kind: str, pitch: int, time: int, channel: int = 0, velocity: int = 64) -> object:
    return mido.Message(kind, note=pitch, time=time, channel=channel, velocity=velocity)


def test_files_of_others(tmp_path: Path) -> None:
    """A track of three channels, chords, triplets, drums, ends by velocity 0 and none at all."""
    file = mido.MidiFile(type=0, ticks_per_beat=96)
    track = mido.MidiTrack()
    file.tracks.append(track)
    track += [
        note("note_on", 60, 0),
        note("note_on", 64, 0),  # a chord: the highest note counts
        note("note_on", 40, 0, channel=9),
        note("note_on", 45, 0, channel=3),
        note("note_on", 64, 24, velocity=0),
        note("note_off", 60, 24),
        note("note_on", 72, 0),
        note("note_off", 72, 32),  # a triplet, 4/3 of a sixteenth
        note("note_on", 72, 0),
        note("note_off", 72, 3),  # an ornament
    ]
    file.save(tmp_path / "a.mid")
    assert read_moments(tmp_path / "a.mid") == [[64, 45], [60, 45], [72, 45], [72, 0]]


def test_a_folder_is_cut_into_records(tmp_path: Path) -> None:
    for name in ("b.MID", "inner/a.midi"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_moments(tmp_path / name, [[60 + n] for n in range(5)], tempo=90)
    reader = MidiRecords(tmp_path, RecordSpec(reader="midi", size=4))
    found = [(where, record["notes"]) for where, record in reader.records()]
    assert [len(notes) for _, notes in found] == [4, 1, 4, 1]
    assert found[1] == (f"{tmp_path / 'b.MID'}, moment 5", [[64]])
    assert [json.loads(document.text) for document in reader] == [{"notes": n} for _, n in found]
    assert reader.content_hash() != MidiRecords(tmp_path, RecordSpec(reader="midi")).content_hash()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="no MIDI file in the folder"):
        list(MidiRecords(empty, RecordSpec(reader="midi")).records())


@pytest.mark.parametrize("cut", [0, 3, 13, 21, 40, -3])
def test_damaged_files(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.mid"
    write_moments(path, [[60, 64], [62, 65]] * 4, tempo=90)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.mid: It (cannot be read as MIDI|has 0 moments)"):
        read_moments(path)


def test_music_without_notes(tmp_path: Path) -> None:
    write_moments(tmp_path / "a.mid", [[0, 0]] * 3, tempo=90)
    with pytest.raises(DataError, match="It has 3 moments and 0 voices"):
        read_moments(tmp_path / "a.mid")
    with pytest.raises(DataError, match="one number for each voice"):
        write_moments(tmp_path / "b.mid", [[1, 2], [1]], tempo=90)
