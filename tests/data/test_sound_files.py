"""Sounds as pictures: pitches stand where they belong, whatever the file's numbers; bad files."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.sound_files import BANDS, spectrogram
from heedful.errors import DataError

Samples = npt.NDArray[np.float64]


def tone(hertz: float, rate: int, seconds: float = 0.3) -> Samples:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write(path: Path, samples: Samples, rate: int, *, width: int = 2, channels: int = 1) -> Path:
    """Write a WAV file with the same samples in all channels."""
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    whole += 128 if width == 1 else 0
    content = b"".join(
        int(each).to_bytes(width, "little", signed=width > 1) * channels for each in whole
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def brightest(path: Path) -> float:
    """The band that is brightest on average, counted from the lowest."""
    return float(BANDS - 1 - spectrogram(path, "x").mean(1).argmax())


@given(
    hertz=st.floats(200, 3400), rate=st.sampled_from([8000, 11025, 16000, 44100]), case=st.data()
)
def test_a_pitch_stands_in_its_band(
    tmp_path_factory: pytest.TempPathFactory, hertz: float, rate: int, case: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "tone.wav"
    width, channels = case.draw(st.sampled_from([1, 2, 3, 4])), case.draw(st.integers(1, 3))
    write(path, tone(hertz, rate), rate, width=width, channels=channels)
    # The mel scale by O'Shaughnessy's other form of the formula, 1127 ln(1 + f / 700).
    top = 1127 * np.log(1 + rate / 2 / 700)
    expected = 1127 * np.log(1 + hertz / 700) / top * (BANDS + 1) - 1
    assert brightest(path) == pytest.approx(expected, abs=1.0)


def test_moments_are_a_hundredth_of_a_second(tmp_path: Path) -> None:
    rate = 8000
    samples = np.concatenate([tone(400, rate, 0.5), tone(2000, rate, 0.5)])
    pixels = spectrogram(write(tmp_path / "two.wav", samples, rate), "x")
    assert pixels.shape == (BANDS, 98)  # the last window begins 25 ms before the end
    low, high = (pixels[:, part].mean(1).argmax() for part in (slice(0, 45), slice(52, 98)))
    assert low > high  # the lowest band is the last row
    assert pixels.max() == 255


def test_loudness_does_not_count(tmp_path: Path) -> None:
    loud = spectrogram(write(tmp_path / "loud.wav", tone(700, 8000), 8000, width=4), "x")
    quiet = spectrogram(write(tmp_path / "quiet.wav", tone(700, 8000) / 50, 8000, width=4), "x")
    assert np.abs(loud.astype(int) - quiet.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read: it ends in its head"),
        (b"Dear all, this is no sound.", "cannot be read: file does not start with RIFF id"),
        (None, "damaged: it has 1,000 of 4,800 bytes"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.wav"
    if content is None:
        content = write(path, tone(700, 8000), 8000).read_bytes()[:1044]
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"here: The sound (is )?{said}"):
        spectrogram(path, "here")


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (np.zeros(4000), "The sound is silent"),
        (np.zeros(96), "takes 0.012 seconds, and should take 0.025 to 60"),
        (np.zeros(8000 * 61), "takes 61.000 seconds"),
    ],
)
def test_sounds_without_a_picture(tmp_path: Path, samples: Samples, said: str) -> None:
    with pytest.raises(DataError, match=said):
        spectrogram(write(tmp_path / "a.wav", samples, 8000), "here")
