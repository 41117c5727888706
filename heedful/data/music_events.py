"""Music as a sequence of events: notes that begin, notes that end, and the time between.

The vocabulary is that of the Music Transformer (Huang 2018, after Oore 2018) without its 32 events
for the loudness of a note: 128 notes begin, 128 end, and time goes on by 1 to 100 steps of 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.errors import DataError

PITCHES = 128
"""Pitches of MIDI: 60 is middle C, and each next number is a semitone higher."""
LONGEST_SHIFT = 100
"""Steps of the longest shift of time; a longer pause takes several."""
STEPS_PER_SECOND = 100
VOCABULARY_SIZE = 2 * PITCHES + LONGEST_SHIFT

EventKind = Literal["note_on", "note_off", "time_shift"]


@dataclass(frozen=True, order=True)
class MusicNote:
    """A note.

    Args:
        start: in steps.
        pitch: of MIDI, 0 to 127.
        end: in steps, after the start.

    Raises:
        DataError: when there is no such note.
    """

    start: int
    pitch: int
    end: int

    def __post_init__(self) -> None:
        if not (0 <= self.pitch < PITCHES and 0 <= self.start < self.end):
            raise DataError(
                f"There is no note of pitch {self.pitch} from step {self.start} to {self.end}",
                remedy=f"Use pitches from 0 to {PITCHES - 1}, and let a note end after its start",
            )


@dataclass(frozen=True)
class Event:
    """A token of music.

    Args:
        kind: a note begins, a note ends, or time goes on.
        value: the pitch, or the steps of time.
    """

    kind: EventKind
    value: int

    @property
    def id(self) -> int:
        """Its number in the vocabulary."""
        return {
            "note_on": self.value,
            "note_off": PITCHES + self.value,
            "time_shift": 2 * PITCHES + self.value - 1,
        }[self.kind]

    @classmethod
    def of(cls, id: int) -> Event:
        """Return the event of a number in the vocabulary.

        Raises:
            DataError: when there is none.
        """
        if not 0 <= id < VOCABULARY_SIZE:
            raise DataError(f"There is no event {id}; the last is {VOCABULARY_SIZE - 1}")
        if id < PITCHES:
            return cls("note_on", id)
        if id < 2 * PITCHES:
            return cls("note_off", id - PITCHES)
        return cls("time_shift", id - 2 * PITCHES + 1)


def encode_notes(notes: Iterable[MusicNote]) -> list[Event]:
    """Return the events of some notes; at the same time notes end before others begin, low first.

    Raises:
        DataError: when a note begins while the same pitch sounds, for its end would be ambiguous.
    """
    changes = sorted(
        change
        for note in notes
        for change in ((note.start, 1, note.pitch), (note.end, 0, note.pitch))
    )
    events: list[Event] = []
    now = 0
    sounding: set[int] = set()
    for time, begins, pitch in changes:
        while now < time:
            step = min(LONGEST_SHIFT, time - now)
            events.append(Event("time_shift", step))
            now += step
        if not begins:
            sounding.remove(pitch)
        elif pitch in sounding:
            raise DataError(
                f"Pitch {pitch} begins at step {time} while it still sounds",
                remedy="End the first note before the second begins",
            )
        else:
            sounding.add(pitch)
        events.append(Event("note_on" if begins else "note_off", pitch))
    return events


def decode_events(events: Sequence[Event]) -> list[MusicNote]:
    """Return the notes of some events, by their starts, low ones first.

    Raises:
        DataError: naming the event that begins a note which sounds, ends one which does not, or
            the note that never ends.
    """
    notes: list[MusicNote] = []
    started: dict[int, int] = {}
    now = 0
    for place, event in enumerate(events):
        if event.kind == "time_shift":
            now += event.value
        elif (event.kind == "note_on") == (event.value in started):
            state = "sounds already" if event.kind == "note_on" else "does not sound"
            raise DataError(f"Pitch {event.value} {state}", where=f"event {place}")
        elif event.kind == "note_on":
            started[event.value] = now
        else:
            notes.append(MusicNote(started.pop(event.value), event.value, now))
    if started:
        raise DataError(
            f"Pitch {min(started)} never ends",
            where=f"{len(events)} events",
            remedy="Let a note_off follow each note_on",
        )
    return sorted(notes)
