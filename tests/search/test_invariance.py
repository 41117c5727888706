"""On random models: no result depends on batching, padding, order, caches or being looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.data.padding import pad
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.search.dispatch import search
from heedful.search.scoring import attention_of, score_targets
from heedful.search.search_settings import SearchSettings, Specials

from ..examples import slow_examples


@dataclass(frozen=True)
class Prefix:
    """Everything read so far.

    Args:
        source: [B, S] int64.
        source_positions: [B, S] int64.
        tokens: [B, W, t] int64.
    """

    source: Tensor
    source_positions: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class Uncached:
    """A step model that runs the whole prefix anew at every step: the truth for caches."""

    model: Translator

    def start(self, source: Tensor, source_positions: Tensor) -> Prefix:
        """See `StepModel`."""
        return Prefix(source, source_positions, source.new_zeros((source.shape[0], 1, 0)))

    def step(self, state: Prefix, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """See `StepModel`."""
        prefix = torch.cat([state.tokens, tokens[..., None]], -1)
        count, width, length = prefix.shape
        positions = torch.arange(length, device=tokens.device).expand(count * width, -1)
        hidden = self.model(
            state.source.repeat_interleave(width, 0),
            state.source_positions.repeat_interleave(width, 0),
            prefix.flatten(0, 1),
            positions,
        )
        logits = self.model.logits(hidden[:, -1]).float().view(count, width, -1)
        return logits, Prefix(state.source, state.source_positions, prefix)

    def reorder(self, state: Prefix, rows: Tensor) -> Prefix:
        """See `StepModel`."""
        sentences = rows[:, 0] // state.tokens.shape[1]
        tokens = state.tokens.flatten(0, 1)[rows]
        return Prefix(state.source[sentences], state.source_positions[sentences], tokens)


SPECIALS = Specials(pad=0, bos=1, eos=2)
VOCABULARY = 13
SHAPES = {
    "paper": {},
    "learned": {"positions": "learned", "max_length": 40},
    "modern": {
        "positions": "rotary",
        "norm": "rms",
        "norm_placement": "pre",
        "activation": "swiglu",
        "num_kv_heads": 2,
    },
    "alibi": {"positions": "alibi", "norm_placement": "pre"},
    "t5": {"positions": "t5"},
    "relative": {"positions": "relative_keys"},
    "transformer xl": {"positions": "transformer_xl"},
    "disentangled": {"positions": "disentangled"},
    "window": {"window": 3},
}
SENTENCES = st.lists(
    st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=7), min_size=2, max_size=5
)


@cache
def random_model(shape, seed):
    torch.manual_seed(seed)
    dials = {"width": 16, "num_heads": 4, "feedforward": 32, "encoder_layers": 2} | SHAPES[shape]
    model = Translator(
        translator_spec(TranslatorShape(decoder_layers=2, **dials), VOCABULARY, VOCABULARY)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def run(model, sentences, chosen, side="right", names=None):
    source, positions = pad(sentences, 0, last=2, padding_side=side)
    return search(model, source, positions, chosen, specials=SPECIALS, names=names, longest=12)


def same(one, other):
    for first, second in zip(one, other, strict=True):
        assert [h.tokens for h in first] == [h.tokens for h in second]
        for a, b in zip(first, second, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)
            assert a.normalized_score == pytest.approx(b.normalized_score, abs=1e-4)
            assert a.finished == b.finished


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    seed=st.integers(0, 2),
    sentences=SENTENCES,
    width=st.integers(1, 4),
    sampling=st.booleans(),
    no_repeat=st.sampled_from([0, 2]),
)
@settings(max_examples=slow_examples(25))
def test_a_sentence_does_not_depend_on_its_neighbours(
    shape, seed, sentences, width, sampling, no_repeat
):
    model = random_model(shape, seed)
    chosen = SearchSettings(
        beam=width, n_best=min(2, width), sampling=sampling, no_repeat_ngram=no_repeat
    )
    names = list(range(len(sentences)))
    together = run(model, sentences, chosen)
    same(run(model, sentences, chosen, side="left"), together)
    alone = [run(model, [s], chosen, names=[i])[0] for i, s in enumerate(sentences)]
    same(alone, together)
    order = sorted(names, key=lambda i: len(sentences[i]))
    for size in (2, 3):
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        found = [h for p in parts for h in run(model, [sentences[i] for i in p], chosen, names=p)]
        same(found, [together[i] for i in order])


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    seed=st.integers(0, 2),
    sentences=SENTENCES,
    width=st.integers(1, 4),
)
@settings(max_examples=slow_examples(20))
@example(shape="learned", seed=1, sentences=[[3], [8]], width=1)
def test_cache_or_not_and_search_or_forced(shape, seed, sentences, width):
    # In float64, as a batch of one and one of two sum in another order, and thirteen tokens add up
    # what that makes in float32.
    model = random_model(shape, seed).double()
    chosen = SearchSettings(beam=width, n_best=width, max_length=12)
    cached = run(model, sentences, chosen)
    same(run(Uncached(model), sentences, chosen), cached)
    for hypotheses, sentence in zip(cached, sentences, strict=True):
        source, positions = pad([sentence] * len(hypotheses), 0, last=2)
        targets = [h.tokens for h in hypotheses]
        forced = score_targets(model, source, positions, targets, SPECIALS)
        for hypothesis, scores in zip(hypotheses, forced, strict=True):
            assert hypothesis.token_scores == pytest.approx(scores, abs=1e-5)
            assert hypothesis.score == pytest.approx(math.fsum(scores), abs=1e-5, rel=1e-6)


@given(shape=st.sampled_from(sorted(SHAPES)), sentences=SENTENCES)
@settings(max_examples=15)
def test_attention_adds_up_and_ignores_neighbours(shape, sentences):
    model = random_model(shape, 0)
    targets = [sentence[::-1][:3] for sentence in sentences]
    source, positions = pad(sentences, 0, last=2)
    with torch.inference_mode():
        weights = attention_of(model, model.start(source, positions), targets, SPECIALS)
        for row, (sentence, target) in enumerate(zip(sentences, targets, strict=True)):
            here = weights[row, : len(target) + 1]
            assert here.sum(-1).tolist() == pytest.approx([1.0] * (len(target) + 1), abs=1e-5)
            read = model.start(*pad([sentence], 0, last=2))
            alone = attention_of(model, read, [target], SPECIALS)[0]
            assert torch.allclose(here[:, : len(sentence) + 1], alone, atol=1e-5)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_coverage_penalty_runs_on_real_models(shape):
    chosen = SearchSettings(beam=3, n_best=3, coverage_penalty=0.5, max_length=6)
    model = random_model(shape, 1)
    sentences = [[3, 4, 5], [6, 7, 8, 9, 10]]
    together = run(model, sentences, chosen)
    same([run(model, [sentence], chosen)[0] for sentence in sentences], together)
    for hypotheses in together:
        ranks = [h.normalized_score for h in hypotheses]
        assert ranks == sorted(ranks, reverse=True)
    for sentence, hypotheses in zip(sentences, together, strict=True):
        for hypothesis in hypotheses:
            expected = hypothesis.score / ((5 + len(hypothesis.tokens) + 1) / 6) ** 0.6
            target, where = pad([hypothesis.tokens], 0, first=1)
            weights = model.cross_attention(*pad([sentence], 0, last=2), target, where)
            for place in range(len(sentence) + 1):
                received = sum(
                    weights[layer, 0, :, t, place].mean().item() / 2
                    for layer in range(2)
                    for t in range(len(hypothesis.tokens) + 1)
                )
                expected += 0.5 * math.log(min(received, 1.0))
            assert hypothesis.normalized_score == pytest.approx(expected, abs=1e-4)
