"""Words of a source that its translation lost, found by leaving them out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.lost_words import gains_without_words, without_each_word
from heedful.apps.quality.text_checks import CheckSettings
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline


@pytest.mark.parametrize(
    ("source", "target", "lost"),
    [
        ("The old man bought a red bicycle.", "Der alte Mann kaufte ein rotes Fahrrad.", []),
        ("He bought a bicycle yesterday.", "Er kaufte ein Fahrrad.", ["yesterday"]),
        ("My brother lives in a big city.", "Mein Bruder lebt in einer großen Stadt.", []),
        ("Tom and Mary went home together.", "Tom und Maria gingen nach Hause.", ["together"]),
        ("I love cats.", "Ich liebe Katzen.", []),
    ],
)
def test_a_word_that_the_translation_does_without_is_named(
    translator: TranslationPipeline, source: str, target: str, lost: list[str]
) -> None:
    [score] = translator.score([source], [target])
    own = Translation(target, tokens=score.tokens, token_scores=score.token_scores)
    [report] = Checker(translator, ("en", "de"), detached=True).reports([source], [own])
    found = report["lost_words"]
    assert [each.text for each in found.evidence] == lost
    assert found.failed == bool(lost)
    assert all(source[each.start : each.end] == each.text for each in found.evidence)


def test_the_threshold_is_the_change_of_the_whole_translation(
    translator: TranslationPipeline,
) -> None:
    pair = ("He bought a bicycle yesterday.", "Er kaufte ein Fahrrad.")
    [gains] = gains_without_words(translator, [pair])
    by_word = {pair[0][each.start : each.end]: gain for each, gain in gains}
    shorter, whole = translator.score(["He bought a bicycle.", pair[0]], [pair[1]] * 2)
    assert by_word["yesterday"] == pytest.approx(shorter.score - whole.score, abs=1e-4)
    own = Translation(pair[1], tokens=whole.tokens, token_scores=whole.token_scores)
    lenient = CheckSettings(most_gain=by_word["yesterday"] + 0.1)
    checker = Checker(translator, ("en", "de"), lenient, detached=True)
    assert not checker.reports([pair[0]], [own])[0]["lost_words"].failed


def test_what_is_no_word_stays() -> None:
    text = "“Don't!” he said (loudly), and read 3 well-known books by 北京大学 in the 1990s ."
    left = {text[each.start : each.end]: each.text for each in without_each_word(text)}
    assert list(left) == ["said", "loudly", "read", "well-known", "books"]
    assert left["loudly"].startswith("“Don't!” he said (), and read")
    assert left["books"].endswith("well-known by 北京大学 in the 1990s.")
    assert without_each_word("Hello!") == without_each_word("") == []


@given(st.lists(st.sampled_from(["word", "Über,", "it", "“naïve”", "123", "–"]), max_size=8))
def test_each_text_lacks_just_its_word(words: list[str]) -> None:
    text = " ".join(words)
    for start, end, rest in without_each_word(text):
        assert text[start:end].isalpha()
        assert rest.replace(" ", "") == (text[:start] + text[end:]).replace(" ", "")
