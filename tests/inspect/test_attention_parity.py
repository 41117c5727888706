"""Attention of every architecture that can be read, against their own eager attention."""

from __future__ import annotations

import pytest
import torch

from heedful.inspect.subject import capture
from heedful.interop.architecture import MODEL_TYPES

TEXT, TARGET = torch.tensor([[5, 9, 30, 7, 22, 8]]), torch.tensor([[2, 6, 31, 11]])


def places(ids):
    return torch.arange(ids.shape[1])[None]


WITHOUT_ATTENTION = {"mamba", "mamba2", "rwkv"}


@pytest.mark.parametrize("name", sorted({*MODEL_TYPES} - WITHOUT_ATTENTION))
@torch.no_grad()
def test_attention_is_theirs(name, imported):
    theirs, ours = imported(name)
    images = torch.randn(1, 3, 12, 12)
    if ours.spec.reads == "images_and_texts":  # two models in one
        seen = theirs.vision_model(pixel_values=images, output_attentions=True)
        read = theirs.text_model(input_ids=TEXT, output_attentions=True)
        assert_alike(seen, ours.images, (images,))
        assert_alike(read, ours.texts, (TEXT, places(TEXT)))
    elif ours.spec.reads == "images":
        assert_alike(theirs(pixel_values=images, output_attentions=True), ours, (images,))
    elif ours.spec.reads == "sounds":
        frames = torch.randn(1, 20, 6)
        expected = theirs(
            input_features=frames.mT, decoder_input_ids=TARGET, output_attentions=True
        )
        at = torch.arange(10)[None]  # a state for two frames
        assert_alike(expected, ours, (frames, at, TARGET, places(TARGET)))
    elif ours.spec.reads == "pairs":
        expected = theirs(input_ids=TEXT, decoder_input_ids=TARGET, output_attentions=True)
        assert_alike(expected, ours, (TEXT, places(TEXT), TARGET, places(TARGET)))
    else:
        expected = theirs(input_ids=TEXT, output_attentions=True)
        assert_alike(expected, ours, (TEXT, places(TEXT)))


def assert_alike(expected, ours, inputs):
    """Their attention of all layers and ours of the same inputs."""
    found = capture(ours, inputs, ["**.weights"])
    if "encoder_attentions" in expected:
        kinds = {
            "encoder.{}.self": expected.encoder_attentions,
            "decoder.{}.self": expected.decoder_attentions,
            "decoder.{}.cross": expected.cross_attentions,
        }
    else:
        stack = "encoder" if hasattr(ours, "encoder") else "decoder"
        kinds = {f"{stack}.{{}}.self": expected.attentions}
    assert len(found) == 2 * len(kinds)
    for pattern, layers in kinds.items():
        for layer, weights in enumerate(layers):
            own = torch.from_numpy(found[f"{pattern.format(layer)}.weights"])
            assert weights.std() > 0.01
            torch.testing.assert_close(own, weights, rtol=1e-5, atol=1e-5)
