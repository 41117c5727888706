"""Beam search against enumeration and against the textbook."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.search.dispatch import search
from heedful.search.scoring import score_targets
from heedful.search.search_settings import SearchSettings, Specials

SPECIALS = Specials(pad=0, bos=1, eos=2)
SEEDS = st.integers(0, 10_000)
ALPHAS = st.sampled_from([0.0, 0.3, 0.6, 1.0, 2.0])


def run(toy, model, ids, prefixes=None, **options):
    return search(
        model, *toy.sources(ids), SearchSettings(**options), specials=SPECIALS, prefixes=prefixes
    )


@given(seed=SEEDS, alpha=ALPHAS, longest=st.integers(1, 3), n_best=st.integers(1, 8))
@settings(max_examples=40)
def test_wide_beam_finds_the_best_of_all_sequences(toy, seed, alpha, longest, n_best):
    model = toy.TableModel(seed)
    found = run(
        toy, model, [5, 7], beam=40, n_best=n_best, max_length=longest, length_penalty=alpha
    )
    for source, hypotheses in zip([5, 7], found, strict=True):
        best = toy.everything(model, source, longest, alpha)[:n_best]
        assert [h.tokens for h in hypotheses] == [k.tokens for k in best]
        for hypothesis, known in zip(hypotheses, best, strict=True):
            assert hypothesis.score == pytest.approx(known.score, abs=1e-5)
            assert hypothesis.normalized_score == pytest.approx(known.normalized, abs=1e-5)


@given(seed=SEEDS, alpha=ALPHAS, width=st.integers(2, 4), longest=st.integers(1, 7))
@settings(max_examples=60)
def test_stopping_early_changes_nothing(toy, seed, alpha, width, longest):
    model = toy.TableModel(seed)
    for n_best in range(1, width + 1):
        found = run(
            toy,
            model,
            [3, 4, 5],
            beam=width,
            n_best=n_best,
            max_length=longest,
            length_penalty=alpha,
        )
        for source, hypotheses in zip([3, 4, 5], found, strict=True):
            known = toy.textbook_beam(model, source, width, longest, alpha)[:n_best]
            assert [h.tokens for h in hypotheses] == [k.tokens for k in known]


def test_it_does_stop_early(toy):
    model = toy.TableModel(1)
    run(toy, model, [3, 4, 5], beam=4, max_length=60)
    assert model.steps < 40


@given(seed=SEEDS, longest=st.integers(1, 8))
@settings(max_examples=40)
def test_beam_of_one_is_greedy(toy, seed, longest):
    model = toy.TableModel(seed)
    found = run(toy, model, [3, 4, 5], beam=1, max_length=longest)
    for source, (hypothesis,) in zip([3, 4, 5], found, strict=True):
        assert hypothesis.tokens == toy.textbook_greedy(model, source, longest)
        assert hypothesis.score == pytest.approx(
            toy.score_of(model, source, hypothesis.tokens), abs=1e-5
        )


@given(seed=SEEDS, width=st.integers(1, 5), alpha=ALPHAS)
@settings(max_examples=30)
def test_scores_are_forced_scores(toy, seed, width, alpha):
    model = toy.TableModel(seed)
    found = run(toy, model, [3, 4], beam=width, n_best=width, max_length=6, length_penalty=alpha)
    for source, hypotheses in zip([3, 4], found, strict=True):
        assert len({h.tokens for h in hypotheses}) == len(hypotheses)
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.normalized_score)
        ids, positions = toy.sources([source] * len(hypotheses))
        forced = score_targets(model, ids, positions, [h.tokens for h in hypotheses], SPECIALS)
        for hypothesis, scores in zip(hypotheses, forced, strict=True):
            assert hypothesis.token_scores == pytest.approx(scores, abs=1e-5)
            assert hypothesis.score == pytest.approx(math.fsum(scores), abs=1e-5)
            length = len(hypothesis.tokens)
            assert hypothesis.normalized_score == pytest.approx(
                hypothesis.score / toy.norm(length, alpha)
            )


@given(seed=SEEDS, width=st.integers(1, 4), n_best=st.integers(1, 4))
@settings(max_examples=30)
def test_neighbours_change_nothing(toy, seed, width, n_best):
    model = toy.TableModel(seed)
    options = {"beam": width, "n_best": min(n_best, width), "max_length": 8}
    together = run(toy, model, [3, 4, 5, 6, 7], **options)
    alone = [run(toy, model, [source], **options)[0] for source in [3, 4, 5, 6, 7]]
    assert together == alone
    assert run(toy, model, [7, 5, 3], **options) == [alone[4], alone[2], alone[0]]


def test_markov_chain_solved_by_hand(toy):
    # From the start: a .6, b .4; a ends with .5 or turns to b; b ends with .9 or stays.
    end, a, b = 2, 4, 5
    chain = [[0.0] * 6 for _ in range(6)]
    chain[1][a], chain[1][b] = 0.6, 0.4
    chain[a][end], chain[a][b] = 0.5, 0.5
    chain[b][end], chain[b][b] = 0.9, 0.1
    model = toy.MarkovModel(chain)
    found = run(toy, model, [3], beam=3, n_best=3, length_penalty=0.0, max_length=5)
    assert [h.tokens for h in found[0]] == [(b,), (a,), (a, b)]
    probabilities = [math.exp(h.score) for h in found[0]]
    assert probabilities == pytest.approx([0.36, 0.30, 0.27], abs=1e-6)
    (greedy,) = run(toy, model, [3], beam=1, max_length=5)
    assert greedy[0].tokens in {(a,), (a, b)}  # misled by the first step


def test_cut_hypotheses_say_so_and_have_the_forced_score(toy):
    stay = [[0.0] * 5 for _ in range(5)]
    for row in stay:
        row[4], row[2] = 0.9, 0.1
    model = toy.MarkovModel(stay)
    (cut,) = run(toy, model, [3], beam=1, max_length=3)[0]
    assert (cut.tokens, cut.finished) == ((4, 4, 4), False)
    assert cut.score == pytest.approx(3 * math.log(0.9) + math.log(0.1), abs=1e-5)
    best = run(toy, model, [3], beam=2, n_best=2, max_length=3)[0]
    assert [h.finished for h in best] == [len(h.tokens) < 3 for h in best]


def test_ending_of_its_own_at_the_longest_length_is_no_cut(toy):
    rows = [[0.0] * 6 for _ in range(6)]
    rows[1][4] = rows[4][5] = rows[5][2] = 1.0
    (whole,) = run(toy, toy.MarkovModel(rows), [3], beam=2, max_length=2)[0]
    assert (whole.tokens, whole.finished) == ((4, 5), True)


def test_default_length_grows_with_the_source(toy):
    stay = [[0.0] * 5 for _ in range(5)]
    for row in stay:
        row[4], row[2] = 1 - 1e-9, 1e-9
    source = torch.tensor([[3, 3, 3], [3, 0, 0]])
    positions = torch.tensor([[0, 1, 2], [0, -1, -1]])
    found = search(
        toy.MarkovModel(stay), source, positions, SearchSettings(beam=1), specials=SPECIALS
    )
    assert [len(h[0].tokens) for h in found] == [2 * 3 + 20, 2 * 1 + 20]
    found = search(
        toy.MarkovModel(stay), source, positions, SearchSettings(), specials=SPECIALS, longest=9
    )
    assert [len(h[0].tokens) for h in found] == [9, 9]


def test_nan_is_an_error(toy):
    model = toy.MarkovModel([[math.nan] * 5] * 5)
    with pytest.raises(ModelError, match="NaN"):
        run(toy, model, [3], beam=2)


def test_no_sentences(toy):
    empty = torch.zeros((0, 0), dtype=torch.int64)
    assert search(toy.TableModel(0), empty, empty, SearchSettings(), specials=SPECIALS) == []


@pytest.mark.parametrize("sampling", [False, True])
def test_only_the_sentence_at_its_longest_length_is_cut(toy, sampling):
    # 22 words that may not repeat: both end after 22 tokens, the first because nothing is left,
    # the second because its source of one token allows no more.
    rows = [[0.0, 0.0, 1e-6, *[1 / 22] * 22] for _ in range(25)]
    source = torch.tensor([[3, 3], [3, 0]])
    positions = torch.tensor([[0, 1], [0, -1]])
    chosen = SearchSettings(beam=1, no_repeat_ngram=1, sampling=sampling)
    found = search(toy.MarkovModel(rows), source, positions, chosen, specials=SPECIALS)
    assert [len(h[0].tokens) for h in found] == [22, 22]
    assert [h[0].finished for h in found] == [True, False]
