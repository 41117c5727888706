"""Transcripts: batches, windows, silence, rates and channels, and requests that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import heedful
from heedful.data.sounds.mel_frames import windows
from heedful.errors import ConfigError, DataError, ModelError
from heedful.pipelines.sounds.transcription import TranscriptionPipeline
from tests.speech import (
    ENGLISH,
    GENERATION,
    SUPPRESSED_FIRST,
    TRANSCRIBE,
    VOCABULARY,
    WITHOUT_TIMES,
    noise,
    speech_model,
    write_wav,
)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> TranscriptionPipeline:
    pipeline: TranscriptionPipeline = heedful.load(
        speech_model(tmp_path_factory.mktemp("models") / "speech")
    )
    return pipeline


def test_batches_change_nothing(speech: TranscriptionPipeline) -> None:
    sounds = [noise(0.1 + 0.3 * seed, seed=seed) for seed in range(5)]  # the last is longer
    together = speech.generate(sounds, beam=2)
    alone = [speech.generate([each], beam=2)[0] for each in sounds]
    small = speech.generate(sounds, beam=2, batch_size=1)
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert [each.tokens for each in small] == [each.tokens for each in alone]
    for one, two in zip(together, alone, strict=True):
        assert one.score == pytest.approx(two.score, abs=1e-4)
    assert len({each.tokens for each in together}) == 5


def test_a_long_sound_is_read_in_parts_cut_where_it_is_silent(
    speech: TranscriptionPipeline,
) -> None:
    samples = np.concatenate([noise(0.9), np.zeros(1600), noise(0.5, seed=1)])
    whole = speech.generate([samples])[0]
    parts = speech.generate(list(windows(samples, speech.spec.frames)))
    assert len(parts) == 2
    assert whole.text == " ".join(each.text for each in parts)
    assert whole.tokens == sum((each.tokens for each in parts), ())
    assert whole.score == pytest.approx(sum(each.score for each in parts), abs=1e-4)


def test_silence_has_no_text_and_is_not_searched(speech: TranscriptionPipeline) -> None:
    spoken, silent, longer = speech.generate(
        [noise(), np.zeros(100), np.concatenate([np.zeros(32_000), noise()])]
    )
    assert (silent.text, silent.tokens, silent.score, silent.ended) == ("", (), 0.0, "end")
    assert spoken.text
    assert longer.text


def test_a_file_is_heard_whatever_its_rate_and_channels(
    speech: TranscriptionPipeline, tmp_path: Path
) -> None:
    def tone(rate: int) -> np.ndarray:
        made: np.ndarray = 0.4 * np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)
        return made * np.hanning(len(made))

    expected = speech.generate([tone(16_000)])[0].tokens
    for rate, channels in ((16_000, 2), (8000, 1), (44_100, 2), (22_050, 1)):
        file = write_wav(tmp_path / f"{rate}.wav", tone(rate), rate, channels)
        assert speech.generate([file])[0].tokens == expected


def test_left_out_tokens_stay_out(tmp_path: Path) -> None:
    said = {*SUPPRESSED_FIRST[:1], 65, 66}
    few = [id for id in range(VOCABULARY) if id not in said]
    pipeline = heedful.load(
        speech_model(tmp_path, generation=GENERATION | {"suppress_tokens": few})
    )
    sounds = [noise(seed=seed) for seed in range(6)]
    found = pipeline.generate(sounds, sampling=True, temperature=3.0)
    assert {id for each in found for id in each.tokens} == said
    assert all(each.tokens[0] not in SUPPRESSED_FIRST for each in found)


def test_times_have_no_text(tmp_path: Path) -> None:
    # Nothing but a letter and a time is left to say.
    few = [id for id in range(263) if id not in (65, 256)]
    pipeline = heedful.load(
        speech_model(tmp_path, generation=GENERATION | {"suppress_tokens": few})
    )
    found = pipeline.generate([noise()], sampling=True, max_length=30)[0]
    letter = pipeline.tokenizer.decode([65])
    assert max(found.tokens) > WITHOUT_TIMES
    assert set(found.text) <= {letter}
    assert len(found.text) == found.tokens.count(65)


def test_a_model_of_one_language_has_no_token_of_it(tmp_path: Path) -> None:
    own = {k: v for k, v in GENERATION.items() if k not in ("lang_to_id", "task_to_id")}
    pipeline = heedful.load(speech_model(tmp_path, generation=own | {"is_multilingual": False}))
    assert pipeline.generate([noise()])[0].tokens
    with pytest.raises(ConfigError, match=r"knows no such language.*single one"):
        pipeline.generate([noise()], language="en")


def test_a_default_may_be_named_in_english(tmp_path: Path) -> None:
    pipeline = heedful.load(
        speech_model(tmp_path, generation=GENERATION | {"language": "German", "task": "translate"})
    )
    assert (pipeline.spec.prompt.language, pipeline.spec.prompt.task) == ("de", "translate")
    sounds = [noise(seed=seed) for seed in range(3)]
    by_default = [each.tokens for each in pipeline.generate(sounds)]
    asked = pipeline.generate(sounds, language="de", task="translate")
    assert by_default == [each.tokens for each in asked]
    assert by_default != [each.tokens for each in pipeline.generate(sounds, task="transcribe")]


def test_requests_that_cannot_be_met_are_refused(speech: TranscriptionPipeline) -> None:
    with pytest.raises(ConfigError, match=r"language = fr.*de, en"):
        speech.generate([noise()], language="fr")
    with pytest.raises(ConfigError, match="positions for 36 tokens"):
        speech.generate([noise()], max_length=37)
    with pytest.raises(ConfigError, match="stop: A transcript has the form"):
        speech.generate([noise()], stop=("a",))
    with pytest.raises(DataError, match="sound 2: The samples have the shape"):
        speech.generate([noise(), np.zeros((2, 50))])
    with pytest.raises(DataError, match=r"nowhere\.wav: No such file"):
        speech.generate(["nowhere.wav"])


def test_a_file_without_samples_is_refused(speech: TranscriptionPipeline, tmp_path: Path) -> None:
    file = write_wav(tmp_path / "empty.wav", np.zeros(0))
    with pytest.raises(DataError, match="has no samples"):
        speech.generate([file])


def test_another_feature_extractor_is_refused(tmp_path: Path) -> None:
    directory = speech_model(tmp_path)
    file = directory / "preprocessor_config.json"
    features = json.loads(file.read_text())
    for changes in ({"hop_length": 320}, {"feature_size": 128}, {"do_normalize": True}):
        file.write_text(json.dumps(features | changes))
        with pytest.raises(ModelError, match=next(iter(changes))):
            heedful.load(directory)


def test_tokens_past_the_vocabulary_are_refused(tmp_path: Path) -> None:
    wrong = GENERATION | {"lang_to_id": {"<|en|>": ENGLISH, "<|xx|>": 5000}}
    with pytest.raises(ConfigError, match="past the vocabulary of 268"):
        heedful.load(speech_model(tmp_path / "one", generation=wrong))
    wrong = GENERATION | {"forced_decoder_ids": [1, TRANSCRIBE]}
    with pytest.raises(ModelError, match="pairs of a place and a token"):
        heedful.load(speech_model(tmp_path / "two", generation=wrong))
