"""Rotary position embedding: queries and keys turned by their positions (Su 2021).

A score then depends on positions only through their difference. Three ways are known to reach past
the trained length: divide positions (Chen 2023), raise the base ("NTK-aware"), or divide only the
slow frequencies (YaRN, Peng 2023; by wavelength, LLaMA 3.1). Shapes: B batch, H heads, L length,
E head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heedful.errors import ConfigError
from heedful.nn.spec import RotarySpec


class Rotary(nn.Module):
    """Turns pairs of channels by angles proportional to the position. Nothing is learned.

    Args:
        width: head width E.
        spec: base, layout of the pairs, rotated width, scaling.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """

    def __init__(self, width: int, spec: RotarySpec) -> None:
        super().__init__()
        self.rotated = width if spec.width is None else spec.width
        if self.rotated % 2 or self.rotated > width:
            raise ConfigError(
                f"A head of width {width} cannot be rotated in {self.rotated} channels",
                remedy="Use an even rotary width, at most the width of a head",
            )
        self.spec = spec
        self.layout = spec.layout
        # Plain numbers: buffers would lose precision when the model is cast to bfloat16.
        self.frequencies = _frequencies(self.rotated, spec)
        self.temperature = _temperature(spec)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys.

        Args:
            x: [B, H, L, E].
            positions: [B, L] int64; what stands at −1 comes out arbitrary, but finite.

        Returns:
            [B, H, L, E] in the type of x. The temperature is applied to the rotated channels, so
            it acts once on queries and once on keys.
        """
        cosine, sine = (each[:, None] for each in self.waves(positions))
        turned, untouched = x[..., : self.rotated], x[..., self.rotated :]
        first, second = self._split(turned.to(torch.promote_types(x.dtype, torch.float32)))
        rotated = self._join(
            first * cosine - second * sine,
            second * cosine + first * sine,
        ).to(x.dtype)
        return torch.cat([rotated, untouched], dim=-1) if untouched.shape[-1] else rotated

    def waves(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle that each pair is turned by, times the temperature.

        Args:
            positions: [B, L] int64.

        Returns:
            [B, L, rotated / 2] float32 each.
        """
        frequencies = torch.tensor(self.frequencies, device=positions.device)
        angles = positions[..., None].to(torch.float32) * frequencies
        return angles.cos() * self.temperature, angles.sin() * self.temperature

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two channels of each pair."""
        if self.layout == "pairs":
            return x[..., 0::2], x[..., 1::2]
        half = self.rotated // 2
        return x[..., :half], x[..., half:]

    def _join(self, first: Tensor, second: Tensor) -> Tensor:
        if self.layout == "pairs":
            return torch.stack([first, second], dim=-1).flatten(-2)
        return torch.cat([first, second], dim=-1)


def _temperature(spec: RotarySpec) -> float:
    if spec.temperature is not None:
        return spec.temperature
    return 0.1 * math.log(spec.factor) + 1.0 if spec.scaling == "yarn" else 1.0


def _frequencies(width: int, spec: RotarySpec) -> tuple[float, ...]:
    """Radians per position of each pair, fastest first."""
    base, factor = spec.base, spec.factor
    if spec.scaling == "ntk" and width > 2:  # a single pair turns by 1 whatever the base
        base *= factor ** (width / (width - 2))
    plain = [base ** (-i / width) for i in range(0, width, 2)]
    if spec.scaling == "linear":
        return tuple(f / factor for f in plain)
    if spec.scaling in ("yarn", "by_wavelength"):
        ramp = _yarn_ramp(width, spec) if spec.scaling == "yarn" else _turns_ramp(plain, spec)
        return tuple(
            f / factor * share + f * (1 - share) for f, share in zip(plain, ramp, strict=True)
        )
    return tuple(plain)


def _turns_ramp(frequencies: list[float], spec: RotarySpec) -> list[float]:
    """As `_yarn_ramp`, but linear in the number of turns (LLaMA 3.1, Grattafiori 2024)."""
    assert spec.original_length is not None
    turns = [spec.original_length * f / (2 * math.pi) for f in frequencies]
    span = spec.beta_fast - spec.beta_slow
    return [min(max((spec.beta_fast - t) / span, 0.0), 1.0) for t in turns]


def _yarn_ramp(width: int, spec: RotarySpec) -> list[float]:
    """How far each pair's positions are divided: 0 for fast pairs, 1 for slow ones.

    Pairs that turn more than `beta_fast` times over the trained length keep their frequency,
    those that turn less than `beta_slow` times are interpolated.
    """
    assert spec.original_length is not None
    length = spec.original_length

    def pair_turning(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    low = max(math.floor(pair_turning(spec.beta_fast)), 0)
    high = min(math.ceil(pair_turning(spec.beta_slow)), width - 1)
    # One pair may be both ends; a step there is the limit of ever steeper ramps.
    span = max(high - low, 1e-3)
    return [min(max((pair - low) / span, 0.0), 1.0) for pair in range(width // 2)]
