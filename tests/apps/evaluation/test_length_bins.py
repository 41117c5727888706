"""Scores by the length of the source."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.evaluation.length_bins import bin_members, scores_by_length
from heedful.errors import ConfigError, DataError
from heedful.evaluate.corpus_metrics import corpus_scores

WORDS = st.lists(st.sampled_from(["a", "dog", "runs", "über", "den", "Hügel", "."]), max_size=12)
SENTENCES = st.lists(WORDS.map(" ".join), min_size=1, max_size=30)
BOUNDS = st.sets(st.integers(1, 15), min_size=1, max_size=6).map(sorted)


@given(SENTENCES, BOUNDS)
def test_every_sentence_is_in_exactly_one_bin_of_its_length(sources, bounds) -> None:
    members = bin_members(sources, bounds)
    assert sorted(number for each in members for number in each) == list(range(len(sources)))
    lows, highs = [0, *bounds], [*bounds, 10**9]
    for low, high, each in zip(lows, highs, members, strict=True):
        for number in each:
            words = len(sources[number].split())
            assert words <= high
            assert words > low or low == 0


@settings(max_examples=15)
@given(SENTENCES, st.randoms(use_true_random=False))
def test_a_bin_of_all_sentences_scores_as_the_corpus_does(references, draw) -> None:
    hypotheses = [" ".join(draw.sample(line.split(), len(line.split()))) for line in references]
    bins = scores_by_length(
        references, hypotheses, references, ["bleu", "chrf", "ter"], bounds=[20], samples=3
    )
    whole = corpus_scores(hypotheses, references, ["bleu", "chrf", "ter"])
    assert [each.sentences for each in bins] == [len(references), 0]
    assert {name: score.score for name, score in bins[0].scores.items()} == {
        name: pytest.approx(score.score) for name, score in whole.items()
    }
    assert not bins[1].scores


def test_each_bin_scores_as_its_sentences_alone() -> None:
    sources = [" ".join(["w"] * (number % 9 + 1)) for number in range(60)]
    references = [f"the dog number {number} runs over a hill" for number in range(60)]
    hypotheses = [
        line.replace("hill", "mountain") if len(source.split()) > 4 else line
        for source, line in zip(sources, references, strict=True)
    ]
    short, long = scores_by_length(sources, hypotheses, references, ["bleu"], bounds=[4])
    assert [each.label for each in (short, long)] == ["up to 4", "5+"]
    assert short.scores["bleu"].score == pytest.approx(100)
    wrong = [number for number, source in enumerate(sources) if len(source.split()) > 4]
    alone = corpus_scores([hypotheses[n] for n in wrong], [references[n] for n in wrong], ["bleu"])[
        "bleu"
    ]
    found = long.scores["bleu"]
    assert found.score == pytest.approx(alone.score)
    assert found.low <= found.score <= found.high < 100


@pytest.mark.parametrize("bounds", [[], [0, 4], [5, 5], [9, 3]])
def test_bounds_ascend_from_one_on(bounds) -> None:
    with pytest.raises(ConfigError, match="ascending"):
        scores_by_length(["a"], ["a"], ["a"], ["bleu"], bounds=bounds)


def test_sources_are_as_many_as_translations() -> None:
    with pytest.raises(DataError, match="2 sources for 1 translations"):
        scores_by_length(["a", "b"], ["a"], ["a"], ["bleu"])
