"""Random draws: their distribution, their filters, and that neighbours do not matter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.search.dispatch import search
from heedful.search.sampling import distribution, draw, random_numbers
from heedful.search.search_settings import SearchSettings, Specials

SPECIALS = Specials(pad=0, bos=1, eos=2)
# 99.9 % quantiles of the chi-square distribution, by degrees of freedom.
CHI_SQUARE = {3: 16.27, 4: 18.47, 9: 27.88, 99: 148.2}


def run(toy, model, ids, names=None, **options):
    chosen = SearchSettings(sampling=True, **options)
    return search(model, *toy.sources(ids), chosen, specials=SPECIALS, names=names)


def chi_square(counts, expected):
    return float((((counts - expected) ** 2) / expected).sum())


def test_numbers_are_uniform_in_every_coordinate():
    names = torch.arange(2000)
    values = {
        "sentences": random_numbers(1, names, 5, 0)[:, 0],
        "samples": random_numbers(1, names[:1], 2000, 0)[0],
        "steps": torch.cat([random_numbers(1, names[:1], 1, s)[0] for s in range(2000)]),
        "seeds": torch.cat([random_numbers(s, names[:1], 1, 0)[0] for s in range(2000)]),
    }
    for name, numbers in values.items():
        assert 0 <= numbers.min() < numbers.max() < 1, name
        counts = torch.histc(numbers, 10, 0, 1).numpy()
        assert chi_square(counts, np.full(10, 200.0)) < CHI_SQUARE[9], name
    pairs = random_numbers(1, names, 2, 0)
    counts, _, _ = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=10, range=[[0, 1], [0, 1]])
    assert chi_square(counts, np.full((10, 10), 20.0)) < CHI_SQUARE[99]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_tempered_distribution(temperature):
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    tempered = probabilities ** (1 / temperature)
    tempered /= tempered.sum()
    names = torch.arange(4000)
    scores = probabilities.log().float().expand(4000, 1, 4)
    chosen = SearchSettings(sampling=True, temperature=temperature)
    drawn = draw(scores, random_numbers(7, names, 1, 0), chosen)
    counts = torch.bincount(drawn[:, 0], minlength=4).numpy()
    assert chi_square(counts, 4000 * tempered.numpy()) < CHI_SQUARE[3]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.4}, {3}),
        ({"top_p": 0.75}, {1, 3, 0}),
        ({"min_p": 0.45}, {1, 3, 0}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 3, "top_p": 0.7}, {1, 3}),
        ({"top_k": 1}, {3}),
        ({}, {0, 1, 2, 3, 5}),
    ],
)
def test_filters_allow_exactly_what_they_should(options, allowed):
    probabilities = torch.tensor([0.2, 0.25, 0.1, 0.4, 0.0, 0.05])
    scores = probabilities.log().expand(1000, 1, 6)
    chosen = SearchSettings(sampling=True, **options)
    drawn = draw(scores, random_numbers(1, torch.arange(1000), 1, 0), chosen)
    assert set(drawn.flatten().tolist()) == allowed
    edges = draw(scores[:2], torch.tensor([[0.0], [1 - 2**-52]], dtype=torch.float64), chosen)
    assert set(edges.flatten().tolist()) <= allowed


@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 7),
    top_p=st.sampled_from([0.3, 0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=30)
def test_the_distribution_is_the_one_that_is_drawn_by(seed, temperature, top_k, top_p, min_p):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=6)).float()
    logits[seed % 6] = -torch.inf
    chosen = SearchSettings(
        sampling=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    points = 2_000
    scores = logits.log_softmax(-1).expand(points, 1, 6)
    uniforms = ((torch.arange(points).double() + 0.5) / points)[:, None]
    counts = torch.bincount(draw(scores, uniforms, chosen).flatten(), minlength=6)
    told = distribution(scores[:1], chosen)[0, 0]
    assert told.tolist() == pytest.approx((counts / points).tolist(), abs=1.5 / points)
    assert float(told.sum()) == pytest.approx(1)


def test_whole_samples_follow_the_model(toy):
    model = toy.TableModel(5, spread=1.0)
    found = run(toy, model, [3], n_best=3000, max_length=2)[0]
    counts = Counter(h.tokens for h in found)
    cut = [k for k in toy.everything(model, 3, 2, 0.6) if len(k.tokens) < 2]
    logs = model.log_probabilities(3, ())
    reachable = 1 - np.exp(logs[[0, 1]]).sum()  # pad and bos are never drawn
    for known in cut:
        share = np.exp(known.score) / reachable
        if known.tokens:
            after = model.log_probabilities(3, known.tokens)
            share /= 1 - np.exp(after[[0, 1]]).sum()
        deviation = np.sqrt(3000 * share * (1 - share))
        assert abs(counts[known.tokens] - 3000 * share) < 4 * deviation


@given(seed=st.integers(0, 1000), n_best=st.integers(1, 3))
@settings(max_examples=25)
def test_neighbours_change_nothing(toy, seed, n_best):
    model = toy.TableModel(seed)
    options = {"n_best": n_best, "max_length": 8, "seed": seed}
    together = run(toy, model, [3, 4, 5, 3], names=[10, 11, 12, 13], **options)
    for source, name, expected in zip([3, 4, 5, 3], range(10, 14), together, strict=True):
        assert run(toy, model, [source], names=[name], **options) == [expected]
    backwards = run(toy, model, [3, 5, 4, 3], names=[13, 12, 11, 10], **options)
    assert backwards == together[::-1]


def test_seeds_sentences_and_samples_differ(toy):
    model = toy.TableModel(0, size=40, spread=0.1)
    found = run(toy, model, [3, 3], n_best=2, max_length=10, min_length=10)
    other = run(toy, model, [3, 3], n_best=2, max_length=10, min_length=10, seed=2)
    tokens = [h.tokens for hypotheses in (*found, *other) for h in hypotheses]
    assert len(set(tokens)) == 8


@given(seed=st.integers(0, 1000), temperature=st.sampled_from([0.3, 1.0, 3.0]))
@settings(max_examples=20)
def test_scores_are_the_models_own(toy, seed, temperature):
    model = toy.TableModel(seed)
    found = run(toy, model, [3, 4], n_best=3, max_length=5, temperature=temperature)
    for source, hypotheses in zip([3, 4], found, strict=True):
        ranks = [h.normalized_score for h in hypotheses]
        assert ranks == sorted(ranks, reverse=True)
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(
                toy.score_of(model, source, hypothesis.tokens), abs=1e-5
            )
            assert len(hypothesis.token_scores) == len(hypothesis.tokens) + 1


def test_almost_no_temperature_is_greedy(toy):
    model = toy.TableModel(4)
    found = run(toy, model, [3, 4, 5], temperature=1e-4, max_length=8)
    for source, (hypothesis,) in zip([3, 4, 5], found, strict=True):
        assert hypothesis.tokens == toy.textbook_greedy(model, source, 8)


@pytest.mark.parametrize("samples", [1, 3])
def test_temperature_zero_is_greedy(toy, samples):
    ids = [3, 4, 5]
    model = toy.TableModel(7)
    tokens, positions = toy.sources(ids)
    cold = search(
        model,
        tokens,
        positions,
        SearchSettings(temperature=0, n_best=samples, max_length=6, top_k=5),
        specials=Specials(pad=0, bos=1, eos=2),
    )
    for source, hypotheses in zip(ids, cold, strict=True):
        assert len(hypotheses) == samples
        assert {h.tokens for h in hypotheses} == {toy.textbook_greedy(model, source, 6)}


@given(seed=st.integers(0, 10_000), epsilon=st.sampled_from([0.01, 0.1, 0.3, 0.9]))
@settings(max_examples=30)
def test_epsilon_leaves_the_tokens_that_are_probable_enough(seed, epsilon):
    logits = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(seed))
    chosen = SearchSettings(sampling=True, epsilon=epsilon)
    shares = distribution(logits.log_softmax(-1), chosen)
    for row, share in zip(logits.flatten(0, 1), shares.flatten(0, 1), strict=True):
        probabilities = row.double().softmax(-1).tolist()
        kept = [p if p >= epsilon or p == max(probabilities) else 0.0 for p in probabilities]
        assert share.tolist() == pytest.approx([p / sum(kept) for p in kept], abs=1e-5)
