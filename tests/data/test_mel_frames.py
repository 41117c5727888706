"""Sounds as models of speech read them: resampled, and cut into windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.sounds.mel_frames import RATE, STEP, log_mel, resampled, windows


@given(
    rate=st.sampled_from([8000, 11_025, 16_000, 22_050, 44_100, 48_000, 7919]),
    share=st.floats(0.02, 0.9),
    seconds=st.floats(0.5, 3),
)
def test_a_tone_keeps_its_pitch_and_loudness(rate: int, share: float, seconds: float) -> None:
    """Moments of a tone at 16 kHz are those of the same tone, drawn there."""
    hertz = share * min(rate, RATE) / 2
    found = resampled(np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate), rate)
    assert len(found) == int(np.ceil(round(seconds * rate) * RATE / rate))
    expected = np.sin(2 * np.pi * hertz * np.arange(len(found)) / RATE)
    inner = slice(RATE // 5, -RATE // 5)  # the tone begins and ends with a jump
    np.testing.assert_allclose(found[inner], expected[inner], atol=0.01)


def test_what_is_above_eight_kilohertz_is_left_out() -> None:
    high = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000)
    assert np.abs(resampled(high, 48_000)[2000:-2000]).max() < 0.01


def test_blocks_fit_together() -> None:
    """Of 70 seconds, which are resampled in three blocks."""
    found = resampled(np.sin(2 * np.pi * 100 * np.arange(70 * 8000) / 8000), 8000)
    expected = np.sin(2 * np.pi * 100 * np.arange(70 * RATE) / RATE)
    np.testing.assert_allclose(found[RATE:-RATE], expected[RATE:-RATE], atol=1e-3)


@given(length=st.integers(1, 5000), frames=st.sampled_from([10, 16, 24]), seed=st.integers(0, 99))
def test_windows_make_up_the_whole(length: int, frames: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(size=length)
    parts = list(windows(samples, frames))
    np.testing.assert_array_equal(np.concatenate(parts), samples)
    assert all(len(part) <= frames * STEP for part in parts)
    assert all(len(part) >= frames * STEP * 5 // 6 for part in parts[:-1])


def test_a_window_ends_in_a_pause() -> None:
    samples = np.random.default_rng(1).normal(size=48_000)
    samples[14_400:15_200] = 0
    first, *_ = windows(samples, 100)
    assert 14_400 < len(first) < 15_200


def test_frames_are_those_of_their_moments() -> None:
    """A click raises the frames whose 25 ms it is in, and no others."""
    samples = np.zeros(16_000)
    samples[8000] = 1.0
    levels = log_mel(samples, 100, 80).max(1)
    assert set(np.flatnonzero(levels > levels.min())) == {49, 50, 51}
