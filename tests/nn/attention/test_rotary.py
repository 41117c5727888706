"""Rotary embedding against loops written from the papers' formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import ConfigError
from heedful.nn.positions import Rotary
from heedful.nn.spec import RotarySpec


def turn(vector: np.ndarray, position: float, angles: list[float], layout: str) -> np.ndarray:
    """Rotate each pair of channels by position × angle, as complex numbers."""
    half = len(angles)
    result = vector.copy()
    for i, angle in enumerate(angles):
        a, b = (2 * i, 2 * i + 1) if layout == "pairs" else (i, i + half)
        turned = complex(vector[a], vector[b]) * np.exp(1j * position * angle)
        result[a], result[b] = turned.real, turned.imag
    return result


def check(spec: RotarySpec, width: int, angles: list[float], gain: float = 1.0) -> None:
    positions = torch.tensor([[0, 1, 5, 300], [7, 2, 1000, 3]])
    x = torch.randn(2, 3, 4, width)
    found = Rotary(width, spec)(x, positions)
    rotated = 2 * len(angles)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                vector = x[b, h, i].numpy().astype(np.float64)
                expected = vector.copy()
                expected[:rotated] = gain * turn(
                    vector[:rotated], float(positions[b, i]), angles, spec.layout
                )
                np.testing.assert_allclose(found[b, h, i].numpy(), expected, atol=3e-4)


def plain(width: int, base: float = 10_000.0) -> list[float]:
    return [1 / base ** (2 * i / width) for i in range(width // 2)]


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_pairs_turn_by_position_times_frequency(layout: Any) -> None:
    check(RotarySpec(layout=layout), 8, plain(8))


def test_another_base() -> None:
    check(RotarySpec(base=500.0), 8, plain(8, 500.0))


def test_partial_width_leaves_the_rest_untouched() -> None:
    check(RotarySpec(width=4), 10, plain(4))


def test_linear_scaling_divides_positions() -> None:
    check(RotarySpec(scaling="linear", factor=4.0), 8, [f / 4 for f in plain(8)])


def test_ntk_scaling_raises_the_base_so_that_the_slowest_pair_is_divided() -> None:
    angles = plain(8, 10_000.0 * 4.0 ** (8 / 6))
    check(RotarySpec(scaling="ntk", factor=4.0), 8, angles)
    assert angles[0] == plain(8)[0]
    assert angles[-1] == pytest.approx(plain(8)[-1] / 4)


def yarn_angles(width: int, base: float, factor: float, length: int) -> list[float]:
    """YaRN with beta 32 and 1, in the form of the authors' code: a ramp over channel pairs."""
    lengths = [2 * math.pi * base ** (2 * i / width) for i in range(width // 2)]

    def at_turns(turns: float) -> float:  # the (fractional) pair with that many turns
        return width / 2 * math.log(length / (2 * math.pi * turns), base)

    low, high = max(0, math.floor(at_turns(32))), min(width - 1, math.ceil(at_turns(1)))
    angles = []
    for i, wavelength in enumerate(lengths):
        stretched = min(1.0, max(0.0, (i - low) / (high - low)))
        angles.append(
            (1 - stretched) * 2 * math.pi / wavelength
            + stretched * 2 * math.pi / (wavelength * factor)
        )
    return angles


def test_yarn() -> None:
    spec = RotarySpec(scaling="yarn", factor=8.0, original_length=512)
    angles = yarn_angles(64, 10_000.0, 8.0, 512)
    check(spec, 64, angles, gain=0.1 * math.log(8.0) + 1.0)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    spec = RotarySpec(scaling="yarn", factor=8.0, original_length=512)
    for found, before in zip(Rotary(64, spec).frequencies, plain(64), strict=True):
        turns = 512 * before / (2 * math.pi)
        if turns > 32:
            assert found == pytest.approx(before)
        elif turns < 1 / 1.5:  # past the pair to which the ramp's end is rounded
            assert found == pytest.approx(before / 8)
        else:
            assert before / 8 <= found <= before


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "yarn"])
def test_scores_depend_on_the_difference_of_positions(scaling: Any) -> None:
    torch.manual_seed(0)
    rotary = Rotary(16, RotarySpec(scaling=scaling, factor=2.0, original_length=64))
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at_query: int, at_key: int) -> float:
        turned = rotary(q, torch.tensor([[at_query]])), rotary(k, torch.tensor([[at_key]]))
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


def test_the_type_is_kept_and_the_angles_are_not_rounded_to_it() -> None:
    rotary = Rotary(8, RotarySpec())
    x = torch.randn(1, 1, 1, 8, dtype=torch.bfloat16)
    found = rotary(x, torch.tensor([[1001]]))
    assert found.dtype == torch.bfloat16
    exact = rotary(x.float(), torch.tensor([[1001]]))
    assert torch.equal(found, exact.to(torch.bfloat16))


def test_padding_stays_finite() -> None:
    assert Rotary(8, RotarySpec())(torch.randn(1, 1, 1, 8), torch.tensor([[-1]])).isfinite().all()


@pytest.mark.parametrize("width", [3, 10])
def test_widths_that_cannot_be_rotated(width: int) -> None:
    with pytest.raises(ConfigError, match="cannot be rotated"):
        Rotary(8, RotarySpec(width=width))


def by_wavelength_angles(width: int, factor: float, length: int, betas: tuple[float, float]):
    """LLaMA 3.1 in words: short waves stay, long ones are stretched, a blend between."""
    fast, slow = betas
    angles = []
    for angle in plain(width, 500_000.0):
        wavelength = 2 * math.pi / angle
        if wavelength < length / fast:
            angles.append(angle)
        elif wavelength > length / slow:
            angles.append(angle / factor)
        else:
            kept = (length / wavelength - slow) / (fast - slow)
            angles.append(kept * angle + (1 - kept) * angle / factor)
    return angles


@pytest.mark.parametrize(
    ("factor", "length", "betas"), [(8.0, 8192, (4.0, 1.0)), (32.0, 100, (6.0, 0.5))]
)
def test_by_wavelength(factor: float, length: int, betas: tuple[float, float]) -> None:
    angles = by_wavelength_angles(32, factor, length, betas)
    before = plain(32, 500_000.0)
    assert angles[0] == before[0]
    assert angles[-1] == before[-1] / factor
    assert any(b / factor < a < b for a, b in zip(angles, before, strict=True))
    spec = RotarySpec(
        base=500_000.0,
        scaling="by_wavelength",
        factor=factor,
        original_length=length,
        beta_fast=betas[0],
        beta_slow=betas[1],
    )
    check(spec, 32, angles)


def test_a_temperature_of_ones_own() -> None:
    spec = RotarySpec(scaling="yarn", factor=8.0, original_length=512, temperature=1.5)
    check(spec, 64, yarn_angles(64, 10_000.0, 8.0, 512), gain=1.5)
