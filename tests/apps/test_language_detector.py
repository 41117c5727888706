"""Languages of many texts at once are those that the library finds one by one."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from heedful.apps.language_detector import detect_languages, language_detector
from heedful.errors import ConfigError

REFERENCE = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
TEXTS = [
    "The weather is nice today.",
    "Das Wetter ist heute schön.",
    "Il fait beau aujourd'hui, n'est-ce pas ?",
    "здраво, како сте",
    "你好，世界",
    "HELLO WORLD",
    "",
    "12",
    "a" * 300,
]


def expected(text: str) -> dict[str, float]:
    REFERENCE.set_languages(None)
    return dict(REFERENCE.rank(text))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(TEXTS), st.text(max_size=30)), max_size=140))
def test_batches_are_as_one_by_one(texts: list[str]) -> None:
    detector = language_detector()
    found = detector.probabilities(texts)
    assert found.shape == (len(texts), len(detector.languages))
    for text, row in zip(texts, found, strict=True):
        wanted = expected(text)
        assert set(detector.languages) == set(wanted)
        # Sums in another order: the last digits of float32, times e to scores of some dozens.
        assert np.allclose(row, [wanted[name] for name in detector.languages], atol=2e-4)


def test_many_at_once() -> None:
    texts = [f"{TEXTS[n % 6]} {TEXTS[(n + 1) % 6]}" for n in range(150)]
    found = language_detector().probabilities(texts)
    alone = [language_detector().probabilities([text])[0] for text in texts]
    assert np.allclose(found, alone, atol=1e-5)


def test_some_languages_only() -> None:
    detector = language_detector()
    columns = [detector.languages.index(code) for code in ("de", "en")]
    ((german, english),) = detector.probabilities(["Das Wetter ist heute schön."], columns)
    REFERENCE.set_languages(["de", "en"])
    assert german == pytest.approx(REFERENCE.classify("Das Wetter ist heute schön.")[1], abs=1e-4)
    assert german + english == pytest.approx(1)
    assert german > english


def test_all_languages_the_surest_first() -> None:
    found = detect_languages("The weather is nice today.")
    assert found[0][0] == "en"
    assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
    assert len(found) > 100
    assert detect_languages(" \n") == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    language_detector.cache_clear()
    with pytest.raises(ConfigError, match="py3langid") as caught:
        language_detector()
    assert "heedful[data]" in str(caught.value)
    monkeypatch.undo()
    language_detector.cache_clear()
