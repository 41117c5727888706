"""BART against transformers: learned positions with unused rows, a bias of the logits, frames."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ModelError
from heedful.interop.architectures.translators.bart import ARCHITECTURE as bart
from heedful.models.build import canonical_weights

SIZES = {
    "vocab_size": 50,
    "d_model": 16,
    "max_position_embeddings": 30,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
}


def theirs(checks, **changes):
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    config = BartConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = BartForConditionalGeneration(config)
    if not config.tie_word_embeddings:  # then transformers unties the tables of the inputs too
        for side in (model.model.encoder, model.model.decoder):
            side.embed_tokens.weight = model.model.shared.weight
    checks.shake(model)
    with torch.no_grad():
        model.model.shared.weight *= 1.5  # so that greedy search is not of one mind
    return model


@pytest.mark.parametrize(
    ("changes", "forced"),
    [
        ({}, ()),
        ({"scale_embedding": True, "activation_function": "gelu_new"}, (0,)),
        ({"tie_word_embeddings": False}, ()),
    ],
    ids=["as published", "scaled, forced beginning", "a head of its own"],
)
def test_same_answers_and_the_way_back(checks, tmp_path, changes, forced):
    model = theirs(checks, **changes)
    config, tensors = checks.saved(model, tmp_path / "theirs")
    ours = checks.imported(bart, config, tensors)
    assert ours.spec.max_length == 28  # <s> and </s> take two of the positions
    checks.same_states(model, ours, pad=1)
    checks.same_steps(model, ours, pad=1)
    checks.same_searches(model, ours, pad=1, bos=2, eos=2, forced=forced)
    checks.same_after_export(bart, model, ours, tensors, tmp_path / "ours")


def test_every_position_up_to_the_last(checks, tmp_path):
    model = theirs(checks)
    ours = checks.imported(bart, *checks.saved(model, tmp_path))
    checks.same_states(model, ours, pad=1, sources=(30, 9), targets=(30, 12))
    with pytest.raises(ModelError, match="Position 30 lies past"):
        ours.encode(*checks.padded((31,), 50, 1))


def test_files_of_the_model_without_its_head(checks, tmp_path):
    config, tensors = checks.saved(theirs(checks), tmp_path)
    whole = canonical_weights(checks.imported(bart, config, tensors))
    bare = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    bare["encoder.version"] = torch.tensor([3.0])
    bare["encoder.embed_tokens.weight"] = bare["shared.weight"].clone()
    found = canonical_weights(checks.imported(bart, config, bare))
    assert whole.pop("output_bias").all()
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in found)


def test_without_a_bias_of_the_logits(checks, tmp_path):
    model = theirs(checks)
    model.final_logits_bias.zero_()
    config, tensors = checks.saved(model, tmp_path / "theirs")
    del tensors["final_logits_bias"]
    ours = checks.imported(bart, config, tensors)
    assert ours.output_bias is None
    checks.same_states(model, ours, pad=1)
    checks.same_after_export(bart, model, ours, tensors, tmp_path / "ours")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"activation_function": "tanh"}, "activation_function"),
        ({"normalize_before": True}, "normalize_before = true"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm = true"),
        ({"normalize_embedding": False}, "normalize_embedding = false"),
        ({"static_position_embeddings": True}, "static_position_embeddings = true"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop"),
        ({"decoder_attention_heads": 3}, "not a multiple of num_heads 3"),
        ({"max_position_embeddings": 2}, "max_length"),
        ({"vocab_size": "50"}, "vocab_size"),
    ],
)
def test_what_cannot_be_is_named(changes, told):
    with pytest.raises(ModelError, match=told) as caught:
        bart.read_config(SIZES | changes, where="config.json")
    assert "config.json" in str(caught.value)


def test_other_specs_do_not_fit():
    spec = bart.read_config(SIZES, where="")
    assert bart.fits(spec)
    positions = spec.embedding.positions.model_copy(update={"unused_rows": 0})
    for changes in (
        {"output_scale": 0.5},
        {"share_embeddings": "none"},
        {"embedding": spec.embedding.model_copy(update={"positions": positions})},
        {"decoder": spec.decoder.model_copy(update={"final_norm": spec.encoder.block.norm})},
    ):
        assert not bart.fits(spec.model_copy(update=changes))
