"""Music events back as notes, with the rules that a piece keeps."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.apps.studio.music_events import PITCHES, Event, MusicNote
from heedful.errors import DataError


def event_of(id: int) -> Event:
    """Return the event of an id in the vocabulary."""
    if id < PITCHES:
        return Event("note_on", id)
    if id < 2 * PITCHES:
        return Event("note_off", id - PITCHES)
    return Event("time_shift", id - 2 * PITCHES + 1)


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
