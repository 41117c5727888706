"""Small models of every class, made without training, and a model whose attention is dictated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from heedful.inspect import Subject
from heedful.models.build import build_model
from heedful.models.family import CausalLMSpec, EncoderSpec, VisionSpec
from heedful.models.shape import TranslatorShape
from heedful.text.pair import train_pair
from heedful.text.spec import TokenizerSpec

ALPHABET = "abcdefgh ijklmnop"
SHAPE = {
    "width": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "num_heads": 4,
    "feedforward": 32,
    "max_length": 32,
}


def tokenizers():
    return train_pair(TokenizerSpec(kind="characters"), [ALPHABET] * 3, [ALPHABET] * 3)


def made(spec):
    """A model in which no tensor is at its neutral start."""
    torch.manual_seed(0)
    model = build_model(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def translator(**changes):
    pair = tokenizers()
    shape = TranslatorShape.parse({**SHAPE, **changes})
    return Subject(made(shape.expand(pair.source.size, pair.target.size)), pair)


def stack(*, causal=False, **changes):
    attention = {"num_heads": 4}
    if causal:
        attention["mask"] = {"kind": "causal"}
    block = {"self_attention": attention, "feedforward": {"width": 24}, **changes.pop("block", {})}
    return {"num_layers": 2, "block": block, **changes}


def causal_lm(**changes):
    pair = tokenizers()
    pre = {
        "block": {"norm_placement": "pre", "norm": {"kind": "rms"}},
        "final_norm": {"kind": "rms"},
    }
    values = {"width": 16, "vocabulary": pair.source.size, "max_length": 24}
    spec = CausalLMSpec.parse({**values, "decoder": stack(causal=True, **pre), **changes})
    return Subject(made(spec), pair)


def encoder(heads=({"kind": "masked_lm"},)):
    pair = tokenizers()
    values = {"width": 16, "vocabulary": pair.source.size, "max_length": 24, "heads": heads}
    return Subject(made(EncoderSpec.parse({**values, "encoder": stack()})), pair)


def vision():
    values = {"width": 16, "image_size": 12, "patch_size": 4, "num_classes": 3}
    return Subject(made(VisionSpec.parse({**values, "encoder": stack()})))


@pytest.fixture(scope="session")
def toys():
    return SimpleNamespace(
        translator=translator, causal_lm=causal_lm, encoder=encoder, vision=vision, stack=stack
    )
