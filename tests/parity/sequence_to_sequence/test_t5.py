"""T5 against transformers: 1.0 with a tied, scaled head; 1.1 with gates and a head of its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.interop.architectures.translators.t5 import ARCHITECTURE as t5
from heedful.models.build import canonical_weights
from heedful.nn.attention.relative_positions import T5Bias

VARIANTS = {
    "1.0": {},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "1.1, silu": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
}


def theirs(checks, **changes):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 48,
        "d_model": 16,
        "d_kv": 6,
        "d_ff": 24,
        "num_layers": 3,
        "num_decoder_layers": 2,  # their cache has no room for more than in the encoder
        "num_heads": 3,
        "relative_attention_num_buckets": 12,
        "relative_attention_max_distance": 20,
        "decoder_start_token_id": 0,
    }
    config = T5Config(**{**sizes, **changes}, attn_implementation="eager")
    model = T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs:  # of its own in 1.1, though new models begin tied
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() / 4)
    return checks.shake(model)


@pytest.mark.parametrize("name", VARIANTS)
def test_same_answers_and_the_way_back(checks, tmp_path, name):
    model = theirs(checks, **VARIANTS[name])
    config, tensors = checks.saved(model, tmp_path / "theirs")
    ours = checks.imported(t5, config, tensors)
    assert ("lm_head.weight" in tensors) == (ours.spec.output_scale is None) == (name != "1.0")
    checks.same_states(model, ours, pad=0)
    checks.same_steps(model, ours, pad=0)
    checks.same_searches(model, ours, pad=0, bos=0, eos=1)
    checks.same_after_export(t5, model, ours, tensors, tmp_path / "ours")


def test_texts_much_longer_than_the_buckets_reach(checks, tmp_path):
    model = theirs(checks, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    ours = checks.imported(t5, *checks.saved(model, tmp_path))
    checks.same_states(model, ours, pad=0, sources=(300, 140), targets=(20, 210))


@given(
    one_side=st.integers(2, 40),
    past=st.integers(1, 200),
    bidirectional=st.booleans(),
)
@settings(max_examples=40)
def test_every_distance_falls_into_their_bucket(one_side, past, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets = 2 * one_side if bidirectional else one_side
    reach = one_side // 2 + past
    distance = torch.arange(-2000, 2001)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, reach)
    found = T5Bias(1, buckets, reach, bidirectional)._bucket(distance)
    assert torch.equal(found, expected)


def test_dropout_is_everywhere_theirs_is():
    spec = t5.read_config(SIZES | {"dropout_rate": 0.25}, where="")
    assert spec.embedding.dropout == 0.25
    for stack in (spec.encoder, spec.decoder):
        block = stack.block
        places = (stack.final_dropout, block.dropout, block.feedforward.dropout)
        assert {*places, block.self_attention.dropout} == {0.25}
    assert spec.decoder.block.cross_attention.dropout == 0.25


SIZES = {"d_model": 16, "vocab_size": 48, "num_layers": 2, "num_heads": 4, "d_kv": 4, "d_ff": 24}


def test_what_a_head_of_its_own_is_told_by():
    share = {
        key: t5.read_config(SIZES | dict(said), where="").share_embeddings
        for key, said in {
            "nothing": {},
            "first 1.1 files": {"tie_word_embeddings": False},
            "newer files": {"tie_word_embeddings": True, "scale_decoder_outputs": False},
        }.items()
    }
    assert share == {"nothing": "all", "first 1.1 files": "inputs", "newer files": "inputs"}


def test_names_only_some_files_have(checks, tmp_path):
    config, tensors = checks.saved(theirs(checks), tmp_path / "1.0")
    expected = canonical_weights(checks.imported(t5, config, tensors))
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    shared = tensors["shared.weight"]
    more = {name: shared.clone() for name in ("encoder.embed_tokens.weight", "lm_head.weight")}
    found = checks.imported(t5, config, tensors | more | {unused: torch.zeros(12, 3)})
    assert all(torch.equal(expected[n], w) for n, w in canonical_weights(found).items())
    with pytest.raises(ModelError, match=r"lm_head\.weight differs from shared\.weight"):
        checks.imported(t5, config, tensors | {"lm_head.weight": shared + 1})


def test_a_model_of_1_1_whose_head_is_still_tied(checks, tmp_path):
    model = theirs(checks, **VARIANTS["1.1"])
    model.lm_head.weight = model.shared.weight
    config, tensors = checks.saved(model, tmp_path / "theirs")
    ours = checks.imported(t5, config, tensors)
    assert (ours.spec.share_embeddings, ours.spec.output_scale) == ("all", None)
    checks.same_states(model, ours, pad=0)
    checks.same_after_export(t5, model, ours, tensors, tmp_path / "ours")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"feed_forward_proj": "gated-tanh"}, r'feed_forward_proj = "gated-tanh"'),
        ({"d_model": None}, "d_model is missing"),
        ({"num_layers": 0}, "num_layers"),
        ({"dropout_rate": 1.5}, "dropout"),
        ({"scale_decoder_outputs": 1}, "scale_decoder_outputs = 1"),
    ],
)
def test_what_cannot_be_is_named(changes, told):
    with pytest.raises(ModelError, match=told) as caught:
        t5.read_config(SIZES | changes, where="config.json")
    assert "config.json" in str(caught.value)


def test_other_specs_do_not_fit():
    spec = t5.read_config(SIZES, where="")
    assert t5.fits(spec)
    norm = spec.encoder.model_copy(update={"final_norm": None})
    for changes in ({"output_scale": 0.5}, {"output_bias": True}, {"encoder": norm}):
        assert not t5.fits(spec.model_copy(update=changes))
