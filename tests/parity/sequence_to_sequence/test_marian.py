"""Marian against transformers: sinusoids in halves, any sharing of tables and head."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ModelError
from heedful.interop.architectures.translators.marian import ARCHITECTURE as marian
from heedful.models.build import canonical_weights

SIZES = {
    "vocab_size": 44,
    "d_model": 16,
    "max_position_embeddings": 40,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 43,
    "eos_token_id": 0,
    "decoder_start_token_id": 43,
}
SHARING = {
    "all": {},
    "inputs": {"tie_word_embeddings": False},
    "target": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47},
    "none": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 47,
        "tie_word_embeddings": False,
        "scale_embedding": False,
    },
}


def theirs(checks, **changes):
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(**{**SIZES, **changes}, attn_implementation="eager")
    model = MarianMTModel(config)
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        for side in (model.model.encoder, model.model.decoder):  # transformers unties these too
            side.embed_tokens.weight = model.model.shared.weight
    return checks.shake(model)


@pytest.mark.parametrize("share", SHARING)
def test_same_answers_and_the_way_back(checks, tmp_path, share):
    model = theirs(checks, **SHARING[share])
    config, tensors = checks.saved(model, tmp_path / "theirs")
    ours = checks.imported(marian, config, tensors)
    assert ours.spec.share_embeddings == share
    checks.same_states(model, ours, pad=43)
    checks.same_steps(model, ours, pad=43)
    checks.same_searches(model, ours, pad=43, bos=43, eos=0)
    checks.same_after_export(marian, model, ours, tensors, tmp_path / "ours")


def test_positions_as_far_as_theirs_go(checks, tmp_path):
    model = theirs(checks)
    ours = checks.imported(marian, *checks.saved(model, tmp_path))
    checks.same_states(model, ours, pad=43, sources=(40, 9), targets=(40, 12))


def test_stored_sinusoids_are_checked_and_not_kept(checks, tmp_path):
    model = theirs(checks)
    config, tensors = checks.saved(model, tmp_path)
    name = "model.encoder.embed_positions.weight"
    held = model.model.encoder.embed_positions.weight.detach().clone()
    ours = checks.imported(marian, config, tensors | {name: held})
    table = marian.table(ours.spec, [*tensors, name])
    assert torch.equal(table.to_theirs(canonical_weights(ours))[name], held)
    checks.imported(marian, config, tensors | {name: held.half()})
    with pytest.raises(ModelError, match="embed_positions"):
        checks.imported(marian, config, tensors | {name: held.flip(0)})
    with pytest.raises(ModelError, match="embed_positions"):
        checks.imported(marian, config, tensors | {name: held[:-1]})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"decoder_vocab_size": 45}, "decoder_vocab_size = 45"),
        ({"normalize_embedding": True}, "normalize_embedding = true"),
        ({"static_position_embeddings": False}, "static_position_embeddings = false"),
        ({"decoder_layerdrop": 0.2}, "decoder_layerdrop"),
        ({"d_model": 15}, "not a multiple of num_heads"),
        ({"encoder_layers": None}, "encoder_layers is missing"),
    ],
)
def test_what_cannot_be_is_named(changes, told):
    with pytest.raises(ModelError, match=told) as caught:
        marian.read_config(SIZES | changes, where="config.json")
    assert "config.json" in str(caught.value)


def test_other_specs_do_not_fit():
    spec = marian.read_config(SIZES, where="")
    assert marian.fits(spec)
    assert marian.fits(spec.model_copy(update={"output_bias": False}))
    positions = spec.embedding.positions.model_copy(update={"layout": "pairs"})
    for changes in (
        {"output_scale": 0.5},
        {"embedding": spec.embedding.model_copy(update={"positions": positions})},
        {"decoder": spec.decoder.model_copy(update={"final_norm": spec.encoder.block.norm})},
    ):
        assert not marian.fits(spec.model_copy(update=changes))
