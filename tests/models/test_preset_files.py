from __future__ import annotations

import pytest
import torch

from heedful.errors import ModelError
from heedful.models.cost import count_parameters, parameters_by_module
from heedful.models.preset_files import (
    describe_preset,
    has_spec,
    preset_names,
    published_parameters,
    read_preset,
    read_preset_spec,
)
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec


def test_every_preset_builds_a_spec():
    assert {"tiny", "small", "transformer-base", "transformer-big"} <= set(preset_names())
    for name in preset_names():
        assert describe_preset(name)
        if has_spec(name):
            assert read_preset_spec(name).plain()
            continue
        settings = read_preset(name)
        assert "description" not in settings
        assert published_parameters(name) is None
        translator_spec(TranslatorShape.parse(settings["model"]), 100, 100)


@pytest.mark.parametrize("name", [name for name in preset_names() if has_spec(name)])
def test_published_models_have_their_published_size(name):
    assert count_parameters(read_preset_spec(name)) == published_parameters(name)


def test_a_count_needs_no_memory_and_draws_nothing():
    state = torch.random.get_rng_state()
    spec = read_preset_spec("gpt3")
    counts = parameters_by_module(spec)
    assert sum(counts.values()) == published_parameters("gpt3") > 170e9
    assert torch.equal(state, torch.random.get_rng_state())
    width = spec.width
    assert counts["embedding"] == width * spec.vocabulary


def test_a_size_of_translators_is_no_published_model():
    with pytest.raises(ModelError, match="gpt2"):
        read_preset_spec("tiny")


def test_tiny_is_the_published_model():
    shape = TranslatorShape.parse(read_preset("tiny")["model"])
    assert (shape.encoder_layers, shape.decoder_layers, shape.width) == (4, 4, 128)
    assert (shape.feedforward, shape.num_heads, shape.share_embeddings) == (256, 4, "all")


def test_a_misspelt_preset_is_corrected():
    with pytest.raises(ModelError, match="transformer-base"):
        read_preset("transformer_base")
