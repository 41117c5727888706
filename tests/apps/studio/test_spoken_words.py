"""Words of the synthesizer: sounds with the resonances of their vowels, in the pages' calls."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
import pytest
from starlette.testclient import TestClient

from heedful.apps.studio.app import build_app
from heedful.apps.studio.spoken_words import RATE, WORDS, say
from heedful.apps.studio.workspace import Workspace
from heedful.pretrained.catalogue import models_at_hand


def samples(word: str) -> np.ndarray:
    with wave.open(io.BytesIO(say(word))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_as_long_and_as_loud_as_words_are(word: str) -> None:
    found = samples(word)
    assert 0.2 < len(found) / RATE < 0.8
    assert np.abs(found).max() == pytest.approx(0.8 * 32767, abs=1)
    assert say(word) == say(word)


def loudest(found: np.ndarray, low: float, high: float) -> float:
    """The frequency with the most energy in a band, of the vowel at the end of a word."""
    vowel = found[7 * len(found) // 10 : 9 * len(found) // 10]
    energy = np.abs(np.fft.rfft(vowel * np.hanning(len(vowel)), 8192)) ** 2
    hertz = np.fft.rfftfreq(8192, 1 / RATE)
    smooth = np.convolve(energy, np.ones(200) / 200, "same")  # over the harmonics of the voice
    inside = (hertz >= low) & (hertz <= high)
    return float(hertz[inside][smooth[inside].argmax()])


def test_vowels_have_their_resonances() -> None:
    """The second formant tells “three”, at 2,290 Hz, from “two”, at 870 Hz."""
    assert loudest(samples("three"), 700, 2800) == pytest.approx(2290, abs=250)
    assert loudest(samples("two"), 700, 2800) < 1300


def test_hisses_are_high() -> None:
    found = samples("six")[: RATE // 10]
    energy = np.abs(np.fft.rfft(found)) ** 2
    hertz = np.fft.rfftfreq(len(found), 1 / RATE)
    assert energy[hertz > 2500].sum() > 0.8 * energy.sum()


def test_a_sound_is_looked_at_as_its_spectrogram() -> None:
    workspace = Workspace([models_at_hand()["digits"].path])
    with TestClient(build_app(workspace), base_url="http://127.0.0.1:8765") as client:
        said = client.post("/api/everywhere/spoken", json={"word": "two"}).json()
        assert base64.b64decode(said["wav"]) == say("two")
        bodies = ({"example": "spoken two"}, {"upload": said["wav"]})
        answers = [
            client.post("/api/image/look", json={"model": "digits", **body}).json()
            for body in bodies
        ]
        assert answers[0] == answers[1]
        drawn = client.post("/api/image/look", json={"model": "digits", "example": "two"}).json()
        assert drawn["patches"] != answers[0]["patches"]
        broken = base64.b64encode(say("two")[:60]).decode()
        refused = client.post("/api/image/look", json={"model": "digits", "upload": broken})
        assert refused.status_code == 400
        assert "damaged" in refused.text


def test_a_model_of_sounds_hears_some_of_the_words() -> None:
    """It never heard a synthesizer, so this is no measure of it; by chance it would be one word."""
    if "spoken-digits" not in models_at_hand():
        pytest.skip("spoken-digits is not at hand")
    workspace = Workspace([models_at_hand()["spoken-digits"].path])
    assert workspace.place("spoken-digits").kind() == "sounds"
    with TestClient(build_app(workspace), base_url="http://127.0.0.1:8765") as client:
        right = 0
        for number, word in enumerate(WORDS):
            body = {"model": "spoken-digits", "example": f"spoken {word}"}
            found = client.post("/api/image/look", json=body).json()
            right += found["labels"][0]["label"] == str(number)
    assert right >= 3
