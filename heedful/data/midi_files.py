"""Music as moments: the pitches of all voices at every sixteenth note, from and to MIDI files.

A moment has one number for each voice: 0 for silence, else its MIDI pitch, 1 to 127 (60 is the
middle C). Two equal pitches after each other are one long note, as in Huang 2018. Needs `mido`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heedful.data.corpus_file import CorpusFile
from heedful.data.corpus_spec import RecordSpec
from heedful.data.text_corpus import CorpusDocument, numbered
from heedful.durable import whole_folder
from heedful.errors import ConfigError, DataError

MIDI_SUFFIXES = (".mid", ".midi")

FIELD = "notes"
"""Field of the records of music."""

Moments = list[list[int]]
"""Pitches [moments][voices]."""

_STEPS = 4  # moments of a quarter note
_TICKS = 480  # of a quarter note in files that are written; the usual number, divisible by 4
_DRUMS = 9  # channel whose numbers are instruments and not pitches (General MIDI)
_LONGEST = 100_000  # moments: 1.7 hours at 240 a minute; a damaged file may claim years
_VELOCITY = 80


class _Note(NamedTuple):
    start: int
    stop: int
    pitch: int


def read_moments(path: Path) -> Moments:
    """Read a MIDI file; every track and channel with notes is a voice, in their order.

    Where a voice sounds several notes at once, the highest counts. Drums are left out.

    Raises:
        DataError: when it cannot be read, or no note sounds in it.
        ConfigError: when mido is not installed.
    """
    library = _mido()
    try:
        file = library.MidiFile(path)
        ticks, tracks = file.ticks_per_beat, list(file.tracks)
        if ticks <= 0 or file.type == 2:
            raise ValueError("its tracks share no time in quarter notes")
        found = [_notes_of(track, ticks / _STEPS) for track in tracks]
    except FileNotFoundError:
        raise DataError("No such file", where=str(path), remedy="Check the path") from None
    # mido raises all of these on damaged files.
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"It cannot be read as MIDI: {str(error) or 'it ends too early'}",
            where=str(path),
            remedy="Save it again, or leave it out",
        ) from None
    voices = [notes for of_track, _ in found for notes in of_track]
    length = max((last for _, last in found), default=0)
    if not voices or length > _LONGEST:
        raise DataError(
            f"It has {length:,} moments and {len(voices)} voices",
            where=str(path),
            remedy=f"Music has notes, and at most {_LONGEST:,} sixteenths",
        )
    moments = [[0] * len(voices) for _ in range(length)]
    for number, notes in enumerate(voices):
        for note in notes:
            for moment in moments[note.start : note.stop]:
                moment[number] = max(moment[number], note.pitch)
    return moments


def write_pieces(out: Path, pieces: Iterable[Moments], *, tempo: float) -> int:
    """Write pieces as 1.mid, 2.mid and so on into a new folder; return their number.

    Args:
        out: folder, which appears when all are written.
        pieces: pitches of each piece.
        tempo: quarter notes in a minute.

    Raises:
        ConfigError: when mido is not installed.
    """
    count = 0
    with whole_folder(out) as folder:
        for count, moments in enumerate(pieces, start=1):
            write_moments(folder / f"{count}.mid", moments, tempo=tempo)
    return count


def write_moments(path: Path, moments: Sequence[Sequence[int]], *, tempo: float) -> None:
    """Write a MIDI file with a track for each voice.

    Args:
        path: file to write.
        moments: pitches of all voices at each sixteenth.
        tempo: quarter notes in a minute.

    Raises:
        DataError: when a pitch is none, or moments have different numbers of voices.
        ConfigError: when mido is not installed.
    """
    library = _mido()
    sizes = {len(moment) for moment in moments}
    if len(sizes) > 1 or not all(0 <= p <= 127 for moment in moments for p in moment):
        raise DataError(
            "Moments have one number for each voice, 0 for silence or a pitch up to 127",
            where=str(path),
            remedy="Give the field of the notes, or --lowest where 1 is another pitch",
        )
    file = library.MidiFile(ticks_per_beat=_TICKS)
    for number, voice in enumerate(zip(*moments, strict=True)):
        track = file.add_track(f"Voice {number + 1}")
        if number == 0:
            track.append(library.MetaMessage("set_tempo", tempo=library.bpm2tempo(tempo)))
        _write_voice(library, track, voice)
    file.save(path)


def _notes_of(track: Any, step: float) -> tuple[list[list[_Note]], int]:
    """Return the notes of each channel of a track, and the number of moments until its end."""
    sounding: dict[tuple[int, int], int] = {}
    channels: dict[int, list[_Note]] = {}
    now = 0

    def end(key: tuple[int, int]) -> None:
        start = round(sounding.pop(key) / step)
        # A short ornament still sounds for a moment.
        note = _Note(start, max(start + 1, round(now / step)), key[1])
        channels.setdefault(key[0], []).append(note)

    for message in track:
        now += message.time
        if message.type not in ("note_on", "note_off") or message.channel == _DRUMS:
            continue
        key = message.channel, message.note
        if key in sounding:
            end(key)
        if message.type == "note_on" and message.velocity and message.note:
            sounding[key] = now
    for key in list(sounding):  # notes that nothing ends last until the end
        end(key)
    last = max((note.stop for notes in channels.values() for note in notes), default=0)
    return [channels[each] for each in sorted(channels)], max(last, round(now / step))


def _write_voice(library: Any, track: Any, voice: Sequence[int]) -> None:
    """Append the messages of a voice; the time of a message counts from the one before."""
    waited = sounding = 0
    for pitch in (*voice, 0):
        if pitch != sounding:
            for kind, note in (("note_off", sounding), ("note_on", pitch)):
                if note:
                    message = library.Message(kind, note=note, velocity=_VELOCITY, time=waited)
                    track.append(message)
                    waited = 0
            sounding = pitch
        waited += _TICKS // _STEPS
    # One step more was counted, for the 0 that ends the last note.
    track.append(library.MetaMessage("end_of_track", time=max(0, waited - _TICKS // _STEPS)))


@dataclass(frozen=True)
class MidiRecords:
    """Pieces of music as records of their notes.

    Args:
        path: MIDI file, or a folder of such files and folders.
        spec: number of moments of a cut.
    """

    path: Path
    spec: RecordSpec

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the cuts of all pieces.

        Raises:
            DataError: when a file cannot be read, or there is none.
        """
        return numbered(self.records())

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the cuts with their places."""
        for path in self._files():
            moments = read_moments(path)
            size = self.spec.size or len(moments)
            for first in range(0, len(moments), size):
                yield f"{path}, moment {first + 1}", {FIELD: moments[first : first + size]}

    def content_hash(self) -> str:
        """Return the SHA-256 of the files and of the size of a cut."""
        hashes = [CorpusFile(path).hash_with("midi") for path in self._files()]
        return f"{' '.join(hashes)} {self.spec.size}"

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        found = sorted(p for p in self.path.rglob("*") if p.suffix.lower() in MIDI_SUFFIXES)
        if not found:
            raise DataError(
                f"There is no MIDI file in the folder ({', '.join(MIDI_SUFFIXES)})",
                where=str(self.path),
                remedy="Check that it is the right one",
            )
        return found


def _mido() -> Any:
    try:
        import mido
    except ImportError:
        raise ConfigError(
            "Reading and writing MIDI files needs mido, which is not installed",
            where="MIDI files",
            remedy="Install it with: pip install 'heedful[music]'",
        ) from None
    return mido
