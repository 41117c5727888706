"""`heedful generate` with a model of sounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from tests.speech import noise, speech_model, write_wav


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_model(tmp_path_factory.mktemp("models") / "speech")


@pytest.fixture
def sounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [write_wav(tmp_path / f"{n}.wav", noise(0.5 + n, seed=n)).name for n in range(2)]


def test_a_line_for_each_file(run, speech: Path, sounds: list[str]) -> None:
    expected = heedful.load(speech).generate(sounds, language="de", task="translate", beam=2)
    asked = ("--language", "de", "--task", "translate", "--beam", "2", "--json")
    ran = run("generate", speech, "-i", "-", *asked, stdin=f"{sounds[0]}\n\n{sounds[1]}\n".encode())
    assert ran.status == 0
    first, empty, second = map(json.loads, ran.out.splitlines())
    assert [first["text"], second["text"]] == [each.text for each in expected]
    assert empty["text"] == ""
    alone = run("generate", speech, sounds[0], *asked)
    assert json.loads(alone.out) == first


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stream",), "--stream is for texts"),
        (("--lookup", "2"), "is for texts"),
        (("--steps", "3"), "--steps is for pictures"),
        (("--language", "fr"), "language = fr: The model knows no such language"),
        (("--chat",), "no chat template"),
    ],
)
def test_flags_of_other_models_are_refused(
    run, speech: Path, sounds: list[str], flags: tuple[str, ...], message: str
) -> None:
    ran = run("generate", speech, sounds[0], *flags)
    assert ran.status == 2
    assert message in ran.err


def test_a_language_is_no_flag_of_texts(run, tiny_lm: Path) -> None:
    ran = run("generate", tiny_lm, "a", "--language", "de")
    assert ran.status == 2
    assert "--language is for sounds" in ran.err


def test_other_verbs_name_what_they_need(run, speech: Path, sounds: list[str]) -> None:
    for words in (("translate", speech, "a"), ("embed", speech, "a"), ("serve", speech)):
        ran = run(*words)
        assert ran.status == 2
        assert "its kind is 'transcriber'" in ran.err
    assert "transcriber, 4" in run("info", speech).out
