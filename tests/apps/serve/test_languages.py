"""Codes of languages by BCP 47, and the language of a text among all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful.apps.serve.languages import choose_source, match_language, ranked_languages
from heedful.apps.serve.served_models import parse_model
from heedful.apps.serve.translated_text import framed_lines
from heedful.errors import ConfigError
from heedful.pretrained.catalogue import models_at_hand

from .conftest import client_of, make_parts

PATH = models_at_hand()["en-de"].path
ITALIAN = "La tua password non è corretta"


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("en-de", "en", "de"),
        ("pt_BR-en", "pt_BR", "en"),
        ("pt-BR-en", "pt-BR", "en"),
        ("en-pt-BR", "en", "pt-BR"),
        ("zh-Hans-en", "zh-Hans", "en"),
        ("zh-Hant-TW-en-US", "zh-Hant-TW", "en-US"),
        ("es-419-en", "es-419", "en"),
        ("pt-br:en", "pt-br", "en"),
        ("ca-valencia:EN", "ca-valencia", "EN"),
        # Not languages, but names; these are those of the model's card.
        ("my-en-de", "en", "de"),
        ("en-de-Base", "en", "de"),
        ("en-de-XL", "en", "de"),
    ],
)
def test_languages_before_a_model(name: str, source: str, target: str) -> None:
    model = parse_model(f"{name}={PATH}")
    assert (model.source, model.target) == (source, target)
    assert model.name == name.replace(":", "-")


@pytest.mark.parametrize("name", ["x:en", "en:", "english:german", "en:de_:fr"])
def test_a_word_beside_a_colon_is_a_language(name: str) -> None:
    with pytest.raises(ConfigError, match="is no language code"):
        parse_model(f"{name}={PATH}")


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("zh-CN", "zh-Hans"),
        ("zh", "zh-Hans"),
        ("ZH-hans", "zh-Hans"),
        ("zh-TW", None),
        ("zt", None),
        ("en-US", "en"),
        ("EN", "en"),
        ("en_GB", "en"),
        ("pt", "pt-BR"),
        ("pt-PT", "pt-BR"),
        ("pb", "pt-BR"),
        ("ru", "ru"),
        # Languages that CLDR would show to the same readers are others still.
        ("uk", None),
        ("lb", None),
        ("de", "de"),
        ("zz", None),
        ("", None),
        ("<b>", None),
        ("a" * 5000, None),
    ],
)
def test_codes_match_as_bcp_47_says(code: str, known: str | None) -> None:
    assert match_language(code, ["zh-Hans", "en", "pt-BR", "ru", "de"]) == known


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ITALIAN, "it"),
        ("I met 王小明 here.", "en"),
        ("Windows 更新失败,请重试", "zh-Hans"),
        ("你好", "zh-Hans"),
        ("こんにちは世界。", "ja"),
        ("Привіт, як справи?", "uk"),
        ("How are you?", "en"),
    ],
)
def test_the_language_is_found_among_all(text: str, language: str) -> None:
    ranked = ranked_languages(text, ["en", "de", "zh-Hans"])
    assert ranked[0][0] == language
    assert 0.99 < sum(probability for _, probability in ranked) < 1.01
    assert choose_source(ranked, ["en", "de", "zh-Hans"])[2] == (language in "en zh-Hans")


@pytest.mark.parametrize("text", ["12345", "😀 …", "", " \n"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert ranked_languages(text, ["en"]) == []


def test_in_doubt_a_text_is_in_a_language_that_models_read() -> None:
    ranked = ranked_languages("Hello", ["en", "de"])
    assert ranked[0][0] not in ("en", "de")
    language, probability, is_able = choose_source(ranked, ["en", "de"])
    assert (language, is_able) == ("en", True)
    assert probability == dict(ranked)["en"] < 0.1  # and its confidence is true


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(make_parts(f"pt-BR-en={PATH}", f"en-zh-Hans={PATH}")) as client:
        yield client


def test_a_language_that_no_model_reads_is_said(client: TestClient) -> None:
    values = {"q": ITALIAN, "source": "auto", "target": "zh-CN"}
    answer = client.post("/translate", json=values)
    assert answer.status_code == 400
    assert "no model translates from it" in answer.json()["error"]
    assert "Italian (it)" in answer.json()["error"]
    (found, *_) = client.post("/detect", json={"q": ITALIAN}).json()
    assert answer.json()["detectedLanguage"] == found
    assert found["language"] == "it"
    assert found["confidence"] > 90
    hello = client.post("/translate", json={"q": "Hello", "source": "auto", "target": "pt-BR"})
    assert hello.status_code == 400  # nothing is translated to it
    numbers = client.post("/translate", json=values | {"q": "12345"}).json()
    nothing = {"confidence": 0.0, "language": "pt-BR"}
    assert numbers == {"translatedText": "12345", "detectedLanguage": nothing}
    assert client.post("/detect", json={"q": "12345"}).json() == [nothing]


def test_codes_are_listed_as_they_were_named(client: TestClient) -> None:
    listed = client.get("/languages").json()
    assert [(each["code"], each["name"]) for each in listed] == [
        ("pt-BR", "Brazilian Portuguese"),
        ("en", "English"),
        ("zh-Hans", "Simplified Chinese"),
    ]
    assert listed[0]["targets"] == ["en", "zh-Hans"]
    for source, target, models in (
        ("PT", "en-US", "pt-BR-en"),
        ("en-GB", "zh-CN", "en-zh-Hans"),
        ("pt-PT", "zh", "pt-BR-en, en-zh-Hans"),
        ("en-US", "EN", ""),
    ):
        values = {"q": "A dog.", "source": source, "target": target}
        answer = client.post("/translate", json=values)
        assert answer.headers["x-heedful-models"] == models, answer.text
        if models:
            native = {"texts": ["A dog."], "source": source, "target": target}
            assert client.post("/v1/translate", json=native).status_code == 200
    for target, words in (("zh-TW", "zh-TW is not supported"), ("zz", "zz is not supported")):
        values = {"q": "A dog.", "source": "en", "target": target}
        assert client.post("/translate", json=values).json() == {"error": words}


@given(st.text(st.sampled_from("ab. \t\u00a0\n\r\u2028\x0b"), max_size=20))
def test_all_white_space_of_a_text_is_kept(text: str) -> None:
    for is_whole in (False, True):
        lines = framed_lines(text, is_whole=is_whole)
        assert "".join(f"{line.before}{line.text}{line.after}" for line in lines) == text
        assert all(line.text == line.text.strip() for line in lines)
