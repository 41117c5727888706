"""LLaMA's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ModelError
from heedful.interop.architectures.decoders.gpt2 import ARCHITECTURE as gpt2
from heedful.interop.architectures.decoders.llama import ARCHITECTURE as llama
from heedful.nn.spec import RotarySpec

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
WAVES = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 2.0,
    # So that either beta moves an end of the ramp over the six pairs of a head.
    "original_max_position_embeddings": 1000,
    "beta_fast": 8.0,
    "beta_slow": 0.25,
}
LONG = {"max_position_embeddings": 2000}
CASES = {
    "as published": {"rms_norm_eps": 1e-3},
    "grouped, linear": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    },
    "tied, biases, head width": {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "hidden_act": "gelu",
    },
    "llama3": {"rope_parameters": WAVES, "num_key_value_heads": 1, "hidden_act": "relu"},
    "yarn": {**LONG, "rope_parameters": YARN},
    "yarn, its own factor": {**LONG, "rope_parameters": {**YARN, "attention_factor": 1.3}},
    "yarn, two scales": {**LONG, "rope_parameters": {**YARN, "mscale": 1.5, "mscale_all_dim": 0.5}},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, causal, tmp_path_factory):
    return build(causal, tmp_path_factory, CASES[request.param])


@pytest.fixture(scope="module")
def scaled(causal, tmp_path_factory):
    return build(causal, tmp_path_factory, CASES["llama3"])


def build(causal, tmp_path_factory, changes):
    import transformers

    config = transformers.LlamaConfig(**{**SIZES, **changes})
    cls = transformers.LlamaForCausalLM
    return causal(llama, cls, config, tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, left):
    case.compare_outputs(left)


def test_every_frequency_is_theirs(case):
    """Short texts hardly tell one scaling from another; the frequencies do."""
    theirs = case.theirs.model.rotary_emb
    rotary = case.ours.decoder.blocks[1].self_attention.rotary
    torch.testing.assert_close(torch.tensor(rotary.frequencies), theirs.inv_freq, rtol=1e-6, atol=0)
    assert rotary.temperature == pytest.approx(theirs.attention_scaling)


@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_from_a_cache_are_theirs(scaled, left, chunk, kind):
    scaled.compare_cached(left, chunk, kind)


def test_greedy_texts_are_theirs(scaled):
    rows = scaled.compare_texts(eos_token_id=None, max_new_tokens=20)
    scaled.compare_texts(eos_token_id=rows[0][4], max_new_tokens=20)


def test_beam_texts_are_theirs(scaled):
    """Of one fixed length, with no length penalty; see the same test of GPT-2."""
    fixed = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    scaled.compare_texts(eos_token_id=None, max_new_tokens=8, **fixed)
    scaled.compare_texts(eos_token_id=7, min_new_tokens=6, max_new_tokens=6, **fixed)


def test_what_is_written_is_what_was_read(case, tmp_path):
    case.compare_export(tmp_path / "out")


def test_older_files_say_the_same(case):
    """`rope_theta` and `rope_scaling`, with `type` for `rope_type`, as before `rope_parameters`."""
    config = dict(case.config)
    scaling = dict(config.pop("rope_parameters"))
    config["rope_theta"] = scaling.pop("rope_theta")
    kind = scaling.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **scaling}
    assert llama.read_config(config, where="there") == case.ours.spec


def test_a_file_without_the_defaults():
    spec = llama.read_config({**SIZES, "rope_scaling": {"type": "yarn", "factor": 2.0}}, where="")
    rotary = spec.decoder.block.self_attention.rotary
    assert rotary == RotarySpec(scaling="yarn", factor=2.0, original_length=64)
    assert llama.read_config({}, where="").decoder.block.feedforward.width == 11008


def test_stored_frequencies_are_no_weights(scaled):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    found = scaled.table.to_ours({**scaled.tensors, **extra}, where="there")
    assert found.keys() == scaled.table.to_ours(scaled.tensors, where="there").keys()


def test_the_prefix_may_be_absent():
    spec = llama.read_config({**SIZES, "tie_word_embeddings": True}, where="there")
    bare = llama.table(spec, ["embed_tokens.weight"])
    assert {name.split(".")[0] for rule in bare.rules for name in rule.theirs} == {
        "embed_tokens",
        "layers",
        "norm",
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {**YARN, "truncate": False}}, "truncate"),
        ({"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(changes, told):
    with pytest.raises(ModelError) as caught:
        llama.read_config({**SIZES, **changes}, where="there/config.json")
    assert told in str(caught.value)
    assert "there/config.json" in str(caught.value)


def test_only_models_like_it_fit(case):
    spec = case.ours.spec
    assert not gpt2.fits(spec)
    block = spec.decoder.block
    for changes in (
        {"rotary": None},
        {"rotary": RotarySpec(layout="pairs")},
        {"rotary": RotarySpec(scaling="ntk", factor=2.0)},
        {"rotary": RotarySpec(temperature=1.5)},
        {"scale": 0.5},
        {"softcap": 30.0},
        {"output_bias": not block.self_attention.bias},
    ):
        attention = block.self_attention.model_copy(update=changes)
        other = block.replace(self_attention=attention)
        decoder = spec.decoder.with_block(other)
        assert not llama.fits(spec.model_copy(update={"decoder": decoder})), changes
