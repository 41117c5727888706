"""What may be generated."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.search.constraints import Constraints, Moment, NoRepeatNgram, build_constraints
from heedful.search.dispatch import search
from heedful.search.scoring import score_targets
from heedful.search.search_settings import SearchSettings, Specials

SPECIALS = Specials(pad=0, bos=1, eos=2)
SEEDS = st.integers(0, 10_000)
WORDS = st.lists(st.integers(3, 5), max_size=4)


def run(toy, model, ids, prefixes=None, **options):
    return search(
        model, *toy.sources(ids), SearchSettings(**options), specials=SPECIALS, prefixes=prefixes
    )


@given(seed=SEEDS, first=WORDS, second=WORDS, sampling=st.booleans(), n=st.integers(0, 2))
@settings(max_examples=40)
def test_prefixes_are_obeyed_and_scored(toy, seed, first, second, sampling, n):
    model = toy.TableModel(seed)
    prefixes = [first, second]
    found = run(
        toy,
        model,
        [3, 4],
        prefixes,
        beam=3,
        n_best=2,
        max_length=3,
        sampling=sampling,
        no_repeat_ngram=n,
        min_length=2,
    )
    for source, prefix, hypotheses in zip([3, 4], prefixes, found, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert list(hypothesis.tokens[: len(prefix)]) == prefix
            assert hypothesis.score == pytest.approx(
                toy.score_of(model, source, hypothesis.tokens), abs=1e-5
            )


@given(seed=SEEDS, prefix=WORDS)
@settings(max_examples=20)
def test_best_with_a_prefix_is_the_best_of_all_that_begin_so(toy, seed, prefix):
    prefix = prefix[:2]
    model = toy.TableModel(seed)
    (found,) = run(toy, model, [3], [prefix], beam=40, max_length=3)
    known = [k for k in toy.everything(model, 3, 3, 0.6) if list(k.tokens[: len(prefix)]) == prefix]
    assert found[0].tokens == known[0].tokens


@given(
    seed=SEEDS,
    shortest=st.integers(0, 6),
    more=st.integers(0, 3),
    width=st.integers(1, 4),
    sampling=st.booleans(),
)
@settings(max_examples=40)
def test_lengths_are_obeyed(toy, seed, shortest, more, width, sampling):
    longest = max(1, shortest + more)
    model = toy.TableModel(seed)
    found = run(
        toy,
        model,
        [3, 4],
        beam=width,
        n_best=width,
        min_length=shortest,
        max_length=longest,
        sampling=sampling,
    )
    for hypotheses in found:
        assert hypotheses
        assert all(shortest <= len(h.tokens) <= longest for h in hypotheses)
        assert all(set(h.tokens).isdisjoint((0, 1, 2)) for h in hypotheses)


def test_shortest_length_is_exact(toy):
    model = toy.TableModel(3)
    (found,) = run(toy, model, [3], beam=40, n_best=5, min_length=2, max_length=3)
    known = toy.everything(model, 3, 3, 0.6, shortest=2)[:5]
    assert [h.tokens for h in found] == [k.tokens for k in known]


def repeats(tokens, size):
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


@given(seed=SEEDS, size=st.integers(1, 3), width=st.integers(1, 4), sampling=st.booleans())
@settings(max_examples=40)
def test_no_ngram_comes_twice(toy, seed, size, width, sampling):
    model = toy.TableModel(seed)
    found = run(
        toy,
        model,
        [3, 4, 5],
        beam=width,
        n_best=width,
        max_length=12,
        no_repeat_ngram=size,
        sampling=sampling,
    )
    assert all(found)
    assert not any(repeats(h.tokens, size) for hypotheses in found for h in hypotheses)


@given(history=st.lists(st.integers(3, 5), max_size=9).map(tuple), size=st.integers(1, 4))
@settings(max_examples=100)
def test_exactly_the_repeating_tokens_are_banned(history, size):
    scores = torch.zeros(1, 1, 6)
    tokens = torch.tensor([[history]], dtype=torch.int64).view(1, 1, -1)
    NoRepeatNgram(size).apply(scores, Moment(len(history), torch.tensor([0]), tokens))
    banned = {t for t in range(6) if scores[0, 0, t] == -math.inf}
    grams = {history[i : i + size] for i in range(len(history) - size + 1)}
    expected = {t for t in range(6) if len(history) >= size and (*history, t)[-size:] in grams}
    assert banned == expected


def test_a_hypothesis_without_any_choice_ends(toy):
    options = {"no_repeat_ngram": 1, "min_length": 9, "max_length": 20}
    for width in (1, 3):
        (found,) = run(toy, toy.TableModel(2), [3], beam=width, **options)
        assert len(found[0].tokens) == 3  # every word once


def test_a_demand_wins_over_bans():
    rules: Constraints = build_constraints(
        SearchSettings(no_repeat_ngram=1), SPECIALS, torch.tensor([5]), [[4, 4]]
    )
    scores = torch.arange(6.0).expand(1, 2, 6).clone()
    rules.apply(scores, Moment(1, torch.tensor([0]), torch.tensor([[[4], [4]]])))
    assert scores[0, :, 4].tolist() == [4.0, 4.0]
    scores[..., 4] = -math.inf
    assert (scores == -math.inf).all()


def test_settings_that_contradict_each_other():
    for values, words in (
        ({"beam": 2, "n_best": 3}, "beam"),
        ({"min_length": 5, "max_length": 4}, "max_length"),
        ({"top_k": 5}, "sampling"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"beam": 0}, "beam"),
        ({"top_p": 0.0, "sampling": True}, "top_p"),
        ({"lenght_penalty": 1.0}, "Did you mean 'length_penalty'"),
    ):
        with pytest.raises(ConfigError, match=words):
            SearchSettings.parse(values)
    assert SearchSettings(sampling=True, n_best=9, beam=1).n_best == 9


@given(seed=SEEDS, targets=st.lists(WORDS, min_size=1, max_size=4))
@settings(max_examples=20)
def test_forced_scores_are_the_models(toy, seed, targets):
    model = toy.TableModel(seed)
    ids, positions = toy.sources(range(3, 3 + len(targets)))
    found = score_targets(model, ids, positions, targets, SPECIALS)
    for source, target, scores in zip(ids[:, 0].tolist(), targets, found, strict=True):
        assert len(scores) == len(target) + 1
        assert math.fsum(scores) == pytest.approx(toy.score_of(model, source, target), abs=1e-5)
