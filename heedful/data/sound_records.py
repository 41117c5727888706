"""Sounds with their texts as records: moments of levels of loudness, and what is said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.corpus_file import CorpusFile
from heedful.data.corpus_spec import RecordSpec
from heedful.data.sound_files import BANDS, SOUND_SUFFIXES, spectrogram
from heedful.data.text_corpus import CorpusDocument, numbered
from heedful.data.text_file import content_digest, parse_json
from heedful.errors import DataError

FIELD = "sound"
"""Field of the levels of a sound."""

_FRAMES = 2  # means of a moment, each of two columns of the spectrogram, so of 20 ms
_SHAPE = (2 * _FRAMES, BANDS // 2)
_REMEDY = 'Each line must be an object like {"sound": "a.wav", "text": "what is said"}'


def moments(path: Path, levels: int) -> list[Any]:
    """Read a WAV file as levels of loudness.

    A moment takes 40 ms, about half of a short speech sound, and has two frames of 20 bands of the
    mel scale, the lowest last.

    Args:
        path: the file.
        levels: number of levels, from 80 dB below the loudest point up to it.

    Returns:
        Levels [moments][2][20].

    Raises:
        DataError: when it cannot be read, or is shorter than a moment; see `spectrogram`.
    """
    grey = spectrogram(path, str(path))
    count = grey.shape[1] // _SHAPE[0]
    if not count:
        raise DataError(
            f"The sound has {grey.shape[1]} steps of 10 ms, and a moment takes {_SHAPE[0]}",
            where=str(path),
            remedy="Leave it out",
        )
    # [20, 2, moments, 2, 2]: pairs of bands and of columns, of which the mean is taken.
    parts = grey[:, : count * _SHAPE[0]].reshape(_SHAPE[1], 2, count, _FRAMES, 2)
    mean = parts.mean((1, 4)).transpose(1, 2, 0)
    result: list[Any] = (mean * levels // 256).astype(int).tolist()
    return result


def with_moments(line: str, folder: Path, levels: int, where: str) -> Any:
    """Return a record whose field `sound` names a WAV file with the levels of the sound instead.

    Args:
        line: the record as a line of JSON, or the path of the sound alone.
        folder: folder that paths start from.
        levels: number of levels.
        where: name of the line in errors.

    Raises:
        DataError: when the line is no such record, or the sound cannot be read.
    """
    record = _parsed(line, where)
    if not isinstance(record[FIELD], str):
        return record
    return record | {FIELD: moments(folder / record[FIELD], levels)}


def _parsed(line: str, where: str) -> dict[str, Any]:
    is_path = line.strip().lower().endswith(SOUND_SUFFIXES)
    record = {FIELD: line.strip()} if is_path else parse_json(line, where, _REMEDY)
    if not isinstance(record, dict) or FIELD not in record:
        raise DataError("The line names no sound", where=where, remedy=_REMEDY)
    return record


@dataclass(frozen=True)
class SoundRecords:
    """Sounds as records, from a list of their files and texts.

    Args:
        path: lines of JSON; paths of sounds start from its folder.
        spec: levels.
    """

    path: Path
    spec: RecordSpec

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the records.

        Raises:
            DataError: when the list or a sound cannot be read.
        """
        return numbered(self.records())

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the records with their places."""
        for where, line in self._lines():
            yield where, with_moments(line, self.path.parent, self.spec.levels, where)

    def content_hash(self) -> str:
        """Return the SHA-256 of the list, of the sounds and of what changes the levels."""
        whole = hashlib.sha256(CorpusFile(self.path).hash_with("sounds").encode())
        whole.update(f"{self.spec.levels} {_SHAPE}".encode())
        for where, line in self._lines():
            sound = _parsed(line, where)[FIELD]
            if isinstance(sound, str):
                whole.update(content_digest(self.path.parent / sound))
        return whole.hexdigest()

    def _lines(self) -> Iterator[tuple[str, str]]:
        file = CorpusFile(self.path)
        lines = ((where, line) for _, where, line in file.filled_lines())
        return file.at_least_one(lines, "sound")
