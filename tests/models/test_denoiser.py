"""The denoiser of images: what its answers depend on."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ConfigError, DataError
from heedful.models.images.denoiser import Denoiser
from heedful.models.images.vision_spec import DenoiserSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import denoiser_spec
from heedful.nn.patches import cut, joined

SHAPE = {"width": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "feedforward": 24}
IMAGES, TIMES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)), [0.2, 0.7]
CAPTIONS = torch.tensor([[5, 6, 3], [7, 3, 0]])
PLACES = torch.tensor([[0, 1, 2], [0, 1, -1]])


def spec(size: int = 8, patch: int = 4, **changes: object) -> DenoiserSpec:
    shape = TranslatorShape.parse({**SHAPE, "norm_placement": "pre", "dropout": 0.0, **changes})
    sizes = {"image_size": size, "patch_size": patch, "channels": 1}
    return denoiser_spec(shape, 12, 5, **sizes, words=())


@pytest.fixture
def model() -> Denoiser:
    torch.manual_seed(0)
    model = Denoiser(spec()).eval()
    # A new model answers 0, so that nothing would depend on anything.
    torch.nn.init.normal_(model.projection.weight, std=0.3)
    return model


def answers(model: Denoiser, **changes: torch.Tensor) -> torch.Tensor:
    values = {
        "images": IMAGES,
        "times": torch.tensor(TIMES),
        "captions": CAPTIONS,
        "caption_positions": PLACES,
    }
    with torch.no_grad():
        return model(**(values | changes))


def test_joined_patches_are_the_image() -> None:
    images = torch.randn(3, 2, 12, 12)
    assert torch.equal(joined(cut(images, 4), 4, 2), images)


def test_a_new_model_answers_zero() -> None:
    assert not answers(Denoiser(spec())).any()


def test_an_answer_depends_on_time_caption_and_every_patch(model: Denoiser) -> None:
    usual = answers(model)
    assert usual.shape == IMAGES.shape
    later = answers(model, times=torch.tensor([0.2, 0.75]))
    assert torch.equal(later[0], usual[0])
    assert not torch.allclose(later[1], usual[1])
    for captions in (CAPTIONS.flip(0), CAPTIONS[:, [1, 0, 2]]):  # words, and their order
        assert not torch.allclose(answers(model, captions=captions)[0], usual[0])
    # The first patch sees the last one, and the last one the first.
    for row, column in ((0, 7), (7, 0)):
        changed = IMAGES.clone()
        changed[0, 0, row, row] += 1.0
        other = answers(model, images=changed)
        assert not torch.allclose(other[0, 0, column, column], usual[0, 0, column, column])
        assert torch.equal(other[1], usual[1])


def test_padding_and_encoding_once_change_nothing(model: Denoiser) -> None:
    usual = answers(model)
    filled = torch.where(PLACES < 0, 9, CAPTIONS)
    assert torch.equal(answers(model, captions=filled), usual)
    with torch.no_grad():
        read = model.decoder.read(model.encode(CAPTIONS, PLACES))
        again = model.velocity(IMAGES, torch.tensor(TIMES), PLACES, read)
    assert torch.equal(again, usual)


def test_what_does_not_fit_is_told(model: Denoiser) -> None:
    with pytest.raises(DataError, match="The images are 1 × 4 × 4; the model takes 1 × 8 × 8"):
        answers(model, images=IMAGES[..., :4, :4])
    with pytest.raises(ConfigError, match="Patches of 3 pixels do not fill a side of 8"):
        spec(patch=3)
    recurrent = TranslatorShape.parse({"width": 16, "recurrent": {}})
    with pytest.raises(ConfigError, match="A denoiser is made of attention blocks"):
        denoiser_spec(recurrent, 12, 5, image_size=8, patch_size=4, channels=1, words=())
    plain = spec().plain()
    with pytest.raises(ConfigError, match="image_size 8 is not a multiple of patch_size 3"):
        DenoiserSpec.parse({**plain, "patch_size": 3})
    with pytest.raises(ConfigError, match="the decoder's block needs cross_attention"):
        DenoiserSpec.parse({**plain, "decoder": plain["encoder"]})
    with pytest.raises(ConfigError, match="an encoder has no memory to read"):
        DenoiserSpec.parse({**plain, "encoder": plain["decoder"]})
