"""Required phrases against enumeration: what a search returns, and what it says is missing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.search.dispatch import search
from heedful.search.phrase_automaton import RequiredPhrase, WordBoundaries
from heedful.search.required_phrases import Requirements
from heedful.search.search_settings import SearchSettings, Specials

from ..examples import slow_examples

SPECIALS = Specials(pad=0, bos=1, eos=2)
WORDS = st.integers(3, 5)
ALTERNATIVES = st.lists(st.lists(WORDS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2)
PHRASES = st.builds(
    RequiredPhrase,
    alternatives=ALTERNATIVES.map(tuple),
    times=st.integers(1, 2),
)
INTERNAL, FINAL = {4, 5}, {3, 4}


def most_occurrences(tokens, phrase):
    """Over all subsets of places: the most spans that do not overlap."""
    spans = [
        (start, start + len(ids))
        for ids in set(phrase.alternatives)
        for start in range(len(tokens) - len(ids) + 1)
        if list(tokens[start : start + len(ids)]) == list(ids)
    ]
    inside = {i for i in range(1, len(tokens)) if tokens[i - 1] in FINAL and tokens[i] in INTERNAL}
    spans = [span for span in spans if not inside & set(span)]
    for size in range(len(spans), 0, -1):
        for some in itertools.combinations(spans, size):
            if all(a[1] <= b[0] or b[1] <= a[0] for a, b in itertools.combinations(some, 2)):
                return size
    return 0


def contains(tokens, phrases):
    """Equal phrases need occurrences of their own."""
    for phrase in phrases:
        same = [other for other in phrases if replace(other, times=1) == replace(phrase, times=1)]
        count = most_occurrences(tokens, phrase)
        needed = sum(other.times for other in same)
        if count < needed or (phrase.at_most and count > needed):
            return False
    return True


def run(toy, model, ids, phrases, **options):
    words = WordBoundaries(
        *(
            torch.tensor([token in some for token in range(model.size)])
            for some in (INTERNAL, FINAL)
        )
    )
    return search(
        model,
        *toy.sources(ids),
        SearchSettings(**options),
        specials=SPECIALS,
        required=Requirements(phrases, words),
    )


@given(
    seed=st.integers(0, 10_000),
    several=st.lists(st.lists(PHRASES, max_size=2), min_size=2, max_size=2),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
)
@settings(max_examples=slow_examples(25), deadline=None)
@example(seed=0, several=[[RequiredPhrase(((3, 3),), times=2)], []], alpha=0.6)
@example(
    seed=1,
    several=[
        [RequiredPhrase(((3, 4),)), RequiredPhrase(((4, 5),))],
        [RequiredPhrase(((3,), (3, 4)))],
    ],
    alpha=0.6,
)
def test_a_wide_beam_finds_the_best_sequence_that_has_all(toy, seed, several, alpha):
    model = toy.TableModel(seed)
    found = run(toy, model, [5, 7], several, beam=150, max_length=4, length_penalty=alpha)
    for source, phrases, (best,) in zip([5, 7], several, found, strict=True):
        known = [k for k in toy.everything(model, source, 4, alpha) if contains(k.tokens, phrases)]
        if not known:
            assert best.missing
            assert not contains(best.tokens, phrases)
        else:
            assert best.missing == ()
            assert best.tokens == known[0].tokens
            assert best.score == pytest.approx(known[0].score, abs=1e-5)
            assert best.normalized_score == pytest.approx(known[0].normalized, abs=1e-5)


@given(
    seed=st.integers(0, 10_000),
    several=st.lists(st.lists(PHRASES, max_size=3), min_size=3, max_size=3),
    width=st.integers(1, 6),
)
@settings(max_examples=slow_examples(30), deadline=None)
@example(seed=1280, several=[[], [RequiredPhrase(((4,),), times=2)], []], width=1)
def test_each_phrase_occurs_and_neighbours_change_nothing(toy, seed, several, width):
    model = toy.TableModel(seed, size=9)
    options = {"beam": width, "n_best": width, "max_length": 24}
    together = run(toy, model, [3, 4, 5], several, **options)
    for phrases, hypotheses in zip(several, together, strict=True):
        best = hypotheses[0]
        # The longest need 12 tokens: the beam, however narrow, always has one that goes on.
        assert best.missing == ()
        assert contains(best.tokens, phrases)
        assert len({h.tokens for h in hypotheses}) == len(hypotheses)
        for hypothesis in hypotheses:
            assert contains(hypothesis.tokens, phrases) == (hypothesis.missing == ())
    alone = [
        run(toy, model, [source], [phrases], **options)[0]
        for source, phrases in zip([3, 4, 5], several, strict=True)
    ]
    assert together == alone


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 5),
    no_repeat=st.sampled_from([0, 2]),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_a_sentence_without_phrases_is_searched_as_ever(toy, seed, width, no_repeat, alpha):
    model = toy.TableModel(seed, size=12)
    options = {
        "beam": width,
        "n_best": width,
        "max_length": 9,
        "no_repeat_ngram": no_repeat,
        "length_penalty": alpha,
    }
    plain = search(model, *toy.sources([3, 4]), SearchSettings(**options), specials=SPECIALS)
    # One sentence of the batch has a phrase; the others have none, or nobody has any.
    mixed = run(toy, model, [3, 7, 4], [[], [RequiredPhrase(((6, 7),))], []], **options)
    assert [mixed[0], mixed[2]] == plain
    assert run(toy, model, [3, 4], [[], []], **options) == plain


@given(seed=st.integers(0, 10_000), width=st.integers(1, 5), times=st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_a_capped_token_occurs_exactly_as_often_as_it_should(toy, seed, width, times):
    model = toy.TableModel(seed, size=9)
    phrases = [
        RequiredPhrase(((6,),), times=times, at_most=True),
        RequiredPhrase(((7,),), at_most=True),
    ]
    for best in run(toy, model, [3], [phrases], beam=width, n_best=width, max_length=20)[0]:
        assert best.missing == ()
        assert best.tokens.count(6) == times
        assert best.tokens.count(7) == 1


def test_half_of_a_beam_follows_what_is_probable(toy):
    # Seven banks share ten places. Dealt out to banks alone, the fullest first, they say phrases
    # as soon as they can, and stay 1.76 behind a beam of 60 in the mean; 1.21 if hypotheses that a
    # fuller and more probable one dominates come last; 0.83 if half of the places are not dealt
    # out.
    gaps = []
    for seed in range(8):
        model = toy.TableModel(seed, size=12)
        phrases = [[RequiredPhrase(((3, 4, 5),)), RequiredPhrase(((6, 7, 8),))]]
        narrow, wide = (
            run(toy, model, [5], phrases, beam=beam, max_length=14)[0][0] for beam in (10, 60)
        )
        assert narrow.missing == wide.missing == ()
        gaps.append(wide.normalized_score - narrow.normalized_score)
    assert sum(gaps) / len(gaps) < 1


@pytest.mark.parametrize("longest", [3, 4, 5, 6])
def test_a_phrase_whose_word_would_always_go_on_ends_the_sentence(toy, longest):
    # After the word 3, both continuations that one hypothesis offers by itself are inside it.
    rows = [[0, 0, 0.01, 0.01, 0.5, 0.48]] * 6
    (best,) = run(
        toy, toy.MarkovModel(rows), [3], [[RequiredPhrase(((3,),))]], beam=1, max_length=longest
    )[0]
    assert best.missing == ()
    assert most_occurrences(best.tokens, RequiredPhrase(((3,),))) == 1


def test_what_does_not_fit_is_missing(toy):
    model = toy.TableModel(3)
    phrases = [RequiredPhrase(((3, 4, 5),)), RequiredPhrase(((5,),)), RequiredPhrase(((3, 3),))]
    (best,) = run(toy, model, [3], [phrases], beam=4, max_length=3)[0]
    assert best.missing in ((2,), (0,), (0, 1))
    lacking = [i for i, phrase in enumerate(phrases) if not most_occurrences(best.tokens, phrase)]
    assert list(best.missing) == lacking
    assert best.normalized_score == pytest.approx(best.score / toy.norm(len(best.tokens), 0.6))


def test_what_cannot_be_is_missing_from_the_best_sequence_there_is(toy):
    model = toy.TableModel(2)
    phrases = [[RequiredPhrase(((0,),))], [RequiredPhrase(((0, 5),)), RequiredPhrase(((5,),))]]
    found = run(toy, model, [5, 7], phrases, beam=40, max_length=3)
    for source, needed, (best,) in zip([5, 7], [[], phrases[1][1:]], found, strict=True):
        known = [k for k in toy.everything(model, source, 3, 0.6) if contains(k.tokens, needed)]
        assert best.missing == (0,)
        assert best.tokens == known[0].tokens


def test_samples_cannot_be_asked_for_phrases(toy):
    with pytest.raises(ConfigError, match="beam search"):
        run(toy, toy.TableModel(1), [3], [[RequiredPhrase(((3,),))]], sampling=True)
