"""Augmentation: nothing at zero strength, a function of the number alone, and what each does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.corpus_spec import AugmentSpec
from heedful.data.encoded_images import ERASED_AREA, Augmentation, draws

ALL = AugmentSpec(shift=2, rotate=20, scale=0.2, flip=True, erase=0.5)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def images(count: int, channels: int = 1, side: int = 9, seed: int = 0) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed)
    shape = (count, channels, side, side)
    return torch.randint(0, 256, shape, generator=numbers, dtype=torch.uint8)


def changed(spec: AugmentSpec, x: torch.Tensor, *, seed: int = 1, epoch: int = 0, first: int = 0):
    augmentation = Augmentation(spec, seed, (7.0,) * x.shape[1])
    return augmentation(x, np.arange(first, first + len(x)), epoch)


def test_zero_strength_changes_nothing() -> None:
    x = images(5, 3)
    assert torch.equal(changed(AugmentSpec(), x), x.float())


@settings(max_examples=25)
@given(
    numbers=st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True),
    part=st.integers(0, 39),
    epoch=st.integers(0, 10**4),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_image_is_changed_alike_in_any_company(numbers, part, epoch, seed) -> None:
    x = images(len(numbers), side=12)
    indices = np.array(numbers)
    augmentation = Augmentation(ALL, seed, (7.0,))
    whole = augmentation(x, indices, epoch)
    part %= len(numbers)
    assert torch.equal(augmentation(x[part : part + 1], indices[[part]], epoch)[0], whole[part])
    order = np.argsort(numbers)
    assert torch.equal(augmentation(x[order], indices[order], epoch), whole[order])
    assert float(whole.min()) >= 0
    assert float(whole.max()) <= 255


def test_seed_epoch_and_number_each_matter() -> None:
    x = images(1).expand(50, 1, 9, 9)
    found = changed(ALL, x)
    assert len(torch.unique(found.flatten(1), dim=0)) == 50
    for other in ({"seed": 2}, {"epoch": 1}, {"first": 50}):
        same = (changed(ALL, x, **other) == found).flatten(1).all(1)
        assert int(same.sum()) == 0, other


def test_draws_are_even_and_unrelated() -> None:
    found = draws(3, 4, np.arange(20_000), 5)
    assert found.min() >= 0
    assert found.max() < 1
    assert np.abs(found.mean(0) - 0.5).max() < 0.01
    assert np.abs(found.var(0) - 1 / 12).max() < 0.002
    together = np.corrcoef(np.concatenate([found[1:].T, found[:-1].T]))
    assert np.abs(together - np.eye(10)).max() < 0.03
    assert not np.intersect1d(found, draws(3, 5, np.arange(20_000), 5)).size
    assert np.array_equal(draws(3, 4, np.array([7]), 5)[0], found[7])


def test_a_shift_moves_whole_pixels_and_black_comes_in() -> None:
    x = images(60, side=6)
    found = changed(AugmentSpec(shift=2), x)
    padded = torch.nn.functional.pad(x.float(), (2, 2, 2, 2))
    seen = set()
    for number in range(len(x)):
        fits = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if torch.allclose(
                padded[number, :, down : down + 6, right : right + 6], found[number], atol=1e-3
            )
        ]
        assert len(fits) == 1
        seen.update(fits)
    assert len(seen) > 20  # of 25


def test_a_mirror_turns_half_of_them() -> None:
    x = images(400)
    found = changed(AugmentSpec(flip=True), x)
    turned = (found == x.float().flip(-1)).flatten(1).all(1)
    kept = (found == x.float()).flatten(1).all(1)
    assert bool((turned ^ kept).all())
    assert 160 < int(turned.sum()) < 240


def centre_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the light is, in pixels right of and below the middle."""
    at = torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    total = x.sum((1, 2, 3))
    return (x * at).sum((1, 2, 3)) / total, (x * at[:, None]).sum((1, 2, 3)) / total


def test_turning_and_scaling_are_about_the_middle() -> None:
    x = torch.zeros(200, 1, 33, 33, dtype=torch.uint8)
    x[:, :, 14:19, 24:29] = 200  # a square of light, 10 right of the middle
    right, down = centre_of(changed(AugmentSpec(rotate=30), x))
    angle = torch.rad2deg(torch.atan2(down, right))
    assert float(angle.abs().max()) < 30.5
    assert float(angle.min()) < -25
    assert float(angle.max()) > 25
    torch.testing.assert_close(
        torch.hypot(right, down), torch.full((200,), 10.0), atol=0.05, rtol=0
    )

    scaled = changed(AugmentSpec(scale=0.2), x)
    right, down = centre_of(scaled)
    assert float(down.abs().max()) < 0.05
    assert 7.9 < float(right.min()) < 8.5
    assert 11.5 < float(right.max()) < 12.1
    # What is twice as far away is twice as wide and twice as high.
    light = scaled.sum((1, 2, 3)) / (25 * 200)
    torch.testing.assert_close(light.sqrt(), right / 10, atol=0.04, rtol=0)


def test_erasing_hides_a_rectangle_of_some_of_them() -> None:
    x = images(300, 3, 16).clamp(min=8)
    found = changed(AugmentSpec(erase=0.4), x)
    hidden = (found == 7.0).all(1)
    assert torch.equal(found[:, 0][~hidden], x[:, 0].float()[~hidden])
    areas = hidden.sum((1, 2))
    some = areas > 0
    assert 90 < int(some.sum()) < 150
    for picture in hidden[some]:
        rows, columns = picture.any(1).nonzero(), picture.any(0).nonzero()
        height, width = (int(at.max() - at.min()) + 1 for at in (rows, columns))
        assert height * width == int(picture.sum())
    share = areas[some] / 256
    assert float(share.mean()) == pytest.approx(sum(ERASED_AREA) / 2, abs=0.03)
    assert float(share.max()) < ERASED_AREA[1] + 0.06
