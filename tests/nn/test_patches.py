"""Patches: against pixels picked one by one, and against a convolution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import DataError
from heedful.nn.patches import PatchEmbedding, cut, stretched


@given(
    batch=st.integers(0, 2),
    channels=st.integers(1, 3),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    side=st.integers(1, 4),
)
@settings(max_examples=30)
def test_patches_are_in_reading_order(batch, channels, rows, columns, side):
    size = (batch, channels, rows * side, columns * side)
    images = torch.arange(torch.Size(size).numel()).view(size)
    patches = cut(images, side)
    assert patches.shape == (batch, rows * columns, channels * side * side)
    for image, found in zip(images, patches, strict=True):
        for n, patch in enumerate(found):
            top, left = n // columns * side, n % columns * side
            expected = [
                image[c, top + y, left + x].item()
                for c in range(channels)
                for y in range(side)
                for x in range(side)
            ]
            assert patch.tolist() == expected


def test_embedding_equals_a_convolution():
    torch.manual_seed(0)
    module = PatchEmbedding(10, image_size=12, patch_size=4, channels=3)
    torch.nn.init.normal_(module.projection.bias)
    images = torch.randn(2, 3, 12, 12)
    kernel = module.projection.weight.view(10, 3, 4, 4)
    expected = torch.nn.functional.conv2d(images, kernel, module.projection.bias, stride=4)
    torch.testing.assert_close(
        module(images), expected.flatten(2).transpose(1, 2), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 3, 12, 8), (1, 1, 12, 12), (3, 12, 12)])
def test_images_of_another_size_are_refused(shape):
    module = PatchEmbedding(10, image_size=12, patch_size=4, channels=3)
    named = " × ".join(map(str, shape[1:]))
    with pytest.raises(DataError, match=f"are {named}; the model takes 3 × 12 × 12"):
        module(torch.zeros(shape))


def test_stretched_keeps_what_it_can():
    table = torch.randn(9, 5)
    assert torch.equal(stretched(table, 3, 3), table)
    even = torch.ones(9, 5)
    torch.testing.assert_close(stretched(even, 3, 7), torch.ones(49, 5))
    # A slope from left to right stays one from left to right.
    slope = torch.arange(4.0).repeat(4)[:, None]
    finer = stretched(slope, 4, 8).view(8, 8)
    assert (finer[:, 1:] >= finer[:, :-1]).all()
    torch.testing.assert_close(finer[0], finer[7])
