"""The autoencoder of images: its codes by hand, its gradient, and what its spec refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError
from heedful.models.cost import image_work
from heedful.models.images.autoencoder import Autoencoder, nearest
from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.models.model_spec import parse_spec
from heedful.nn.patches import cut, denormalized, joined, normalized
from heedful.nn.pixel_spec import PixelSpec

STACK = {
    "num_layers": 1,
    "block": {
        "norm_placement": "pre",
        "self_attention": {"num_heads": 2},
        "feedforward": {"width": 24},
    },
    "final_norm": {},
}


def spec(**changes) -> AutoencoderSpec:
    values = {
        "kind": "autoencoder",
        "width": 16,
        "image_size": 12,
        "patch_size": 4,
        "channels": 2,
        "encoder": STACK,
        "decoder": STACK,
        "codes": 20,
        "code_width": 4,
        "pixels": {"mean": [0.5] * 2, "std": [0.25] * 2},
        **changes,
    }
    return parse_spec(values, where="a test")


def build(seed: int = 0, **changes) -> Autoencoder:
    torch.manual_seed(seed)
    return Autoencoder(spec(**changes)).eval()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))
def test_patches_are_put_together_where_they_were_cut(
    batch: int, channels: int, side: int, patch: int
) -> None:
    images = torch.randn(batch, channels, side * patch, side * patch)
    assert torch.equal(joined(cut(images, patch), channels, patch), images)


@given(st.integers(0, 255), st.floats(0, 1), st.floats(0.01, 1))
def test_normalised_pixels_become_the_bytes_they_were(value: int, mean: float, std: float) -> None:
    pixels = PixelSpec(mean=(mean,), std=(std,))
    images = torch.full((1, 1, 2, 2), value, dtype=torch.uint8)
    assert torch.equal(denormalized(normalized(images, pixels), pixels), images)


def test_pixels_beyond_black_and_white_become_black_and_white() -> None:
    pixels = PixelSpec(mean=(0.5,), std=(0.5,))
    assert denormalized(torch.tensor([[[[-9.0, 9.0]]]]), pixels).tolist() == [[[[0, 255]]]]


@torch.no_grad()
def test_each_patch_gets_the_nearest_code_and_codes_give_the_image() -> None:
    model, images = build(), torch.randn(3, 2, 12, 12)
    made = model(images)
    assert made.images.shape == images.shape
    assert made.codes.shape == (3, 9)
    distances = (made.vectors[:, :, None] - made.table).square().sum(-1)
    assert torch.equal(made.codes, distances.argmin(-1))
    assert torch.equal(made.vectors.norm(dim=-1).round(decimals=5), torch.ones(3, 9))
    assert torch.equal(model.encode(images), made.codes)
    torch.testing.assert_close(model.decode(made.codes), made.images)
    for number in range(3):  # of an image alone
        alone = model(images[number : number + 1])
        assert torch.equal(alone.codes[0], made.codes[number])
        torch.testing.assert_close(alone.images[0], made.images[number])


def test_the_length_of_a_code_changes_nothing() -> None:
    model, codes = build(), torch.arange(9)[None]
    before = model.decode(codes)
    with torch.no_grad():
        model.codebook.weight.mul_(3.0)
    torch.testing.assert_close(model.decode(codes), before)


def test_the_gradient_passes_straight_through_the_codes() -> None:
    model, images = build(), torch.randn(2, 2, 12, 12)
    made = model(images)
    (straight,) = torch.autograd.grad(made.images.square().sum(), made.vectors)
    # The gradient with regard to the vectors of the codes themselves.
    chosen = made.table[made.codes].detach().requires_grad_()
    (own,) = torch.autograd.grad(model.draw(chosen).square().sum(), chosen)
    torch.testing.assert_close(straight, own)
    assert straight.abs().sum() > 0


def test_the_first_of_equal_codes_is_taken() -> None:
    assert nearest(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0], [1, 0]])) == 1


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="The images are 2 × 8 × 8; the model takes 2 × 12 × 12"):
        build()(torch.zeros(1, 2, 8, 8))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patch_size": 5}, "image_size 12 is not a multiple of patch_size 5"),
        ({"channels": 3}, "a mean and std for each of 3 channels"),
        ({"codes": 1}, "'codes' = 1: must be at least 2"),
        ({"encoder": STACK | {"num_layers": 0}}, "num_layers"),
    ],
)
def test_specs_that_fit_no_image_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(**changes)


def test_its_work_is_that_of_its_matmuls() -> None:
    """The maps of patches, to codes and back, and to pixels, beside the stacks."""
    small, large = (image_work(spec(codes=codes)) for codes in (20, 30))
    assert large.output - small.output == 2 * 9 * 10 * 4
    maps = 2 * 9 * (32 * 16 + 16 * 4 + 4 * 16 + 16 * 32)
    block = 9 * 2 * (4 * 16 * 16 + 2 * 16 * 24)
    assert small.weights == maps + 2 * block
