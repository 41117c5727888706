"""How fast rotary position embedding turns each pair of channels, also past the trained length.

Three ways are known to reach further: divide positions (Chen 2023), raise the base ("NTK-aware"),
or divide only the slow frequencies (YaRN, Peng 2023; by wavelength, LLaMA 3.1).
"""

from __future__ import annotations

import math

from heedful.errors import ConfigError
from heedful.nn.spec import RotarySpec


def frequencies(head_width: int, spec: RotarySpec) -> tuple[float, ...]:
    """Radians per position of each pair, fastest first.

    Args:
        head_width: E.
        spec: base, rotated width, scaling.

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


def temperature(spec: RotarySpec) -> float:
    """What queries and keys are each multiplied by besides."""
    if spec.temperature is not None:
        return spec.temperature
    return 0.1 * math.log(spec.factor) + 1.0 if spec.scaling == "yarn" else 1.0


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
