"""Digits that a small synthesizer says, so that a model of sounds has something to hear.

A source, pulses of a voice or noise, goes through resonances that move from one speech sound to the
next (Klatt 1980, with three formants). Nobody's recordings are needed.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RATE = 8000
"""Samples in a second, as in the corpus that the model at hand was trained on."""
_FRAME = 40  # samples, 5 ms, between two settings of the resonances
_WIDTHS = (70.0, 100.0, 140.0)  # hertz, of the resonances
_PITCH = (125.0, 95.0)  # hertz at the beginning and at the end: a statement falls

Floats = npt.NDArray[np.float64]


class _Sound(NamedTuple):
    """A speech sound.

    Args:
        seconds: its length.
        voice, noise: loudness of the two sources.
        formants: hertz of the resonances at its middle.
        noise_band: hertz of the middle of the noise; 0 where it goes through the formants.
    """

    seconds: float
    voice: float
    noise: float
    formants: tuple[float, float, float]
    noise_band: float = 0.0


# Vowels after Peterson and Barney (1952), men; the others rounded from tables of Klatt (1980).
_SOUNDS = {
    "ih": _Sound(0.09, 1.0, 0.0, (390, 1990, 2550)),
    "iy": _Sound(0.20, 1.0, 0.0, (270, 2290, 3010)),
    "eh": _Sound(0.10, 1.0, 0.0, (530, 1840, 2480)),
    "ah": _Sound(0.12, 1.0, 0.0, (640, 1190, 2390)),
    "aa": _Sound(0.13, 1.0, 0.0, (730, 1090, 2440)),
    "ao": _Sound(0.17, 1.0, 0.0, (570, 840, 2410)),
    "ow": _Sound(0.20, 1.0, 0.0, (450, 880, 2350)),
    "uw": _Sound(0.22, 1.0, 0.0, (300, 870, 2240)),
    "ey": _Sound(0.10, 1.0, 0.0, (480, 2000, 2600)),
    "uh": _Sound(0.07, 0.8, 0.0, (500, 1350, 2450)),
    "w": _Sound(0.09, 0.6, 0.0, (290, 610, 2150)),
    "r": _Sound(0.09, 0.7, 0.0, (420, 1300, 1600)),
    "n": _Sound(0.10, 0.35, 0.0, (250, 1450, 2500)),
    "v": _Sound(0.07, 0.3, 0.05, (250, 1100, 2300), 3000),
    "z": _Sound(0.09, 0.25, 0.12, (280, 1700, 2500), 3700),
    "s": _Sound(0.14, 0.0, 0.25, (320, 1700, 2500), 3700),
    "f": _Sound(0.12, 0.0, 0.06, (300, 1200, 2300), 3000),
    "th": _Sound(0.10, 0.0, 0.05, (300, 1400, 2500), 3300),
    "-": _Sound(0.06, 0.0, 0.0, (300, 1700, 2500)),
    "t": _Sound(0.04, 0.0, 0.3, (350, 1800, 2600), 3500),
    "k": _Sound(0.04, 0.0, 0.25, (350, 1900, 2500), 2000),
}  # fmt: skip

WORDS = {
    "zero": "z ih r ow",
    "one": "w ah n",
    "two": "t uw",
    "three": "th r iy",
    "four": "f ao r",
    "five": "f aa ih v",
    "six": "s ih - k s",
    "seven": "s eh v uh n",
    "eight": "ey iy - t",
    "nine": "n aa ih n",
}
"""Speech sounds of each word."""


def say(word: str) -> bytes:
    """Say a word, one of `WORDS`.

    Returns:
        A WAV file of 8,000 samples a second, 16 bits each.
    """
    samples = _spoken([_SOUNDS[name] for name in WORDS[word].split()])
    whole = np.round(samples / np.abs(samples).max() * 0.8 * 32767).astype("<i2")
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(whole.tobytes())
    return stream.getvalue()


def _spoken(sounds: Sequence[_Sound]) -> Floats:
    """Return the samples of speech sounds, whose settings glide from middle to middle."""
    lengths = np.array([sound.seconds for sound in sounds])
    middles = np.cumsum(lengths) - lengths / 2
    frames = np.arange(int(lengths.sum() * RATE / _FRAME))
    at = frames * _FRAME / RATE
    columns = np.array([[s.voice, s.noise, *s.formants] for s in sounds]).T
    voice, noise, *formants = (np.interp(at, middles, column) for column in columns)
    # Noise has a place of its own in each sound, and does not glide from one to the next.
    number_at = np.searchsorted(np.cumsum(lengths), at, side="right").clip(max=len(sounds) - 1)
    band = np.array([s.noise_band for s in sounds])[number_at]
    fade = np.minimum(1, np.minimum(frames + 1, frames[::-1] + 1) / 4)
    draw = np.random.default_rng(1)
    states = [np.zeros(2) for _ in range(4)]
    phase, parts = 0.0, []
    for number in frames:
        pitch = np.interp(number, (0, len(frames)), _PITCH)
        pulses = np.zeros(_FRAME)
        for sample in range(_FRAME):
            phase += pitch / RATE
            if phase >= 1:
                phase -= 1
                pulses[sample] = 1
        hiss = draw.normal(size=_FRAME)
        sound = voice[number] * pulses * 8
        for formant, width, state in zip(formants, _WIDTHS, states, strict=False):
            sound = _resonance(sound, float(formant[number]), width, state)
        hiss = _resonance(hiss, float(band[number] or 2500), 600.0, states[3])
        parts.append(fade[number] * (sound + noise[number] * hiss))
    return np.concatenate(parts)


def _resonance(sound: Floats, hertz: float, width: float, state: Floats) -> Floats:
    """Return a sound through a resonance of two poles, whose last two outputs are its state."""
    radius = np.exp(-np.pi * width / RATE)
    first, second = 2 * radius * np.cos(2 * np.pi * hertz / RATE), -(radius**2)
    found = np.empty_like(sound)
    for number, value in enumerate(sound):
        found[number] = (1 - first - second) * value + first * state[0] + second * state[1]
        state[:] = found[number], state[0]
    return found
