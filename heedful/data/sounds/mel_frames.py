"""Sounds as Whisper reads them: logarithms of the energy of mel bands, a frame every 10 ms.

The bands are those of Slaney (1998), and the steps those of Radford (2022), section 2.2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from heedful.data.sound_files import Floats, read_samples, triangles
from heedful.errors import DataError

RATE = 16_000
"""Samples a second that models of speech read; those of another rate are resampled."""
STEP = 160
"""Samples from one frame to the next: 10 ms."""
WINDOW = 400
"""Samples of a frame: 25 ms."""

_QUIETEST = 1e-10  # of the energy, whose logarithm would not exist
_RANGE = 8.0  # powers of ten below the loudest point: 80 dB
_CUT = 1 / 6  # of a window, in which a longer sound is cut at its quietest point
_BLOCK = 30  # seconds that are resampled at once


def read_speech(source: Path | BinaryIO, where: str) -> Floats:
    """Return the samples of a WAV file of any rate, 16,000 a second.

    Args:
        source: path of the file, or a stream of its bytes; channels are averaged.
        where: name of the sound for the error message.

    Raises:
        DataError: when it is no WAV file of whole numbers, damaged or empty.
    """
    samples, rate = read_samples(source, where)
    if not len(samples):
        raise DataError("The sound has no samples", where=where, remedy="Leave it out")
    return resampled(samples, rate)


def resampled(samples: Floats, rate: int) -> Floats:
    """Return samples of another rate as 16,000 a second, without what is above 8 kHz.

    Args:
        samples: [N].
        rate: samples a second.
    """
    if rate == RATE:
        return samples
    # Whole seconds have whole numbers of samples at both rates, so blocks of them fit together.
    seconds = min(_BLOCK, -(-len(samples) // rate))
    padded = np.pad(samples, (rate, (seconds + 1) * rate))
    # A block begins and ends at 0, as its spectrum means that it is repeated for ever.
    fade = np.sin(np.linspace(0, np.pi / 2, rate)) ** 2
    blocks = []
    for first in range(0, len(samples), seconds * rate):
        block = padded[first : first + (seconds + 2) * rate].copy()
        block[:rate] *= fade
        block[-rate:] *= fade[::-1]
        # Frequencies that the other rate does not have are left out, or are zeros.
        inner = np.fft.irfft(np.fft.rfft(block), (seconds + 2) * RATE)[RATE:-RATE]
        blocks.append(inner * (RATE / rate))
    whole: Floats = np.concatenate(blocks)[: -(-len(samples) * RATE // rate)]
    return whole


def windows(samples: Floats, frames: int) -> Iterator[Floats]:
    """Yield a sound in parts of at most `frames` frames, cut where it is quiet.

    Args:
        samples: [N], 16,000 a second.
        frames: longest part.
    """
    size = frames * STEP
    while len(samples) > size:
        first = round(size * (1 - _CUT))
        # A pause between words is longer than a frame.
        loudness = np.convolve(samples[first:size] ** 2, np.ones(WINDOW), "valid")
        cut = first + int(loudness.argmin()) + WINDOW // 2
        yield samples[:cut]
        samples = samples[cut:]
    yield samples


def log_mel(samples: Floats, frames: int, bands: int) -> npt.NDArray[np.float32]:
    """Return the frames of a sound that was padded to a length, [frames, bands].

    Args:
        samples: [N] between −1 and 1, 16,000 a second, at most as many as the frames take.
        frames: number of frames.
        bands: number of bands of the mel scale up to 8 kHz.
    """
    assert len(samples) <= frames * STEP, (len(samples), frames)
    whole = np.pad(samples, (0, frames * STEP - len(samples)))
    # A frame is centred at its moment, and sees the sound mirrored beyond its ends.
    around = np.pad(whole, WINDOW // 2, mode="reflect")
    parts = np.lib.stride_tricks.sliding_window_view(around, WINDOW)[::STEP][:frames]
    # One sample less than a symmetric window, as of a repeated signal.
    power = np.abs(np.fft.rfft(parts * np.hanning(WINDOW + 1)[:-1])) ** 2  # [frames, 201]
    levels = np.log10(np.maximum(power @ _filters(bands).T, _QUIETEST))
    levels = np.maximum(levels, levels.max() - _RANGE)
    result: npt.NDArray[np.float32] = ((levels + 4) / 4).astype(np.float32)  # about −1 to 1
    return result


@functools.lru_cache(maxsize=4)
def _filters(bands: int) -> Floats:
    """Return the filters of the bands [bands, 201], whose areas are equal."""
    edges = _hertz(np.linspace(0, _mels(RATE / 2), bands + 2))
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    filters = triangles(bins, edges)
    equal: Floats = filters * (2 / (edges[2:] - edges[:-2]))[:, None]
    return equal


# Slaney's scale: linear up to 1 kHz, which is 15, and logarithmic above it.
_LINEAR, _KNEE = 3 / 200, 15.0
_STEEPNESS = 27 / np.log(6.4)


def _mels(hertz: float) -> float:
    return float(_KNEE + _STEEPNESS * np.log(hertz / 1000))


def _hertz(mels: npt.NDArray[np.floating]) -> Floats:
    above = 1000 * np.exp((mels - _KNEE) / _STEEPNESS)
    hertz: Floats = np.where(mels < _KNEE, mels / _LINEAR, above)
    return hertz
