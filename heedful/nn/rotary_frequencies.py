"""Frequencies of rotary positions, and how they are scaled past the trained length.

No torch here: the runtime of single sentences reads them, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.nn.spec import RotarySpec


def frequencies(spec: RotarySpec, head_width: int) -> tuple[float, ...]:
    """Return the angle per position of each pair of channels in radians, the largest first.

    Longer contexts are reached by dividing positions (Chen 2023), by a larger base
    ("NTK-aware") or by dividing the low frequencies only (YaRN, Peng 2023; by wavelength,
    LLaMA 3.1).

    Args:
        spec: settings of the rotation.
        head_width: E.

    Raises:
        ConfigError: when the rotated width is odd or wider than a head.
    """
    width = head_width if spec.width is None else spec.width
    if width % 2 or width > head_width:
        raise ConfigError(
            f"A head of width {head_width} cannot be rotated in {width} channels",
            remedy="Use an even rotary width, at most the width of a head",
        )
    base, factor = spec.base, spec.factor
    if spec.scaling == "ntk" and width > 2:  # a single pair rotates by 1 whatever the base
        # A base that slows the slowest pair down by the factor and keeps the fastest as it is.
        base *= factor ** (width / (width - 2))
    plain = [base ** (-i / width) for i in range(0, width, 2)]
    if spec.scaling == "linear":
        return tuple(f / factor for f in plain)
    if spec.scaling in ("yarn", "by_wavelength"):
        # Slow pairs, which never completed a turn in training, are interpolated; fast ones
        # tell neighbours apart and stay (Peng 2023, section 3.2).
        ramp = _yarn_ramp(spec, width) if spec.scaling == "yarn" else _turns_ramp(spec, plain)
        pairs = zip(plain, ramp, strict=True)
        return tuple(f / factor * share + f * (1 - share) for f, share in pairs)
    return tuple(plain)


def _turns_ramp(spec: RotarySpec, frequencies: list[float]) -> list[float]:
    """Return the shares of `_yarn_ramp`, linear in the number of turns (LLaMA 3.1, 2024)."""
    assert spec.original_length is not None
    turns = [spec.original_length * f / (2 * math.pi) for f in frequencies]
    span = spec.beta_fast - spec.beta_slow
    return [min(max((spec.beta_fast - t) / span, 0.0), 1.0) for t in turns]


def _yarn_ramp(spec: RotarySpec, width: int) -> list[float]:
    """Return the share of interpolation of each pair, 0 from `beta_fast` rotations on.

    It is 1 for pairs of less than `beta_slow` rotations over the trained length.
    """
    assert spec.original_length is not None
    length = spec.original_length

    # Pair i rotates by base^(−2 i / width) a token: solved for i at a number of turns.
    def pair_turning(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    low = max(math.floor(pair_turning(spec.beta_fast)), 0)
    high = min(math.ceil(pair_turning(spec.beta_slow)), width - 1)
    # Both ends of the ramp may be the same pair, where the ramp becomes a step.
    span = max(high - low, 1e-3)
    return [min(max((pair - low) / span, 0.0), 1.0) for pair in range(width // 2)]
