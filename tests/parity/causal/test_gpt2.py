"""GPT-2's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ModelError
from heedful.interop.architectures.decoders.gpt2 import ARCHITECTURE as gpt2
from heedful.interop.architectures.decoders.llama import ARCHITECTURE as llama
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.attention.masks import AllOf, Causal, SameSegment, Window

SIZES = {"vocab_size": 50, "n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 3}
CASES = {
    "as published": {},
    "untied": {"tie_word_embeddings": False, "activation_function": "gelu"},
    "other sizes": {
        "n_inner": 40,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-3,
        "resid_pdrop": 0.2,
    },
    "scores unscaled": {"scale_attn_weights": False, "reorder_and_upcast_attn": True},
}
BARE = "without the head"


@pytest.fixture(scope="module", params=[*CASES, BARE])
def case(request, causal, tmp_path_factory):
    import transformers

    bare = request.param == BARE
    cls = transformers.GPT2Model if bare else transformers.GPT2LMHeadModel
    config = transformers.GPT2Config(**SIZES, **CASES.get(request.param, {}))
    return causal(gpt2, cls, config, tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def published(causal, tmp_path_factory):
    import transformers

    config = transformers.GPT2Config(**SIZES)
    return causal(gpt2, transformers.GPT2LMHeadModel, config, tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, left):
    case.compare_outputs(left)


@pytest.mark.parametrize("kind", ["growing", "static"])
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_from_a_cache_are_theirs(published, left, chunk, kind):
    published.compare_cached(left, chunk, kind)


def test_greedy_texts_are_theirs(published):
    rows = published.compare_texts(eos_token_id=None, max_new_tokens=10)
    # Once more with an end that the first text comes to, and the others may or may not.
    published.compare_texts(eos_token_id=rows[0][4], max_new_tokens=10)


def test_beam_texts_are_theirs(published):
    """All four of a beam, best first.

    Theirs divide by a length that leaves the end token out, and count an end only among the best W
    candidates. Of texts of one fixed length, with no length penalty, both rank by the same sum.
    """
    fixed = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    published.compare_texts(eos_token_id=None, max_new_tokens=8, **fixed)
    published.compare_texts(eos_token_id=7, min_new_tokens=6, max_new_tokens=6, **fixed)


def test_what_is_written_is_what_was_read(case, tmp_path):
    if case.cls.__name__ == "GPT2Model":
        case.compare_tensors()
    else:
        case.compare_export(tmp_path / "out")


def test_stored_masks_and_the_head_s_copy_are_no_weights(published):
    prefix = "transformer."
    assert all(name.startswith(prefix) for name in published.tensors)
    extra = {
        f"{prefix}h.0.attn.bias": torch.ones(1, 1, 24, 24),
        f"{prefix}h.1.attn.masked_bias": torch.tensor(-1e4),
        "lm_head.weight": published.tensors[f"{prefix}wte.weight"].clone(),
    }
    expected = published.table.to_ours(published.tensors, where="there")
    found = published.table.to_ours({**published.tensors, **extra}, where="there")
    assert found.keys() == expected.keys()
    with pytest.raises(ModelError, match=r"unknown: transformer\.h\.0\.attn\.extra"):
        published.table.to_ours(
            {**published.tensors, f"{prefix}h.0.attn.extra": torch.ones(1)}, where="there"
        )
    with pytest.raises(ModelError, match=r"lm_head\.weight differs"):
        published.table.to_ours(
            {**published.tensors, "lm_head.weight": torch.ones(50, 24)}, where="there"
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("activation_function", "mish"),
        ("n_embd", "24"),
        ("n_layer", True),
        ("resid_pdrop", 1.5),
        ("n_head", 5),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(key, value):
    with pytest.raises(ModelError) as caught:
        gpt2.read_config({**SIZES, key: value}, where="there/config.json")
    named = {"resid_pdrop": "dropout", "n_head": "num_heads"}.get(key, key)
    assert named in str(caught.value)
    assert "there/config.json" in str(caught.value)


def changed(spec, **attention):
    block = spec.decoder.block
    updated = block.replace(self_attention=block.self_attention.model_copy(update=attention))
    decoder = spec.decoder.with_block(updated)
    return CausalLMSpec.parse(spec.model_copy(update={"decoder": decoder}).plain())


def test_only_models_like_it_fit():
    spec = gpt2.read_config(SIZES, where="there")
    assert gpt2.fits(spec)
    assert not llama.fits(spec)
    assert gpt2.fits(changed(spec, mask=AllOf(parts=(Causal(), SameSegment()))))
    assert gpt2.fits(changed(spec, num_kv_heads=3, head_width=8, dropout=0.3))
    assert not gpt2.fits(changed(spec, mask=AllOf(parts=(Causal(), Window(size=3)))))
    assert not gpt2.fits(changed(spec, num_kv_heads=1))
    assert not gpt2.fits(changed(spec, bias=False))
    assert not gpt2.fits(changed(spec, scale=0.5))
    assert not gpt2.fits(spec.model_copy(update={"output_bias": True}))
