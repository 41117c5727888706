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
    if ours.spec.reads == "images":
        images = torch.randn(1, 3, 12, 12)
        expected, inputs = theirs(pixel_values=images, output_attentions=True), (images,)
    elif ours.spec.reads == "pairs":
        expected = theirs(input_ids=TEXT, decoder_input_ids=TARGET, output_attentions=True)
        inputs = (TEXT, places(TEXT), TARGET, places(TARGET))
    else:
        expected, inputs = theirs(input_ids=TEXT, output_attentions=True), (TEXT, places(TEXT))
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
