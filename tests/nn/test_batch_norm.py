"""Batch normalisation and convolutions, by the formulas of the papers."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.nn.batch_norm import EPSILON, MOMENTUM, BatchNorm, NormedConvolution


def test_training_takes_the_batch_and_evaluation_the_running_statistics() -> None:
    torch.manual_seed(0)
    norm = BatchNorm(3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    mean, variance = torch.zeros(3), torch.ones(3)
    for _ in range(3):
        x = torch.randn(4, 3, 2, 5) * 3 + 1
        values = x.transpose(0, 1).flatten(1)  # [C, B·h·w]
        scale = norm.weight / (values.var(1, correction=0) + EPSILON).sqrt()
        expected = (x - values.mean(1)[:, None, None]) * scale[:, None, None]
        torch.testing.assert_close(norm(x), expected + norm.bias[:, None, None])
        mean += MOMENTUM * (values.mean(1) - mean)
        variance += MOMENTUM * (values.var(1) - variance)  # Bessel's correction, as in the paper
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_variance, variance)
    norm.eval()
    scale = norm.weight / (variance + EPSILON).sqrt()
    expected = (x - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
    torch.testing.assert_close(norm(x), expected)
    assert torch.equal(norm.running_mean, norm.running_mean.clone())
    # In evaluation an image's result is its own, whatever stands beside it.
    torch.testing.assert_close(norm(x)[:1], norm(x[:1]), rtol=0, atol=0)


@pytest.mark.parametrize(("kernel", "stride", "side"), [(3, 1, 7), (3, 2, 7), (1, 2, 8), (3, 2, 8)])
def test_a_convolution_sums_over_the_places_around(kernel: int, stride: int, side: int) -> None:
    torch.manual_seed(1)
    layer = NormedConvolution(2, 5, kernel, stride)
    layer.norm = torch.nn.Identity()  # type: ignore[assignment]
    x = torch.randn(3, 2, side, side)
    edge = kernel // 2
    padded = torch.zeros(3, 2, side + 2 * edge, side + 2 * edge)
    padded[:, :, edge : edge + side, edge : edge + side] = x
    places = range(0, side, stride)
    expected = torch.stack(
        [
            torch.einsum(
                "bcij,ocij->bo", padded[:, :, r : r + kernel, c : c + kernel], layer.weight
            )
            for r in places
            for c in places
        ],
        dim=-1,
    )
    found = layer(x)
    assert found.shape == (3, 5, layer.side(side), layer.side(side))
    torch.testing.assert_close(found.flatten(2), expected)
    multiplied = kernel * kernel * 2 * 5 * len(places) ** 2
    assert layer.work(layer.side(side)) == 2 * multiplied


def test_new_weights_have_the_variance_of_he() -> None:
    torch.manual_seed(2)
    weight = NormedConvolution(32, 64, 3).weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)
