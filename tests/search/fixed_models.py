"""Small models whose searches end at any step, and how their results are compared."""

from __future__ import annotations

import functools

import pytest
import torch

from heedful.models.causal_lm import CausalLM
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.models.translator import Translator
from heedful.search.search_settings import Specials

PIECES = 50
SPECIALS = Specials(pad=0, bos=2, eos=3)
ENDS = 2.4
"""Added to the logit of the end, so that a beam's sentences end at any step."""


SEARCHES = {
    "beam": {"beam": 5},
    "greedy": {"beam": 1},
    "n best": {"beam": 3, "n_best": 3, "length_penalty": 0.0},
    "coverage": {"beam": 3, "coverage_penalty": 0.2},
    "least and most": {"beam": 4, "min_length": 4, "max_length": 7},
    "no bigram twice": {"beam": 4, "no_repeat_ngram": 2},
    "no token twice": {"sampling": True, "n_best": 2, "no_repeat_ngram": 1},
    "samples": {"sampling": True, "n_best": 3, "seed": 7},
    "filtered samples": {"sampling": True, "top_k": 9, "top_p": 0.9, "temperature": 0.7},
    "rare tokens left out": {"sampling": True, "n_best": 2, "min_p": 0.1, "epsilon": 0.05},
}
KINDS = {
    "2017": {},
    "pre-norm, RMS, SwiGLU, no bias": {
        "norm_placement": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
    },
    "grouped, learned positions": {"num_kv_heads": 2, "positions": "learned"},
    "window": {"window": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
}


def shape(**changes) -> TranslatorShape:
    small = {"width": 16, "encoder_layers": 1, "decoder_layers": 2, "num_heads": 4}
    return TranslatorShape(**{**small, "feedforward": 24, "dropout": 0.0, **changes})


def spread(model, bias: float) -> None:
    """Make tokens less sure to repeat themselves, and ends likelier."""
    with torch.no_grad():
        model.output_weight.mul_(0.6)
    ends = torch.zeros(PIECES)
    ends[SPECIALS.eos] = bias
    model.output_bias = torch.nn.Parameter(ends)


@functools.cache
def translator(**changes) -> Translator:
    torch.manual_seed(0)
    model = Translator(translator_spec(shape(**changes), PIECES, PIECES)).eval()
    spread(model, ENDS)
    return model


@functools.cache
def language_model(**changes) -> CausalLM:
    torch.manual_seed(1)
    model = CausalLM(causal_lm_spec(shape(**changes), PIECES, 200)).eval()
    spread(model, 0.0)
    return model


def batch(lengths: list[int], seed: int):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, PIECES, (len(lengths), max(lengths)), generator=generator)
    positions = torch.tensor([[*range(n)] + [-1] * (max(lengths) - n) for n in lengths])
    return ids, positions


def alike(found, wanted) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.finished for h in ours] == [h.finished for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.normalized_score == pytest.approx(other.normalized_score, abs=1e-4)
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)
