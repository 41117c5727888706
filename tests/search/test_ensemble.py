"""Several models as one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from heedful.errors import ConfigError, ModelError
from heedful.search.dispatch import search
from heedful.search.scoring import coverage, rank_by_coverage
from heedful.search.search_settings import Hypothesis, SearchSettings, Specials, length_norm
from heedful.search.step_model import Ensemble

SPECIALS = Specials(pad=0, bos=1, eos=2)


def run(toy, model, ids, **options):
    return search(model, *toy.sources(ids), SearchSettings(**options), specials=SPECIALS)


@pytest.mark.parametrize("seed", range(5))
def test_equal_models_are_one(toy, seed):
    one = run(toy, toy.TableModel(seed), [3, 4, 5], beam=3, n_best=3, max_length=6)
    members = [toy.TableModel(seed) for _ in range(3)]
    three = run(toy, Ensemble(members), [3, 4, 5], beam=3, n_best=3, max_length=6)
    for expected, found in zip(one, three, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_two_models_by_hand(toy):
    first = [[1 / 6] * 6 for _ in range(6)]
    second = [[1 / 6] * 6 for _ in range(6)]
    first[1] = [0, 0, 0, 0, 0.9, 0.1]
    second[1] = [0, 0, 0, 0, 0.3, 0.7]
    first[4] = [0, 0, 0.2, 0, 0.8, 0]
    second[4] = [0, 0, 0.6, 0, 0.4, 0]
    ensemble = Ensemble([toy.MarkovModel(first), toy.MarkovModel(second)])
    logits, state = ensemble.step(ensemble.start(*toy.sources([3])), torch.tensor([[1]]))
    assert logits.exp()[0, 0, 4:].tolist() == pytest.approx([0.6, 0.4], abs=1e-6)
    logits, _ = ensemble.step(state, torch.tensor([[4]]))
    assert logits.exp()[0, 0, [2, 4]].tolist() == pytest.approx([0.4, 0.6], abs=1e-6)


def test_different_vocabularies_cannot_be_averaged(toy):
    ensemble = Ensemble([toy.TableModel(1, size=6), toy.TableModel(1, size=7)])
    with pytest.raises(ModelError, match="vocabularies"):
        run(toy, ensemble, [3])


def test_length_norm_of_the_paper():
    assert length_norm(1.0, 0.6) == 1.0
    assert length_norm(13.0, 1.0) == pytest.approx(3.0)
    assert length_norm(7.0, 0.5) == pytest.approx(math.sqrt(2))


def test_coverage_by_hand():
    # One layer, two heads, two target tokens, three source tokens of which the last is padding.
    heads = torch.tensor([[[0.5, 0.5, 0.0], [0.1, 0.9, 0.0]], [[0.3, 0.7, 0.0], [0.1, 0.9, 0.0]]])
    found = coverage(heads[None, None], torch.tensor([[0, 1, -1]]))
    assert found.tolist() == pytest.approx([math.log(0.5) + math.log(1.0)])


def test_coverage_changes_the_order():
    class Attentive:
        def cross_attention(self, source, source_positions, target, target_positions):
            looked = torch.zeros(1, len(source), 1, target.shape[1], source.shape[1])
            for row, ids in enumerate(target.tolist()):
                for t, token in enumerate(ids):
                    looked[0, row, 0, t, 0 if token < 5 else 1] = 1.0
            return looked * (target_positions >= 0)[None, :, None, :, None]

    def hypothesis(tokens, score):
        return Hypothesis(tokens, score, score, (), True)

    one_sided, whole = hypothesis((4, 4), -1.0), hypothesis((4, 5), -1.5)
    source = torch.tensor([[7, 8], [7, 8]])
    found = rank_by_coverage(
        Attentive(),
        source,
        torch.tensor([[0, 1], [0, 1]]),
        [[one_sided, whole], [whole]],
        SPECIALS,
        0.2,
    )
    assert [h.tokens for h in found[0]] == [(4, 5), (4, 4)]
    assert found[0][0].normalized_score == pytest.approx(-1.5)
    assert found[1] == [whole]


def test_coverage_needs_attention(toy):
    with pytest.raises(ConfigError, match="attention"):
        run(toy, toy.TableModel(1), [3], coverage_penalty=0.1)


def test_attention_of_an_ensemble_is_the_mean():
    def member(weights):
        attention = torch.tensor(weights)
        return SimpleNamespace(cross_attention=lambda *_: attention)

    first = member([[[[[1.0, 0.0]], [[0.0, 1.0]]]]])  # one layer of two heads
    second = member([[[[[1.0, 0.0]]]], [[[[1.0, 0.0]]]]])  # two layers of one head
    found = Ensemble([first, second]).cross_attention(*[torch.zeros(1, 1)] * 4)
    assert found.mean((0, 2)).tolist() == [[[0.75, 0.25]]]
