"""Languages of texts: those of the library's public calls, whatever is asked for."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from heedful.apps import language_detector
from heedful.apps.language_detector import (
    detect_languages,
    known_languages,
    language_probability,
    most_probable_language,
)
from heedful.errors import ConfigError

REFERENCE = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
TEXTS = [
    "The weather is nice today.",
    "Das Wetter ist heute schön.",
    "Il fait beau aujourd'hui, n'est-ce pas ?",
    "здраво, како сте",
    "你好，世界",
    "HELLO WORLD",
    "12",
]


@given(st.sampled_from(TEXTS) | st.text(max_size=30), st.sampled_from(REFERENCE.labels))
def test_each_call_says_the_same_of_a_text(text: str, language: str) -> None:
    expected = dict(REFERENCE.rank(text))
    assert language_probability(text, language) == pytest.approx(expected[language], abs=1e-6)
    best, probability = most_probable_language(text)
    assert probability == pytest.approx(expected[best], abs=1e-6)
    assert probability == pytest.approx(max(expected.values()), abs=1e-6)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-4)
    assert dict(detect_languages(text)) == (expected if text.strip() else {})


def test_all_languages_the_surest_first() -> None:
    found = detect_languages("The weather is nice today.")
    assert found[0][0] == "en"
    assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
    assert sorted(name for name, _ in found) == sorted(known_languages())
    assert len(found) > 100
    assert detect_languages(" \n") == []


def test_a_restriction_that_others_make_is_not_ours() -> None:
    import py3langid

    py3langid.set_languages(["fr", "it"])
    try:
        assert most_probable_language("Das Wetter ist heute schön.")[0] == "de"
    finally:
        py3langid.set_languages(None)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    language_detector._identifier.cache_clear()
    with pytest.raises(ConfigError, match="py3langid") as caught:
        most_probable_language("text")
    assert "heedful[data]" in str(caught.value)
    monkeypatch.undo()
    language_detector._identifier.cache_clear()
