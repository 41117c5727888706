"""Sounds as pictures: the spectrogram of a WAV file, in grey.

A vision Transformer that is given spectrograms classifies sounds as it classifies pictures (Gong
2021, "AST"). Rows are bands of the mel scale, which are as wide as the ear tells pitches apart, the
lowest at the bottom; columns are moments. Models of token sequences read a list of sounds and their
texts as records of levels.
"""

from __future__ import annotations

import functools
import hashlib
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from heedful.data.corpus_file import CorpusFile
from heedful.data.corpus_spec import RecordSpec
from heedful.data.text_corpus import CorpusDocument, numbered
from heedful.data.text_file import content_digest, parse_json
from heedful.errors import DataError

SOUND_SUFFIXES = (".wav",)

BANDS = 40  # usual in speech recognition: more are narrower than a bin of the low frequencies
_WINDOW, _STEP = 0.025, 0.010  # seconds: about two periods of a low voice, and a hundred a second
_RANGE = 80.0  # dB below the loudest point that are black; speech keeps within 60 of it
_FASTEST = 1_000_000  # samples a second: more are of no microphone, but of a damaged head
_LONGEST = 60.0  # seconds: a picture of a longer sound would be resized to nothing

Floats = npt.NDArray[np.float64]


def spectrogram(source: Path | BinaryIO, where: str) -> npt.NDArray[np.uint8]:
    """Read a sound and return its spectrogram.

    Args:
        source: path of a WAV file, or a stream of its bytes; channels are averaged.
        where: name of the sound for the error message.

    Returns:
        Grey pixels [40, moments] uint8, 255 for the loudest point and 0 for 80 dB less.

    Raises:
        DataError: when it is no WAV file of whole numbers, damaged, silent, shorter than 25 ms or
            longer than a minute.
    """
    samples, rate = read_samples(source, where)
    seconds = len(samples) / rate
    if not _WINDOW <= seconds <= _LONGEST:
        raise DataError(
            f"The sound takes {seconds:.3f} seconds, and should take {_WINDOW} to {_LONGEST:.0f}",
            where=where,
            remedy="Cut it into parts, or leave it out",
        )
    window, step = round(_WINDOW * rate), max(1, round(_STEP * rate))
    # Padded to twice the window: the low bands are narrower than a bin of the window's own length.
    size = 1 << (2 * window - 1).bit_length()
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::step]
    power = np.abs(np.fft.rfft(frames * np.hanning(window), size)) ** 2  # [moments, size / 2 + 1]
    energy = _filters(rate, size) @ power.T
    loudest = energy.max()
    if loudest <= 0:
        raise DataError("The sound is silent", where=where, remedy="Leave it out")
    decibels = 10 * np.log10(np.maximum(energy / loudest, 1e-12))
    grey = np.clip(1 + decibels / _RANGE, 0, 1) * 255
    return np.ascontiguousarray(grey[::-1].round().astype(np.uint8))


@functools.lru_cache(maxsize=8)
def _filters(rate: int, size: int) -> Floats:
    """Return the triangles of the mel bands [40, size / 2 + 1] over the bins of a spectrum."""

    hertz = np.fft.rfftfreq(size, 1 / rate)
    bins = 2595 * np.log10(1 + hertz / 700)  # the formula of HTK
    edges = np.linspace(0, bins[-1], BANDS + 2)
    return triangles(bins, edges)


def triangles(bins: npt.NDArray[Any], edges: Floats) -> Floats:
    """Return filters [B, N] over frequencies [N]: each rises to 1 between edges [B + 2] and falls.

    Args:
        bins: frequencies, in the unit in which the sides of the triangles are straight.
        edges: ascending frequencies; a filter begins at one, peaks at the next, ends at the third.
    """
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    result: Floats = np.maximum(0, np.minimum(rising, falling))
    return result


def read_samples(source: Path | BinaryIO, where: str) -> tuple[Floats, int]:
    """Return the samples of a WAV file, between −1 and 1, and how many there are in a second.

    Args:
        source: path of the file, or a stream of its bytes; channels are averaged.
        where: name of the sound for the error message.

    Raises:
        DataError: when it is no WAV file of whole numbers, or damaged.
    """
    try:
        with wave.open(str(source) if isinstance(source, Path) else source, "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            count, content = file.getnframes(), file.readframes(file.getnframes())
    except FileNotFoundError:
        raise DataError("No such file", where=where, remedy="Check the path") from None
    except (wave.Error, EOFError, OSError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"The sound cannot be read: {str(error) or 'it ends in its head'}",
            where=where,
            remedy="Save it as WAV with 16 bits a sample",
        ) from None
    if not 1000 <= rate <= _FASTEST or len(content) < count * channels * width:
        raise DataError(
            f"The sound is damaged: it has {len(content):,} of {count * channels * width:,} bytes, "
            f"at {rate:,} samples a second",
            where=where,
            remedy="Copy the file again",
        )
    return _samples(content, width).reshape(-1, channels).mean(1), rate


def _samples(content: bytes, width: int) -> Floats:
    """Return whole numbers of 1 to 4 bytes as fractions of their largest."""
    raw = np.frombuffer(content, np.uint8)
    if width == 1:  # the only ones without a sign
        return (raw.astype(np.float64) - 128) / 128
    # Moved to the top of 32 bits, so that 24 bits need no case of their own.
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = raw.reshape(-1, width)
    return padded.view("<i4")[:, 0] / 2.0**31


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
