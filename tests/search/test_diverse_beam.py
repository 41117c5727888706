"""Diverse beam search against the textbook, without batches, tensors or early termination."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.search.dispatch import search
from heedful.search.phrase_automaton import RequiredPhrase
from heedful.search.required_phrases import Requirements
from heedful.search.search_settings import SearchSettings, Specials

SPECIALS = Specials(pad=0, bos=1, eos=2)
SEEDS = st.integers(0, 10_000)


def textbook(model, source, groups, width, strength, longest, norm):
    """The finished sequences of each group, best first."""
    live = [[((), 0.0)] for _ in range(groups)]
    done = [{} for _ in range(groups)]
    for length in range(longest + 1):
        used = {}
        for group in range(groups):
            grown = []
            for tokens, score in live[group]:
                logs = model.log_probabilities(source, tokens)
                for token in range(model.size):
                    if token in (0, 1) or (length == longest and token != 2):
                        continue
                    cost = strength * used.get(token, 0)
                    total = score + logs[token]
                    grown.append((total - cost, (*tokens, token), total))
            grown = sorted(grown, key=lambda g: -g[0])[: 2 * width if width > 1 else 1]
            for _, tokens, total in grown:
                if tokens[-1] == 2:
                    done[group][tokens[:-1]] = total / norm(length, 0.6)
            live[group] = [(t, s) for _, t, s in grown if t[-1] != 2][:width]
            for tokens, _ in live[group]:
                used[tokens[-1]] = used.get(tokens[-1], 0) + 1
    return [sorted(each, key=lambda tokens: -each[tokens]) for each in done]


def run(toy, model, ids, prefixes=None, **options):
    return search(
        model, *toy.sources(ids), SearchSettings(**options), specials=SPECIALS, prefixes=prefixes
    )


@given(
    seed=SEEDS,
    groups=st.integers(2, 4),
    width=st.integers(1, 3),
    strength=st.sampled_from([0.0, 0.5, 2.0, 30.0]),
)
@settings(max_examples=40, deadline=None)
def test_alternatives_are_those_of_the_textbook(toy, seed, groups, width, strength):
    model = toy.TableModel(seed, size=7)
    found = run(
        toy,
        model,
        [3, 4, 5],
        beam=width,
        alternatives=groups,
        diversity=strength,
        max_length=5,
    )
    for source, hypotheses in zip([3, 4, 5], found, strict=True):
        known = textbook(model, source, groups, width, strength, 5, toy.norm)
        best = {each[0] for each in known}
        assert {h.tokens for h in hypotheses[: len(best)]} == best
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(
                toy.score_of(model, source, hypothesis.tokens), abs=1e-5
            )
            assert hypothesis.score == pytest.approx(math.fsum(hypothesis.token_scores), abs=1e-5)
        plain = run(toy, model, [source], beam=width, max_length=5)[0][0]
        assert plain.tokens in {h.tokens for h in hypotheses[: len(best)]}


@given(seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_prefix_and_neighbours_change_nothing_else(toy, seed):
    model = toy.TableModel(seed, size=9)
    options = {"beam": 2, "alternatives": 3, "max_length": 6}
    together = run(toy, model, [3, 4], [[5], []], **options)
    assert all(h.tokens[0] == 5 for h in together[0])
    assert together[0] == run(toy, model, [3], [[5]], **options)[0]
    assert together[1] == run(toy, model, [4], **options)[0]
    assert len({h.tokens for h in together[1]}) == len(together[1])


@pytest.mark.parametrize(
    "options",
    [
        {"alternatives": 3, "sampling": True},
        {"alternatives": 3, "n_best": 2},
        {"risk_samples": 3, "n_best": 4},
        {"risk_samples": 3, "alternatives": 2},
        {"epsilon": 0.1},
        {"epsilon": 1.0, "sampling": True},
        {"diversity": -1.0},
    ],
)
def test_contradictions_are_refused(options):
    with pytest.raises(ConfigError):
        SearchSettings.parse(options)


def test_what_several_answers_imply():
    assert SearchSettings.parse({"alternatives": 3}).n_best == 3
    assert SearchSettings.parse({"alternatives": 3, "beam": 2}).width == 6
    settings = SearchSettings.parse({"risk_samples": 8, "epsilon": 0.02})
    assert (settings.sampling, settings.n_best, settings.width) == (True, 1, 8)
    assert SearchSettings.parse(settings.plain()) == settings


def test_required_phrases_are_refused(toy):
    required = Requirements([[RequiredPhrase(((3,),))]])
    with pytest.raises(ConfigError, match="required phrases"):
        search(
            toy.TableModel(1),
            *toy.sources([3]),
            SearchSettings(alternatives=2),
            specials=SPECIALS,
            required=required,
        )
