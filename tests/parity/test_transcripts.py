"""Transcripts of a tiny Whisper are those of transformers, token by token; so are the frames."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import heedful
from heedful.data.sounds.mel_frames import log_mel
from heedful.interop.hugging_face import export_model, import_model
from heedful.models.checkpoint import save_model
from tests.speech import EOS, GENERATION, SECONDS, VOCABULARY, WITHOUT_TIMES, noise, speech_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("length", [1, 159, 16_000, 480_000])
def test_frames_are_those_of_the_feature_extractor(bands, length):
    samples = noise(length / 16_000)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    expected = extractor(samples, sampling_rate=16_000, return_tensors="np").input_features[0]
    np.testing.assert_allclose(log_mel(samples, 3000, bands), expected.T, atol=1e-4)


def test_frames_of_silence_are_those_of_the_feature_extractor():
    expected = transformers.WhisperFeatureExtractor()(
        np.zeros(800), sampling_rate=16_000, return_tensors="np"
    ).input_features[0]
    np.testing.assert_allclose(log_mel(np.zeros(800), 3000, 80), expected.T, atol=1e-6)


def transcripts(directory, **asked):
    """Greedy transcripts of four sounds by transformers, without padding and end."""
    network = transformers.WhisperForConditionalGeneration.from_pretrained(directory).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(directory)
    samples = [noise(SECONDS * 0.9, seed=seed) for seed in range(4)]
    frames = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    rows = network.generate(frames, do_sample=False, num_beams=1, **asked).tolist()
    return samples, [[id for id in row if id != EOS] for row in rows]


@pytest.mark.parametrize("language", [None, "en", "de"])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_transcripts_are_equal(language, task, seed, tmp_path):
    directory = speech_model(tmp_path, seed=seed)
    samples, expected = transcripts(directory, language=language, task=task)
    found = heedful.load(directory).generate(samples, language=language, task=task)
    assert [list(each.tokens) for each in found] == expected
    assert len({tuple(row) for row in expected}) > 1


def test_a_transcript_ends_where_theirs_ends(tmp_path):
    # A random model says what it says for ever; most of its tokens are left out here.
    few = [id for id in range(VOCABULARY) if id % 23 and id != EOS]
    directory = speech_model(tmp_path, generation=GENERATION | {"suppress_tokens": few})
    samples, expected = transcripts(directory, language="de", task="transcribe")
    found = heedful.load(directory).generate(samples, language="de")
    assert [list(each.tokens) for each in found] == expected
    ended = [each.ended for each in found]
    assert "end" in ended
    assert ended == ["end" if len(row) < 36 else "length" for row in expected]


def test_an_older_file_lists_the_tokens_of_the_beginning(tmp_path):
    forced = [[1, 259], [2, 261], [3, WITHOUT_TIMES]]
    older = {key: GENERATION[key] for key in ("decoder_start_token_id", "eos_token_id")}
    older |= {"max_length": 40, "forced_decoder_ids": forced, "suppress_tokens": [5]}
    directory = speech_model(tmp_path, generation=older)
    samples, expected = transcripts(directory)
    assert [list(each.tokens) for each in heedful.load(directory).generate(samples)] == expected


def test_an_export_transcribes_alike(tmp_path):
    directory = speech_model(tmp_path / "theirs")
    imported = import_model(directory)
    ours = tmp_path / "ours"
    save_model(imported.model, imported.tokenizers, ours, origin=imported.origin)
    export_model(ours, tmp_path / "again")
    asked = {"language": "de", "task": "translate"}
    samples, expected = transcripts(directory, **asked)
    assert transcripts(tmp_path / "again", **asked)[1] == expected
    assert [list(each.tokens) for each in heedful.load(ours).generate(samples, **asked)] == expected
    for name in ("generation_config.json", "preprocessor_config.json"):
        before, after = (
            json.loads((d / name).read_text()) for d in (directory, tmp_path / "again")
        )
        assert before == after


@torch.no_grad()
def test_logits_are_equal_on_a_real_length(tmp_path):
    """Thirty seconds, and a width that kernels in C multiply."""
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(
        speech_model(tmp_path, max_source_positions=1500, d_model=64)
    ).eval()
    (tmp_path / "preprocessor_config.json").unlink()
    engine = heedful.load(tmp_path).engine
    frames, ids = torch.randn(1, 3000, 80), torch.randint(0, 250, (1, 9))
    state = engine.start(frames, torch.arange(1500)[None])
    expected = theirs(frames.mT, decoder_input_ids=ids).logits
    for place in range(9):
        logits, state = engine.step(state, ids[:, place : place + 1])
        scale = expected[:, place].abs().max()
        torch.testing.assert_close(logits[0] / scale, expected[:, place] / scale, rtol=0, atol=1e-5)
