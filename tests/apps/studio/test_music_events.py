"""Music as events: what is written can be read back, and the vocabulary has no gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.studio.music_events import (
    LONGEST_SHIFT,
    VOCABULARY_SIZE,
    Event,
    MusicNote,
    encode_notes,
)
from heedful.errors import DataError
from tests.apps.studio.decoded_events import decode_events, event_of


@st.composite
def pieces(draw: st.DrawFn) -> list[MusicNote]:
    """Notes of a few pitches; those of one pitch one after the other, perhaps touching."""
    notes = []
    for pitch in draw(st.lists(st.integers(0, 127), unique=True, max_size=5)):
        time = 0
        for gap, length in draw(
            st.lists(st.tuples(st.integers(0, 350), st.integers(1, 250)), max_size=6)
        ):
            notes.append(MusicNote(time + gap, pitch, time + gap + length))
            time += gap + length
    return notes


@given(pieces(), st.randoms(use_true_random=False))
def test_notes_come_back(notes: list[MusicNote], source) -> None:
    mixed = list(notes)
    source.shuffle(mixed)
    events = encode_notes(mixed)
    assert decode_events(events) == sorted(notes)
    assert [event_of(event.id) for event in events] == events
    assert sum(event.kind != "time_shift" for event in events) == 2 * len(notes)
    last = max((note.end for note in notes), default=0)
    shifts = [event.value for event in events if event.kind == "time_shift"]
    assert sum(shifts) == last
    assert all(1 <= shift <= LONGEST_SHIFT for shift in shifts)


@given(pieces(), st.integers(1, 11))
def test_higher_by_some_semitones_is_the_same_piece(notes: list[MusicNote], up: int) -> None:
    """Only the pitches change: the time of all events stays."""
    low = [note for note in notes if note.pitch + up < 128]
    high = [MusicNote(note.start, note.pitch + up, note.end) for note in low]
    for before, after in zip(encode_notes(low), encode_notes(high), strict=True):
        moved = 0 if before.kind == "time_shift" else up
        assert after == Event(before.kind, before.value + moved)


def test_every_number_is_one_event() -> None:
    events = [event_of(number) for number in range(VOCABULARY_SIZE)]
    assert VOCABULARY_SIZE == 128 + 128 + 100
    assert len(set(events)) == VOCABULARY_SIZE
    assert [event.id for event in events] == list(range(VOCABULARY_SIZE))


def test_a_chord_by_hand() -> None:
    events = encode_notes([MusicNote(0, 67, 250), MusicNote(0, 60, 100), MusicNote(100, 60, 250)])
    assert [(event.kind, event.value) for event in events] == [
        ("note_on", 60),
        ("note_on", 67),
        ("time_shift", 100),
        ("note_off", 60),
        ("note_on", 60),
        ("time_shift", 100),
        ("time_shift", 50),
        ("note_off", 60),
        ("note_off", 67),
    ]


ON, OFF, LATER = Event("note_on", 60), Event("note_off", 60), Event("time_shift", 9)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([ON, LATER, ON], "event 2: Pitch 60 sounds already"),
        ([LATER, OFF], "event 1: Pitch 60 does not sound"),
        ([ON, LATER], "Pitch 60 never ends"),
        ([ON, OFF], "no note of pitch 60"),
    ],
)
def test_events_that_make_no_piece(events: list[Event], said: str) -> None:
    with pytest.raises(DataError) as caught:
        decode_events(events)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("start", "pitch", "end"), [(0, 128, 1), (0, -1, 1), (5, 60, 5), (-1, 1, 3)]
)
def test_notes_that_are_none(start: int, pitch: int, end: int) -> None:
    with pytest.raises(DataError, match="no note"):
        MusicNote(start, pitch, end)


def test_a_pitch_that_sounds_twice_is_refused() -> None:
    with pytest.raises(DataError, match="still sounds"):
        encode_notes([MusicNote(0, 60, 100), MusicNote(50, 60, 150)])
