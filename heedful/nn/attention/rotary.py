"""Rotation of queries and keys by angles proportional to their positions (Su 2021).

It makes a score depend on positions only through their difference. Shapes: B batch, H heads, L
length, E head width.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

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
        self.spec = spec
        self.layout = spec.layout
        # Plain numbers: buffers would lose precision when the model is cast to bfloat16.
        self.frequencies = spec.frequencies(width)
        self.temperature = spec.attention_factor()
        self.rotated = 2 * len(self.frequencies)

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
        frequencies = _on(positions.device, self.frequencies)
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


def _on(device: torch.device, frequencies: tuple[float, ...]) -> Tensor:
    """The frequencies there; to bring them to a GPU anew would wait for it."""
    if torch.compiler.is_compiling():
        return torch.tensor(frequencies, device=device)
    return _kept_on(device, frequencies)


@functools.lru_cache(maxsize=64)
def _kept_on(device: torch.device, frequencies: tuple[float, ...]) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(frequencies, device=device)
