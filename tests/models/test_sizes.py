from __future__ import annotations

import pytest

from heedful.errors import ModelError
from heedful.models.sizes import describe_preset, preset_names, read_preset
from heedful.models.spec import TranslatorShape


def test_every_preset_builds_a_spec():
    assert {"tiny", "small", "transformer-base", "transformer-big"} <= set(preset_names())
    for name in preset_names():
        settings = read_preset(name)
        assert "description" not in settings
        assert describe_preset(name)
        TranslatorShape.parse(settings["model"]).expand(100, 100)


def test_tiny_is_the_published_model():
    shape = TranslatorShape.parse(read_preset("tiny")["model"])
    assert (shape.encoder_layers, shape.decoder_layers, shape.width) == (4, 4, 128)
    assert (shape.feedforward, shape.num_heads, shape.share_embeddings) == (256, 4, "all")


def test_a_misspelt_preset_is_corrected():
    with pytest.raises(ModelError, match="transformer-base"):
        read_preset("transformer_base")
