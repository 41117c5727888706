"""Pictures from noise: the steps and guidance by hand, and no picture depends on another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.data.noisy_images import noise_of
from heedful.errors import ConfigError, DataError
from heedful.models.images.denoiser import Denoiser
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import denoiser_spec
from heedful.pipelines.image_drawing import DrawingPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

SHAPE = {"width": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 24}
TOKENIZER = train_tokenizer(TokenizerSpec(kind="characters"), ["a one", "a two"])


def pipeline(channels: int = 1) -> DrawingPipeline:
    shape = TranslatorShape.parse({**SHAPE, "norm_placement": "pre"})
    sizes = {"image_size": 4, "patch_size": 2, "channels": channels}
    spec = denoiser_spec(shape, TOKENIZER.size, 8, **sizes, words=("a", "one", "two"))
    torch.manual_seed(2)
    model = Denoiser(spec).eval()
    torch.nn.init.normal_(model.projection.weight, std=0.2)
    return DrawingPipeline(model, TOKENIZER)


@torch.no_grad()
@pytest.mark.parametrize("guidance", [0.0, 1.0, 3.0])
def test_steps_and_guidance_by_hand(guidance: float) -> None:
    drawer = pipeline()
    model = drawer.model
    (drawn,) = drawer.draw(["a two"], steps=3, guidance=guidance, seed=5, first=7)
    x = torch.from_numpy(noise_of(5, np.array([7]), 16)).float().view(1, 1, 4, 4)
    words = [*TOKENIZER.encode("a two"), TOKENIZER.eos]
    for step in range(3):
        both = []
        for ids in (words, [TOKENIZER.eos]):
            caption, places = torch.tensor([ids]), torch.arange(len(ids))[None]
            both.append(model(x, torch.tensor([step / 3]), caption, places))
        x = x + (both[1] + guidance * (both[0] - both[1])) / 3
    expected = ((x[0, 0] + 1) * 127.5).round().clamp(0, 255).numpy()
    assert np.abs(drawn.astype(int) - expected).max() <= 1


def test_a_picture_does_not_depend_on_other_captions_or_batches() -> None:
    drawer = pipeline(channels=3)
    captions = ["a one", "a two", "", "a two"]
    drawn = drawer.draw(captions, steps=2)
    assert [each.shape for each in drawn] == [(4, 4, 3)] * 4
    alone = [drawer.draw([each], steps=2, first=n)[0] for n, each in enumerate(captions)]
    smaller = drawer.draw(captions, steps=2, batch_size=3)
    for one, *others in zip(drawn, alone, smaller, strict=True):
        assert all(np.abs(one.astype(int) - other).max() <= 1 for other in others)
    assert not np.array_equal(drawn[1], drawn[3])  # another number, another noise
    again, other = (drawer.draw(captions, steps=2, seed=seed) for seed in (1, 2))
    assert np.array_equal(again[0], drawn[0])
    assert not np.array_equal(other[0], drawn[0])
    assert drawer.draw([]) == []


def test_what_cannot_be_drawn_is_told() -> None:
    drawer = pipeline()
    with pytest.raises(DataError, match=r"caption 2: .* the word 'three'\. Use its words: a, one"):
        drawer.draw(["a one", "a three"])
    with pytest.raises(DataError, match="captions is a single string"):
        drawer.draw("a one")
    for name, value in (
        ("steps", 0),
        ("steps", 1001),
        ("guidance", -1.0),
        ("guidance", float("nan")),
        ("batch_size", 0),
    ):
        with pytest.raises(ConfigError, match=f"{name} = "):
            drawer.draw(["a one"], **{name: value})
