"""Music as a sequence of events: notes that begin, notes that end, and the time between.

The vocabulary is that of the Music Transformer (Huang 2018, after Oore 2018) without its 32
events for velocity: 128 notes begin, 128 end, and time advances by 1 to 100 steps of 10 ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from heedful.errors import DataError

PITCHES = 128
"""Number of MIDI pitches: 60 is middle C, and the next number is a semitone higher."""
LONGEST_SHIFT = 100
"""Steps of the longest time shift; a longer pause takes several."""
STEPS_PER_SECOND = 100
VOCABULARY_SIZE = 2 * PITCHES + LONGEST_SHIFT

EventKind = Literal["note_on", "note_off", "time_shift"]


@dataclass(frozen=True, order=True)
class MusicNote:
    """A note, ordered by its start, then by its pitch.

    Args:
        start: time of its start in steps.
        pitch: MIDI pitch, 0 to 127.
        end: time of its end in steps, after the start.

    Raises:
        DataError: when pitch or times are out of range.
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
    """One event, a token of music.

    Args:
        kind: start of a note, end of a note, or shift of time.
        value: pitch, or number of steps.
    """

    kind: EventKind
    value: int

    @property
    def id(self) -> int:
        """Id of the event in the vocabulary."""
        return {
            "note_on": self.value,
            "note_off": PITCHES + self.value,
            "time_shift": 2 * PITCHES + self.value - 1,  # shifts are counted from 1, ids from 0
        }[self.kind]


def encode_notes(notes: Iterable[MusicNote]) -> list[Event]:
    """Return the events of notes; at equal times ends precede starts, and low pitches high ones.

    Raises:
        DataError: when a note begins while the same pitch sounds, for its end would be ambiguous.
    """
    # 0 for ends sorts before 1 for starts, so a pitch may be struck again at once.
    changes = sorted(
        change
        for note in notes
        for change in ((note.start, 1, note.pitch), (note.end, 0, note.pitch))
    )
    events: list[Event] = []
    now = 0
    sounding: set[int] = set()
    for time, begins, pitch in changes:
        # A shift comes only before another event, so silence after the last note is not encoded.
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
