"""The trace of a beam search: it changes nothing, and tells what plain enumeration finds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings, Specials
from heedful.search.search_trace import SearchTrace, places

PAD, BOS, EOS = 0, 1, 2
SPECIALS = Specials(pad=PAD, bos=BOS, eos=EOS)
SEEDS = st.integers(0, 10_000)
WIDTHS = st.integers(1, 4)
ALPHAS = st.sampled_from([0.0, 0.6, 1.0])


def run(toy, model, ids, trace=None, prefixes=None, **options):
    chosen = SearchSettings(**options)
    source = toy.sources(ids)
    return search(model, *source, chosen, specials=SPECIALS, prefixes=prefixes, trace=trace)


@dataclass(frozen=True)
class Wanted:
    """What a step looked at: a hypothesis with its end, its score, and what became of it."""

    tokens: tuple
    score: float
    fate: str
    ranked: float | None


def enumerate_steps(toy, model, source, width, n_best, longest, alpha):
    """Every step by trying all continuations of each live hypothesis, in float64."""
    live, ranked, steps = [((), 0.0)], [], []
    for length in range(longest + 1):
        grown = []
        for tokens, score in live:
            logs = model.log_probabilities(source, tokens)
            for token in range(model.size):
                if token not in (PAD, BOS) and (token == EOS or length < longest):
                    grown.append(((*tokens, token), score + logs[token]))
        grown = sorted(grown, key=lambda each: -each[1])[: 2 * width if width > 1 else 1]
        live = [each for each in grown if each[0][-1] != EOS][:width]
        looked = []
        for tokens, score in grown:
            ends = tokens[-1] == EOS
            value = score / toy.norm(length, alpha) if ends else None
            fate = "ended" if ends else "lived" if (tokens, score) in live else "dropped"
            looked.append(Wanted(tokens, score, fate, value))
            ranked += [value] if ends else []
        ranked = sorted(ranked, reverse=True)[:n_best]
        worst = ranked[-1] if len(ranked) == n_best else -math.inf
        bound = max((score for _, score in live), default=-math.inf) / toy.norm(longest, alpha)
        steps.append((looked, bound, worst))
        if worst >= bound:
            break
    return steps


@given(seed=SEEDS, width=WIDTHS, alpha=ALPHAS, longest=st.integers(1, 6), data=st.data())
@settings(max_examples=25)
def test_the_trace_tells_what_enumeration_finds(toy, seed, width, alpha, longest, data):
    n_best = data.draw(st.integers(1, width))
    model = toy.TableModel(seed)
    trace = SearchTrace()
    options = {"beam": width, "n_best": n_best, "length_penalty": alpha, "max_length": longest}
    run(toy, model, [3, 4, 5], trace, **options)
    for sentence, source in enumerate([3, 4, 5]):
        known = enumerate_steps(toy, model, source, width, n_best, longest, alpha)
        steps = trace.steps(sentence)
        assert len(steps) == len(known)
        for step, (looked, bound, worst) in zip(steps, known, strict=True):
            assert step.bound == pytest.approx(bound, abs=1e-5)
            assert step.worst == pytest.approx(worst, abs=1e-5)
            assert [each.fate for each in step.ranked] == [each.fate for each in looked]
            for told, each in zip(step.ranked, looked, strict=True):
                end = (EOS,) if told.fate == "ended" else ()
                assert (*told.tokens, *end) == each.tokens
                assert told.token == each.tokens[-1]
                assert told.score == pytest.approx(each.score, abs=1e-5)
                assert told.normalized_score == pytest.approx(each.ranked, abs=1e-5)
                logs = model.log_probabilities(source, each.tokens[:-1])
                assert told.token_score == pytest.approx(logs[told.token], abs=1e-5)


@given(seed=SEEDS, width=WIDTHS, alpha=ALPHAS, data=st.data())
@settings(max_examples=20)
def test_watching_changes_no_bit(toy, seed, width, alpha, data):
    options = {
        "beam": width,
        "n_best": data.draw(st.integers(1, width)),
        "length_penalty": alpha,
        "max_length": data.draw(st.integers(1, 8)),
        "min_length": data.draw(st.integers(0, 1)),
        "no_repeat_ngram": data.draw(st.sampled_from([0, 2])),
    }
    prefixes = data.draw(st.sampled_from([None, [[], [4], [5, 3]]]))
    model = toy.TableModel(seed)
    alone = run(toy, model, [3, 4, 5], prefixes=prefixes, **options)
    steps = model.steps
    trace = SearchTrace()
    watched = run(toy, model, [3, 4, 5], trace, prefixes=prefixes, **options)
    assert watched == alone  # floats and all
    assert model.steps == 2 * steps
    for sentence, hypotheses in enumerate(watched):
        told = trace.steps(sentence)
        for hypothesis in hypotheses:
            path = places(told, hypothesis)
            on_path = [step.ranked[place] for step, place in zip(told, path, strict=False)]
            assert tuple(each.token for each in on_path) == (*hypothesis.tokens, EOS)
            assert on_path[-1].score == hypothesis.score
            assert on_path[-1].normalized_score == hypothesis.normalized_score
            assert tuple(each.token_score for each in on_path) == hypothesis.token_scores
            parents = [each.parent for each in on_path]
            assert parents == [0, *(each.beam for each in on_path[:-1])]


@given(seed=SEEDS, width=WIDTHS)
@settings(max_examples=20)
def test_a_sentence_is_told_of_as_if_it_were_alone(toy, seed, width):
    model = toy.TableModel(seed)
    together = SearchTrace()
    run(toy, model, [3, 4, 5], together, beam=width, max_length=6)
    for sentence, source in enumerate([3, 4, 5]):
        alone = SearchTrace()
        run(toy, model, [source], alone, beam=width, max_length=6)
        assert together.steps(sentence) == alone.steps(0)


def test_samples_have_no_trace(toy):
    with pytest.raises(ConfigError, match="no search to trace"):
        run(toy, toy.TableModel(0), [3], SearchTrace(), sampling=True)


def test_nothing_is_kept_of_tensors_that_change_later(toy):
    """What was told of a step stays true while the search goes on."""
    model = toy.TableModel(3)
    told = []

    class Early(SearchTrace):
        def add(self, *given, **named):
            super().add(*given, **named)
            told.append(self.steps(0)[-1])

    trace = Early()
    run(toy, model, [3], trace, beam=3, max_length=6)
    assert trace.steps(0) == told
